#include "ops/cpu/attention_kernels.h"
#include "replay/simd16.h"

namespace replayssm::ops {
namespace {

namespace s = simd::REPLAYSSM_ISA;
constexpr int kMaxRows = 2;
template <int kRows>
constexpr int kVecs = kRows == 1 ? 2 : 1;

#include "ops/cpu/attention_body.h"

}  // namespace

const AttentionKernels kAttentionPortable = {attend_any, finish};

}  // namespace replayssm::ops
