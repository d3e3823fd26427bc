#!/usr/bin/env bash
# No source file above 800 lines; no file above 16 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
faults=0
while IFS= read -r file; do
  lines=$(wc -l < "$file")
  if [ "$lines" -gt 800 ]; then
    echo "$file: $lines lines; the cap is 800"
    faults=$((faults + 1))
  fi
done < <(git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh' '*.py' '*.sh' '*.md' '*.cmake')
while IFS= read -r file; do
  bytes=$(stat -c %s "$file")
  if [ "$bytes" -gt $((16 << 20)) ]; then
    echo "$file: $bytes bytes; the cap is 16 MiB"
    faults=$((faults + 1))
  fi
done < <(git ls-files)
echo "file sizes: $faults faults"
[ "$faults" -eq 0 ]
