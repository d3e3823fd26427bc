#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, BlockTile kTile>
constexpr StepInstance kda128() {
  return instance<Family::kKda, kCheckpoint, 128, 128, false, kTile>();
}

constexpr StepInstance kInstances[] = {
    kda128<DType::kF32, BlockTile{128, 2, false, 128}>(),
    kda128<DType::kF16, BlockTile{128, 2, false, 128}>(),
    kda128<DType::kBF16, BlockTile{128, 2, false, 128}>(),
    kda128<DType::kI8, BlockTile{128, 2, false, 128}>(),
};

}  // namespace

std::span<const StepInstance> kda_instances() { return kInstances; }

}  // namespace replayssm::cuda
