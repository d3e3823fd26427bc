#!/usr/bin/env bash
# Brings the peers that bench/kernels/peers.py times into .peers/, which git ignores: Triton kernels
# of vLLM and ReplaySSM (Apache-2.0) out of ReplaySSM's fork of vLLM, flash-linear-attention (MIT),
# and the sources of FlashInfer's Mamba-2 kernels (Apache-2.0), which tools/build_peers.sh compiles.
# Nothing of theirs enters the repository. For a machine without a network carry
# .peers/carry.tar.xz there; tools/gpu_bench.sh unpacks it. Needs git, pip, unzip and xz.
#   PEERS_GIT     where ReplaySSM is cloned from: an address or a folder
#   PEERS_PYTHON  the Python of the machine that runs peers.py, as 3.12 (default: this one's)
set -euo pipefail
cd "$(dirname "$0")/.."
git_from=${PEERS_GIT:-https://github.com/Johnny-Liou/ReplaySSM}
python=${PEERS_PYTHON:-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
flashinfer=0.7.4
tvm_ffi=0.1.15.post2
fla=0.6.0
mkdir -p .peers/lib .peers/site .peers/flashinfer

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

# -- Packages: FlashInfer's sources, the runtime that loads what is compiled of them, FLA
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
  # Only what peers.py calls is compiled: no packed windows, and a head's rows split in two, as
  # FlashInfer itself does, for fp32 states alone.
  sed -i -e 's/<D_SPLIT, true>/<D_SPLIT, false>/' \
    -e 's/operator()<2>()/operator()<sizeof(state_t) == 4 ? 2 : 1>()/' \
    "$source/flashinfer/data/include/flashinfer/mamba/launch_checkpointing_ssu.cuh"
  unzip -qo "$wheels"/apache_tvm_ffi-*.whl 'tvm_ffi/*' -d .peers/site
  unzip -qo "$wheels"/fla_core-*.whl 'fla/*' -d .peers/site
  rm -rf "$wheels"
  echo "flashinfer-python==$flashinfer apache-tvm-ffi==$tvm_ffi fla-core==$fla" > .peers/versions
fi

tar -C .peers -cJf .peers/carry.tar.xz flashinfer lib replayssm site \
  versions
ls -l .peers/carry.tar.xz
