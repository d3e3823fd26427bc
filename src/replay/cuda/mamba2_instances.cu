#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kValueDim, int kBlocks, int kTokens>
constexpr StepInstance mamba128() {
  return instance<Family::kMamba2, kCheckpoint, kValueDim, 128, kBlocks, kTokens>();
}

constexpr StepInstance kInstances[] = {
    mamba128<DType::kF32, 64, 1, 8>(), mamba128<DType::kF32, 64, 1, 16>(),
    mamba128<DType::kF16, 64, 2, 8>(), mamba128<DType::kF16, 64, 2, 16>(),
    mamba128<DType::kI8, 64, 2, 8>(),  mamba128<DType::kI8, 64, 2, 16>(),
    mamba128<DType::kF32, 80, 2, 8>(), mamba128<DType::kF32, 80, 2, 16>(),
    mamba128<DType::kF16, 80, 2, 8>(), mamba128<DType::kF16, 80, 2, 16>(),
    mamba128<DType::kI8, 80, 2, 8>(),  mamba128<DType::kI8, 80, 2, 16>(),
};

}  // namespace

const StepInstance* mamba2_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
