#include "replay/cuda/launch.cuh"

namespace replayssm::cuda {
namespace {

template <DType kCheckpoint, bool kSingle, Cut kCut, TeamCut kTeams = TeamCut{}>
constexpr StepInstance gdn128() {
  return instance<Family::kGdn, kCheckpoint, 128, 128, kSingle, kCut, kTeams>();
}

// OLMo-Hybrid's; serves windows of one token too.
template <DType kCheckpoint, int kValueDim, int kKeyDim, Cut kCut>
constexpr StepInstance gdn() {
  return instance<Family::kGdn, kCheckpoint, kValueDim, kKeyDim, false, kCut>();
}

constexpr StepInstance kInstances[] = {
    gdn128<DType::kF32, true, Cut{128, 4, true, 128}>(),
    gdn128<DType::kF32, false, Cut{128, 1, true, 96}, TeamCut{2, true, 4, 2}>(),
    gdn128<DType::kF16, true, Cut{128, 2, true, 72}>(),
    gdn128<DType::kF16, false, Cut{128, 2, true, 96}>(),
    gdn128<DType::kBF16, true, Cut{128, 2, true, 72}>(),
    gdn128<DType::kBF16, false, Cut{128, 2, true, 96}>(),
    gdn128<DType::kI8, true, Cut{256, 4, false, 128}>(),
    gdn128<DType::kI8, true, Cut{128, 4, false, 128}>(),
    gdn128<DType::kI8, false, Cut{256, 4, true, 128}>(),
    gdn128<DType::kI8, false, Cut{128, 4, false, 128}>(),
    for_few(gdn128<DType::kI8, false, Cut{128, 1, true, 96}>()),
    gdn<DType::kF32, 192, 96, Cut{96, 2, true, 96}>(),
    gdn<DType::kF16, 192, 96, Cut{96, 2, true, 96}>(),
    gdn<DType::kI8, 192, 96, Cut{96, 2, true, 144}>(),
};

}  // namespace

std::span<const StepInstance> gdn_instances() { return kInstances; }

}  // namespace replayssm::cuda
