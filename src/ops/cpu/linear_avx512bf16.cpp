#include <immintrin.h>

#include "ops/cpu/linear_kernels.h"

namespace replayssm::ops {
namespace {

#include "ops/cpu/linear_vector512.h"
// These need the vector.
#include "ops/cpu/linear_bf16dot.h"
#include "ops/cpu/linear_body.h"

}  // namespace

void linear_avx512bf16(const PanelArgs& args) { panels<Bf16Dot>(args); }

}  // namespace replayssm::ops
