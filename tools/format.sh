#!/usr/bin/env bash
# Formats all C++ sources in place; with --check only says what differs.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh')
if [ "${1:-}" = --check ]; then
  clang-format-19 --dry-run --Werror "${files[@]}"
  echo "format: ${#files[@]} files as they should be"
else
  clang-format-19 -i "${files[@]}"
  echo "formatted ${#files[@]} files"
fi
