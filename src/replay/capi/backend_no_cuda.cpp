// Linked where the CUDA backend is not.
#include "replay/capi/backend.h"

namespace replayssm::capi {
namespace {

constexpr const char* kReason = "this library was built without the CUDA backend";

}  // namespace

PlanResult<Layer> layer_cuda(const Problem&) { return {nullptr, kReason}; }
PlanResult<Conv> conv_cuda(const ConvProblem&) { return {nullptr, kReason}; }

}  // namespace replayssm::capi
