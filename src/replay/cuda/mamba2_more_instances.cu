// Mamba-2 of Falcon-H1, Granite-4.0-H and Zamba2. One kernel each serves windows of one token too.
#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kValueDim, int kKeyDim, BlockTile kTile>
constexpr StepInstance mamba() {
  return instance<Family::kMamba2, kCheckpoint, kValueDim, kKeyDim, false, kTile>();
}

constexpr StepInstance kInstances[] = {
    mamba<DType::kF32, 32, 64, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF16, 32, 64, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF32, 32, 128, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF16, 32, 128, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF32, 64, 64, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF16, 64, 64, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF32, 64, 256, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF16, 64, 256, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF32, 128, 128, BlockTile{128, 2, true, 96}>(),
    mamba<DType::kF16, 128, 128, BlockTile{128, 2, false, 96}>(),
    mamba<DType::kF32, 128, 256, BlockTile{64, 2, false, 96}>(),
    mamba<DType::kF16, 128, 256, BlockTile{128, 2, false, 96}>(),
};

}  // namespace

std::span<const StepInstance> mamba2_more_instances() { return kInstances; }

}  // namespace replayssm::cuda
