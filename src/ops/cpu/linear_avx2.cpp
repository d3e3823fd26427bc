#include <immintrin.h>

#include "ops/cpu/linear_kernels.h"

namespace replayssm::ops {
namespace {

#include "ops/cpu/linear_vector256.h"
// The body needs the vector.
#include "ops/cpu/linear_body.h"

}  // namespace

void linear_avx2(const PanelArgs& args) {
  if (args.weight_bf16) return panels<Bf16Weight>(args);
  panels<Fp32Weight>(args);
}

}  // namespace replayssm::ops
