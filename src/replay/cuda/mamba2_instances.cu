#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kValueDim, int kRows, int kSingle, int kAny>
constexpr StepInstance mamba128() {
  return instance<Family::kMamba2, kCheckpoint, DType::kBF16, kValueDim, 128, kRows, kSingle, kAny>();
}

constexpr StepInstance kInstances[] = {
    mamba128<DType::kF32, 64, 64, 128, 160>(),  mamba128<DType::kF16, 64, 128, 96, 128>(),
    mamba128<DType::kI8, 64, 128, 96, 128>(),  mamba128<DType::kF32, 80, 160, 96, 128>(),
    mamba128<DType::kF16, 80, 160, 96, 128>(), mamba128<DType::kI8, 80, 160, 96, 128>(),
};

}  // namespace

const StepInstance* mamba2_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
