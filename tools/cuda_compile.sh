#!/usr/bin/env bash
# Compiles all CUDA sources and links the programs that use them, but for those that need the whole
# engine; needs nvcc, no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
launcher=()
command -v ccache > /dev/null &&
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$SECONDS
cmake --preset cuda "${launcher[@]}" > "$log" 2>&1 || { cat "$log"; exit 1; }
mapfile -t targets < <(ninja -C build/cuda -t targets all |
  sed -n -E 's/^(.*(\.cu\.o|_cuda\.dir\/.*\.cpp\.o|_cuda_test|bench_kernels|bench_ops_cuda)): .*/\1/p' |
  grep -v -E 'model_cuda_test$|model_cuda_test\.dir')
ninja -C build/cuda "${targets[@]}" > "$log" 2>&1 || { tail -n 50 "$log"; exit 1; }
echo "CUDA: $(git ls-files '*.cu' | wc -l) sources compiled, ${#targets[@]} targets," \
  "$((SECONDS - start)) s"
