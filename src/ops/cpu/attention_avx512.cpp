#include "ops/cpu/attention_kernels.h"
#include "replay/simd16.h"

namespace replayssm::ops {
namespace {

namespace s = simd::REPLAYSSM_ISA;
constexpr int kMaxRows = 6;
template <int kRows>
constexpr int kVecs = 4;

#include "ops/cpu/attention_body.h"

}  // namespace

const AttentionKernels kAttentionAvx512 = {attend_any, finish};

}  // namespace replayssm::ops
