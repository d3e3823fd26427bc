#!/usr/bin/env bash
# Brings the peers that bench/kernels/peers.py times into .peers/, which git ignores: Triton kernels
# of vLLM and ReplaySSM (Apache-2.0) out of ReplaySSM's fork of vLLM, flash-linear-attention (MIT), and
# FlashInfer's Mamba-2 kernels (Apache-2.0), compiled for an H200 with this machine's nvcc. Nothing of
# theirs enters the repository. For a machine without a network carry .peers/carry.tar.xz there and
# unpack it in its .peers/. Needs git, pip, unzip, xz and nvcc.
#   PEERS_GIT     where ReplaySSM is cloned from: an address or a folder
#   PEERS_PYTHON  the Python of the machine that runs peers.py, as 3.12 (default: this one's)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
git_from=${PEERS_GIT:-https://github.com/Johnny-Liou/ReplaySSM}
python=${PEERS_PYTHON:-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
flashinfer=0.7.4
tvm_ffi=0.1.15.post2
fla=0.6.0
mkdir -p .peers/lib .peers/site

# -- Triton kernels
if [ ! -e .peers/replayssm/commit ]; then
  echo "== ReplaySSM's fork of vLLM, from $git_from"
  clone=$(mktemp -d)
  git clone -q --bare --depth 1 --filter=blob:none "$git_from" "$clone"
  layers=vllm/model_executor/layers
  for file in $layers/mamba/ops/{mamba_ssm,triton_helpers,replayssm_config}.py \
    $layers/mamba/ops/selective_state_update_replayssm_{output_only,spec,state_and_output}.py \
    $layers/fla/ops/{op,fused_recurrent,fused_sigmoid_gating}.py \
    $layers/fla/ops/{fused_recurrent_replayssm,gdn_replayssm_spec_decode}.py; do
    mkdir -p ".peers/replayssm/$(dirname "$file")"
    git -C "$clone" show "HEAD:$file" > ".peers/replayssm/$file"
  done
  configs=$layers/mamba/ops/configs/selective_state_update
  mkdir -p ".peers/replayssm/$configs"
  git -C "$clone" ls-tree -r --name-only HEAD "$configs" | grep NVIDIA_H200 |
    while IFS= read -r file; do
      git -C "$clone" show "HEAD:$file" > ".peers/replayssm/$file"
    done
  git -C "$clone" rev-parse HEAD > .peers/replayssm/commit
  rm -rf "$clone"
fi

# -- FlashInfer's sources, and the runtime that loads what is compiled of them
wheels=.peers/wheels
source=.peers/flashinfer
if [ ! -e .peers/versions ]; then
  echo "== flashinfer-python $flashinfer, apache-tvm-ffi $tvm_ffi, fla-core $fla, Python $python"
  pip download -q --no-deps --only-binary=:all: -d "$wheels" --python-version "$python" \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
    --platform manylinux2014_x86_64 "flashinfer-python==$flashinfer" "apache-tvm-ffi==$tvm_ffi" \
    "fla-core==$fla"
  unzip -qo "$wheels"/flashinfer_python-*.whl 'flashinfer/data/csrc/*ssu*' \
    'flashinfer/data/csrc/selective_state_update*' 'flashinfer/data/csrc/*.h' \
    'flashinfer/data/csrc/flashinfer_mamba_binding.cu' 'flashinfer/data/include/*' \
    'flashinfer/data/cutlass/include/*' -d "$source"
  unzip -qo "$wheels"/apache_tvm_ffi-*.whl 'tvm_ffi/*' -d .peers/site
  unzip -qo "$wheels"/fla_core-*.whl 'fla/*' -d .peers/site
  rm -rf "$wheels"
  echo "flashinfer-python==$flashinfer apache-tvm-ffi==$tvm_ffi fla-core==$fla" > .peers/versions
fi

data=$root/$source/flashinfer/data
runtime=$root/.peers/site/tvm_ffi
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

echo "== FlashInfer's kernels: some 90 seconds each, 29 of them"
# What the headline cells need first.
for dtype in fp32 bf16; do
  for dim in 64 80; do plain $dtype $dim 1; done
done
for dtype in fp32 bf16 int8; do
  for window in 1 4 8; do replay $dtype $window 8 8; done
done
for dtype in fp32 bf16; do
  for window in 4 8; do plain $dtype 64 $window; done
  for window in 1 4 8; do
    replay $dtype $window 16 8
    replay $dtype $window 128 1
  done
done

tar -C .peers -cJf .peers/carry.tar.xz --exclude 'tvm_ffi/include' --exclude '*_testing.so' \
  lib replayssm site versions
ls -l .peers/carry.tar.xz
