#!/usr/bin/env bash
# Compiles FlashInfer's kernels of .peers/ (tools/fetch_peers.sh) for an H200, those that are not
# there yet, several at a time: minutes of one core each, 29 in all. Needs nvcc. `headline`: only the
# 13 that peers.py --headline times.
#   JOBS  how many at a time (all cores)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
data=$root/.peers/flashinfer/flashinfer/data
runtime=$root/.peers/site/tvm_ffi
mkdir -p .peers/lib

# build NAME TEMPLATE SOURCES SUBSTITUTIONS...: one shared library, unless it is there.
build() {
  local name=$1 template=$2 sources=$3
  shift 3
  [ -e "$root/.peers/lib/$name.so" ] && return
  local folder
  folder=$(mktemp -d)
  local script=()
  for substitution in "$@"; do
    script+=(-e "s/{{ ${substitution%%=*} }}/${substitution#*=}/")
  done
  sed "${script[@]}" "$data/csrc/${template}_customize_config.jinja" \
    > "$folder/${template}_config.inc"
  local copies=()
  for file in $sources; do
    cp "$data/csrc/$file" "$folder/"
    copies+=("$folder/$file")
  done
  nvcc -std=c++17 -O3 -DNDEBUG -use_fast_math --expt-relaxed-constexpr -w -diag-suppress 2361 \
    -static-global-template-stub=false -gencode=arch=compute_90a,code=sm_90a \
    -DFLASHINFER_MAMBA_ENABLE_SM90 -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED \
    -DFLASHINFER_ENABLE_F16 -DFLASHINFER_ENABLE_BF16 -DFLASHINFER_ENABLE_FP8_E4M3 \
    -DFLASHINFER_ENABLE_FP8_E5M2 -DFLASHINFER_ENABLE_FP8_E8M0 -DFLASHINFER_ENABLE_FP4_E2M1 \
    -Xcompiler -fPIC -shared -cudart static -I"$folder" -I"$data/csrc" -I"$data/include" \
    -I"$data/cutlass/include" -I"$runtime/include" "${copies[@]}" -L"$runtime/lib" -ltvm_ffi \
    -L/usr/local/cuda/lib64/stubs -lcuda -o "$folder/out.so"
  mv "$folder/out.so" "$root/.peers/lib/$name.so"
  rm -rf "$folder"
  echo "built $name"
}

declare -A cpp=([fp32]=float [bf16]=nv_bfloat16 [int8]=int8_t)
# plain DTYPE DIM T: selective_state_update.
plain() {
  build "ssu_$1_d$2_t$3" selective_state_update "selective_state_update.cu
    selective_state_update_kernel_inst.cu flashinfer_mamba_binding.cu" state_dtype="${cpp[$1]}" \
    input_dtype=nv_bfloat16 weight_dtype=float matrixA_dtype=float stateIndex_dtype=int32_t \
    cu_seqlens_dtype=int32_t num_accepted_tokens_dtype=int64_t state_scale_type=void dim="$2" \
    dstate=128 ntokens_mtp="$3" philox_rounds=0
}
# replay DTYPE T HEADS_A_GROUP GROUPS: checkpointing_ssu, a window of 16, head dim 64.
replay() {
  local scale=void
  [ "$1" = int8 ] && scale=float
  build "ck_$1_t$2_h$3_g$4" checkpointing_ssu "checkpointing_ssu.cu
    checkpointing_ssu_kernel_inst.cu checkpointing_ssu_jit_binding.cu" state_dtype="${cpp[$1]}" \
    input_dtype=nv_bfloat16 dt_dtype=float weight_dtype=float matrixA_dtype=float \
    stateIndex_dtype=int32_t state_scale_type="$scale" dim=64 dstate=128 npredicted="$2" \
    max_window=16 heads_per_group="$3" num_groups="$4" philox_rounds=0 enable_pdl=false
}

headline() {
  for dtype in fp32 bf16; do
    for window in 1 4 8; do echo replay $dtype $window 8 8; done
    for dim in 64 80; do echo plain $dtype $dim 1; done
  done
  for window in 1 4 8; do echo replay int8 $window 8 8; done
}
all() {
  headline
  for dtype in fp32 bf16; do
    for window in 4 8; do echo plain $dtype 64 $window; done
    for window in 1 4 8; do
      echo replay $dtype $window 16 8
      echo replay $dtype $window 128 1
    done
  done
}

case ${1:-all} in
  all | headline) "${1:-all}" | xargs -P "${JOBS:-$(nproc)}" -L 1 "$root/tools/build_peers.sh" ;;
  *) "$@" ;;
esac
