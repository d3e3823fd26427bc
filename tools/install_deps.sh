#!/usr/bin/env bash
# Installs the Debian packages that the build and the tests need; does nothing when all are there.
set -euo pipefail
packages=(build-essential g++ cmake ninja-build git pkg-config ccache nlohmann-json3-dev libcli11-dev
  libboost1.81-dev libpcre2-dev libicu-dev libxxhash-dev liblzma-dev xz-utils
  libgtest-dev libgmock-dev clang-format-19 python3 python3-jinja2 python3-jsonschema python3-pip ca-certificates)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}"
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" apt-get install -y -q --no-install-recommends "${packages[@]}"
fi
"$(dirname "$0")/fetch_xgrammar.sh" ||
  echo "PyPI is not in reach: no structured output in the server"
