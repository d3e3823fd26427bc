#!/usr/bin/env bash
# Links the programs and the shared library with link-time optimisation, which sees all definitions
# at once: a type that two sources define differently is an error. Nothing is optimised, so this
# takes a compilation of the sources and no more.
set -euo pipefail
cd "$(dirname "$0")/.."
launcher=()
command -v ccache > /dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$SECONDS
targets=(replayssm replayssm-bench replayssm_shared)
cmake --preset release -B build/odr "${launcher[@]}" -DCMAKE_BUILD_TYPE=Unoptimised \
  -DCMAKE_EXE_LINKER_FLAGS="-Wodr -Werror=odr" -DCMAKE_SHARED_LINKER_FLAGS="-Wodr -Werror=odr" \
  > "$log" 2>&1 || { cat "$log"; exit 1; }
ninja -k 0 -C build/odr "${targets[@]}" > "$log" 2>&1 || { grep -v '^\[' "$log" | head -n 100; exit 1; }
echo "one definition: ${#targets[@]} programs linked, $((SECONDS - start)) s"
