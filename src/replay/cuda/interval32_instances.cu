// Grid intervals of 32. One kernel each serves windows of one token too.
#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <Family kFamily, DType kCheckpoint, int kValueDim, BlockTile kTile>
constexpr StepInstance of32() {
  return instance<kFamily, kCheckpoint, kValueDim, 128, false, kTile, PersistentTile{}, 32>();
}

constexpr StepInstance kInstances[] = {
    of32<Family::kGdn, DType::kF32, 128, BlockTile{128, 1, true, 96}>(),
    of32<Family::kGdn, DType::kF16, 128, BlockTile{128, 2, true, 96}>(),
    of32<Family::kGdn, DType::kI8, 128, BlockTile{128, 4, false, 128}>(),
    of32<Family::kMamba2, DType::kF16, 64, BlockTile{128, 2, false, 96}>(),
    of32<Family::kMamba2, DType::kI8, 64, BlockTile{128, 4, false, 128}>(),
    of32<Family::kKda, DType::kF16, 128, BlockTile{128, 2, false, 128}>(),
};

}  // namespace

std::span<const StepInstance> interval32_instances() { return kInstances; }

}  // namespace replayssm::cuda
