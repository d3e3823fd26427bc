// RMS norms: n(x)[i] = x[i] * (1 / sqrt(mean_j(x[j]^2) + eps)), all in fp32, one rounding at the
// output's dtype. Sums run over 16 interleaved chains and a fixed tree. Weights are fp32.
#pragma once

#include <cstdint>

#include "ops/context.h"
#include "ops/matrix.h"

namespace replayssm::ops {

struct NormWeight {
  const float* data = nullptr;  // null: no weight
  bool zero_centred = false;    // multiply by 1 + w instead of w
};

// y[r] = n(x[r]) * w      x, y [rows, cols] fp32 or bf16, w [cols]; y may be x.
void rms_norm(const Context& context, ConstMatrix x, NormWeight weight, float eps, Matrix y);

// x[t, h] = n(x[t, h]) * w in place, w [dim] shared by the heads (qk-norm).
void head_norm(const Context& context, Heads x, NormWeight weight, float eps);

enum class GateOrder : int32_t {
  kGateThenNorm,  // n_group(y * act(z)) * w       Mamba-2
  kNormThenGate,  // n_group(y) * w * act(z)       GDN, KDA
  kGateOnly,      // y * act(z)
};
enum class GateFunction : int32_t { kSilu, kSigmoid };

struct GatedNorm {
  GateOrder order = GateOrder::kGateThenNorm;
  GateFunction gate = GateFunction::kSilu;
  int64_t group_size = 0;  // columns normalised together; divides cols
  NormWeight weight;       // [cols], or [group_size] if shared_weight
  bool shared_weight = false;
  float eps = 1e-6f;
  // Above 0: of n groups, group g goes to where group g % share * tile + g / share was, with
  // share = n / tile; out is then neither y nor z.
  int64_t tile = 0;

  int64_t place_of(int64_t group, int64_t n_groups) const {
    if (tile == 0) return group;
    const int64_t share = n_groups / tile;
    return group % share * tile + group / share;
  }
};

// y, z, out [rows, cols], fp32 or bf16 each; out may be y or z.
void gated_norm(const Context& context, const GatedNorm& norm, ConstMatrix y, ConstMatrix z,
                Matrix out);

}  // namespace replayssm::ops
