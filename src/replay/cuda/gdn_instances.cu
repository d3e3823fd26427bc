#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kRows, int kMs1, int kSingle, int kMs, int kAny>
constexpr StepInstance gdn128() {
  return instance<Family::kGdn, kCheckpoint, DType::kBF16, 128, 128, kRows, kMs1, kSingle, kMs,
                  kAny>();
}

constexpr StepInstance kInstances[] = {
    gdn128<DType::kF32, 64, 2, 128, 2, 160>(),
    gdn128<DType::kF16, 128, 2, 96, 2, 128>(),
    gdn128<DType::kI8, 128, 2, 96, 2, 128>(),
};

}  // namespace

const StepInstance* gdn_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
