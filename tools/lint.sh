#!/usr/bin/env bash
# What CI checks besides the tests: format, include directions, types, file sizes.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/format.sh --check
tools/check_includes.py
tools/check_types.py
tools/check_files.sh
