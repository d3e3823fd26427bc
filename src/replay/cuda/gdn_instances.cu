#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kBlocks, int kTokens>
constexpr StepInstance gdn128() {
  return instance<Family::kGdn, kCheckpoint, 128, 128, kBlocks, kTokens>();
}

constexpr StepInstance kInstances[] = {
    gdn128<DType::kF32, -2, 4>(), gdn128<DType::kF32, -2, 8>(), gdn128<DType::kF32, -2, 16>(),
    gdn128<DType::kF16, 1, 4>(),  gdn128<DType::kF16, 1, 8>(),  gdn128<DType::kF16, 1, 16>(),
    gdn128<DType::kI8, 1, 4>(),   gdn128<DType::kI8, 1, 8>(),   gdn128<DType::kI8, 1, 16>(),
};

}  // namespace

const StepInstance* gdn_instances(int* count) {
  *count = sizeof(kInstances) / sizeof(kInstances[0]);
  return kInstances;
}

}  // namespace replayssm::cuda
