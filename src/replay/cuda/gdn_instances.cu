#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kRows, int kSingle, int kAny>
constexpr StepInstance gdn128() {
  return instance<Family::kGdn, kCheckpoint, DType::kBF16, 128, 128, kRows, kSingle, kAny>();
}

constexpr StepInstance kInstances[] = {
    gdn128<DType::kF32, 64, 128, 160>(),
    gdn128<DType::kF16, 128, 96, 128>(),
    gdn128<DType::kI8, 128, 96, 128>(),
};

}  // namespace

const StepInstance* gdn_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
