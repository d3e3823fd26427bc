#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kValueDim, int kRows, int kMs1, int kSingle, int kMs, int kAny>
constexpr StepInstance mamba128() {
  return instance<Family::kMamba2, kCheckpoint, DType::kBF16, kValueDim, 128, kRows, kMs1, kSingle,
                  kMs, kAny>();
}

constexpr StepInstance kInstances[] = {
    mamba128<DType::kF32, 64, 64, 2, 128, 2, 160>(),
    mamba128<DType::kF16, 64, 128, 2, 96, 2, 128>(),
    mamba128<DType::kI8, 64, 128, 2, 96, 2, 128>(),
    mamba128<DType::kF32, 80, 160, 2, 96, 2, 128>(),
    mamba128<DType::kF16, 80, 160, 2, 96, 2, 128>(),
    mamba128<DType::kI8, 80, 160, 2, 96, 2, 128>(),
};

}  // namespace

const StepInstance* mamba2_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
