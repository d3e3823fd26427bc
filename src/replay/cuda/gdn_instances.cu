#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kSingleRows, Cut kSingle, int kRows, Cut kAny>
constexpr StepInstance gdn128() {
  return instance<Family::kGdn, kCheckpoint, DType::kBF16, 128, 128, kSingleRows, kSingle, kRows,
                  kAny>();
}

constexpr StepInstance kInstances[] = {
    gdn128<DType::kF32, 128, Cut{2, true, 128}, 128, Cut{1, true, 96}>(),
    gdn128<DType::kF16, 128, Cut{2, true, 72}, 128, Cut{2, true, 96}>(),
    gdn128<DType::kI8, 128, Cut{4, false, 128}, 128, Cut{2, false, 104}>(),
};

}  // namespace

const StepInstance* gdn_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
