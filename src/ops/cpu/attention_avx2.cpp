#include "ops/cpu/attention_kernels.h"
#include "replay/simd16.h"

namespace replayssm::ops {
namespace {

namespace s = simd::REPLAYSSM_ISA;
constexpr int kMaxRows = 4;
template <int kRows>
constexpr int kVecs = kRows == 1   ? 4
                      : kRows == 2 ? 2
                                   : 1;

#include "ops/cpu/attention_body.h"

}  // namespace

const AttentionKernels kAttentionAvx2 = {attend_any, finish};

}  // namespace replayssm::ops
