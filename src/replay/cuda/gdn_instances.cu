#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, bool kSingle, BlockTile kTile,
          PersistentTile kPersistent = PersistentTile{}>
constexpr StepInstance gdn128() {
  return instance<Family::kGdn, kCheckpoint, 128, 128, kSingle, kTile, kPersistent>();
}

// OLMo-Hybrid's; serves windows of one token too.
template <DType kCheckpoint, int kValueDim, int kKeyDim, BlockTile kTile>
constexpr StepInstance gdn() {
  return instance<Family::kGdn, kCheckpoint, kValueDim, kKeyDim, false, kTile>();
}

constexpr StepInstance kInstances[] = {
    gdn128<DType::kF32, true, BlockTile{128, 4, true, 128}>(),
    gdn128<DType::kF32, false, BlockTile{128, 1, true, 96}, PersistentTile{2, true, 4, 2}>(),
    gdn128<DType::kF16, true, BlockTile{128, 2, true, 72}>(),
    gdn128<DType::kF16, false, BlockTile{128, 2, true, 96}>(),
    gdn128<DType::kBF16, true, BlockTile{128, 2, true, 72}>(),
    gdn128<DType::kBF16, false, BlockTile{128, 2, true, 96}>(),
    gdn128<DType::kI8, true, BlockTile{256, 4, false, 128}>(),
    gdn128<DType::kI8, true, BlockTile{128, 4, false, 128}>(),
    gdn128<DType::kI8, false, BlockTile{256, 4, true, 128}>(),
    gdn128<DType::kI8, false, BlockTile{128, 4, false, 128}>(),
    for_small_grid(gdn128<DType::kI8, false, BlockTile{128, 1, true, 96}>()),
    gdn<DType::kF32, 192, 96, BlockTile{96, 2, true, 96}>(),
    gdn<DType::kF16, 192, 96, BlockTile{96, 2, true, 96}>(),
    gdn<DType::kI8, 192, 96, BlockTile{96, 2, true, 144}>(),
};

}  // namespace

std::span<const StepInstance> gdn_instances() { return kInstances; }

}  // namespace replayssm::cuda
