#!/usr/bin/env bash
# Puts the sources of xgrammar (Apache-2.0), of PyPI, into third_party/xgrammar; does nothing when
# they are there. Without them the build works and the server refuses structured output.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.2.9
sha256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90
target=third_party/xgrammar
[ -e "$target/VERSION" ] && [ "$(cat "$target/VERSION")" = "$version" ] && exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "fetching xgrammar $version from PyPI"
python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary xgrammar \
  -d "$folder" "xgrammar==$version"
echo "$sha256  $folder/xgrammar-$version.tar.gz" | sha256sum -c --quiet
tar -xzf "$folder/xgrammar-$version.tar.gz" -C "$folder"
rm -rf "$target"
mkdir -p "$target"
for part in cpp include 3rdparty/dlpack 3rdparty/picojson LICENSE NOTICE; do
  mkdir -p "$target/$(dirname "$part")"
  cp -r "$folder/xgrammar-$version/$part" "$target/$part"
done
echo "$version" > "$target/VERSION"
