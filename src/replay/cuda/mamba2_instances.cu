#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kValueDim, int kSingleRows, Cut kSingle, int kRows, Cut kAny>
constexpr StepInstance mamba128() {
  return instance<Family::kMamba2, kCheckpoint, DType::kBF16, kValueDim, 128, kSingleRows, kSingle,
                  kRows, kAny>();
}

constexpr StepInstance kInstances[] = {
    mamba128<DType::kF32, 64, 128, Cut{2, false, 128}, 128, Cut{1, true, 96}>(),
    mamba128<DType::kF16, 64, 128, Cut{2, false, 96}, 128, Cut{2, false, 104}>(),
    mamba128<DType::kI8, 64, 128, Cut{2, false, 80}, 256, Cut{4, false, 128}>(),
    mamba128<DType::kF32, 80, 160, Cut{2, true, 96}, 160, Cut{1, true, 80}>(),
    mamba128<DType::kF16, 80, 160, Cut{2, true, 72}, 160, Cut{2, true, 96}>(),
    mamba128<DType::kI8, 80, 160, Cut{2, true, 80}, 160, Cut{2, true, 96}>(),
};

}  // namespace

const StepInstance* mamba2_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
