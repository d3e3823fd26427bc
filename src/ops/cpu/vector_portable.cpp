#include "ops/cpu/vector_kernels.h"
#include "replay/simd16.h"

namespace replayssm::ops {
namespace {

namespace s = simd::REPLAYSSM_ISA;

#include "ops/cpu/vector_body.h"

}  // namespace

const VectorKernels kVectorPortable = kKernels;

}  // namespace replayssm::ops
