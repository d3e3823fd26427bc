#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, int kValueDim, bool kSingle, BlockTile kTile,
          PersistentTile kPersistent = PersistentTile{}>
constexpr StepInstance mamba128() {
  return instance<Family::kMamba2, kCheckpoint, kValueDim, 128, kSingle, kTile, kPersistent>();
}

constexpr StepInstance kInstances[] = {
    mamba128<DType::kF32, 64, true, BlockTile{64, 4, false, 128}>(),
    for_small_grid(mamba128<DType::kF32, 64, true, BlockTile{128, 2, false, 128}>()),
    mamba128<DType::kF32, 64, false, BlockTile{128, 1, true, 96}, PersistentTile{2, true, 4, 2}>(),
    mamba128<DType::kF16, 64, true, BlockTile{128, 2, false, 80}>(),
    mamba128<DType::kF16, 64, false, BlockTile{128, 2, false, 96}>(),
    mamba128<DType::kBF16, 64, true, BlockTile{128, 2, false, 80}>(),
    mamba128<DType::kBF16, 64, false, BlockTile{128, 2, false, 96}>(),
    mamba128<DType::kI8, 64, true, BlockTile{256, 4, true, 128}>(),
    mamba128<DType::kI8, 64, false, BlockTile{256, 4, false, 128}>(),
    mamba128<DType::kI8, 64, true, BlockTile{128, 4, false, 128}>(),
    mamba128<DType::kI8, 64, false, BlockTile{128, 4, false, 128}>(),
    mamba128<DType::kF32, 80, true, BlockTile{80, 5, true, 80}>(),
    for_small_grid(mamba128<DType::kF32, 80, true, BlockTile{160, 1, true, 80}>()),
    mamba128<DType::kF32, 80, false, BlockTile{160, 1, true, 80}>(),
    mamba128<DType::kF16, 80, true, BlockTile{160, 5, true, 80}>(),
    mamba128<DType::kF16, 80, false, BlockTile{160, 2, true, 96}>(),
    mamba128<DType::kBF16, 80, true, BlockTile{160, 5, true, 80}>(),
    mamba128<DType::kBF16, 80, false, BlockTile{160, 2, true, 96}>(),
    mamba128<DType::kI8, 80, true, BlockTile{240, 5, true, 128}>(),
    mamba128<DType::kI8, 80, false, BlockTile{480, 5, false, 128},
             PersistentTile{5, false, 2, 2}>(),
    mamba128<DType::kI8, 80, true, BlockTile{80, 5, false, 128}>(),
    mamba128<DType::kI8, 80, false, BlockTile{80, 5, false, 128}>(),
};

}  // namespace

std::span<const StepInstance> mamba2_instances() { return kInstances; }

}  // namespace replayssm::cuda
