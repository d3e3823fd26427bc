#!/usr/bin/env bash
# isa_objects.sh NM OBJECT...: an instruction set's object may define no weak symbol. The linker keeps
# one of several definitions, so an inline function that is not inlined could run AVX-512 code on a
# machine without it.
set -euo pipefail
nm=$1
shift
checked=0
for object in "$@"; do
  [[ $object =~ _(portable|avx2|avx512|avx512bf16)\.cpp\.o$ ]] || continue
  checked=$((checked + 1))
  if weak=$("$nm" -C --defined-only "$object" | grep -E ' [WVu] '); then
    echo "$object shares:"
    echo "$weak"
    exit 1
  fi
done
[ "$checked" -ge 3 ] || { echo "no instruction set objects among $# files"; exit 1; }
echo "$checked objects share nothing"
