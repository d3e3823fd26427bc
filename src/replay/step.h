// The problem and the arguments of one recurrent layer's step, sweep and fold.
//
// S is the state of one head, [value_dim, key_dim]; all sums accumulate in fp32.
//
//   Mamba-2  S_t = exp(A dt_t) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t
//            dt = softplus(dt_raw + dt_bias) (identity above 20), A = -exp(A_log); both per head
//   GDN      u_t = beta_t (v_t - alpha_t S_{t-1} k_t)          S_t = alpha_t S_{t-1} + u_t k_t^T
//            y_t = S_t q_t;  q, k L2-normalised (eps 1e-6 under the root), q times key_dim^-1/2
//            alpha = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b); per value head
//   KDA      as GDN with a decay per key channel: S_{t-1} diag(alpha_t), alpha in R^key_dim
//
// (Mamba-2, Gated DeltaNet and Kimi Delta Attention papers; the replay forms are in
// docs/contract.md.) A ring row keeps a token's inputs, rounded to the ring's dtype before they
// enter any sum: Mamba-2 (x, B, dt), GDN and KDA (u, k, log alpha); dt and log alpha stay fp32.
#pragma once

#include <cstdint>

#include "replay/grid.h"
#include "replay/types.h"

namespace replayssm {

// KDA's log decay: kSoftplus  -exp(A_log) softplus(g_raw + dt_bias)
//                  kBounded   lower_bound * sigmoid(exp(A_log) (g_raw + dt_bias))
enum class DecayGate : int32_t { kSoftplus = 0, kBounded = 1 };

struct Problem {
  Family family = Family::kGdn;
  int32_t n_heads = 1;      // value heads (Mamba-2: heads)
  int32_t n_key_heads = 1;  // GDN: key heads; Mamba-2: groups; KDA: n_heads. Divides n_heads;
                            // head h uses key head h / (n_heads / n_key_heads)
  int32_t value_dim = 128;  // V or P: rows of S
  int32_t key_dim = 128;    // K or N: columns of S
  Grid grid;
  int32_t max_window = 1;          // T_max: the most positions past n that a step may touch; <= B
  DType activation = DType::kF32;  // q, k, v, y: fp32 or bf16
  DType ring = DType::kF32;        // fp32, fp16 or bf16; values past fp16's range saturate
  DType checkpoint = DType::kF32;  // fp32, fp16 (saturates), bf16, int8
  float beta_scale = 1.0f;         // GDN and KDA: beta = beta_scale * sigmoid(b)
  DecayGate decay_gate = DecayGate::kSoftplus;  // KDA only
  float decay_lower_bound = 0.0f;               // KDA kBounded only
};

// Packed activations: token i's vector of head h starts at data + i * token_stride + h * dim.
// Strides are in elements.
struct Tokens {
  const void* data = nullptr;
  int64_t token_stride = 0;
};

struct MutableTokens {
  void* data = nullptr;
  int64_t token_stride = 0;
};

// A slot-indexed ring: the row of token t in slot s starts at
// data + s * slot_stride + (t mod R) * row_stride. Strides are in elements.
struct Ring {
  void* data = nullptr;
  int64_t slot_stride = 0;
  int64_t row_stride = 0;
};

struct StepArgs {
  const Row* rows = nullptr;
  int32_t n_rows = 0;

  Tokens query;  // GDN, KDA: q [n_key_heads, key_dim];  Mamba-2: C
  Tokens key;    // GDN, KDA: k [n_key_heads, key_dim];  Mamba-2: B
  Tokens value;  // GDN, KDA: v [n_heads, value_dim];    Mamba-2: x
  // Raw gates, fp32. Mamba-2: dt_raw [n_heads]; GDN: a [n_heads]; KDA: g_raw [n_heads, key_dim].
  Tokens gate;
  Tokens beta;                     // GDN, KDA: b [n_heads], fp32, before the sigmoid
  const float* a_log = nullptr;    // [n_heads]
  const float* dt_bias = nullptr;  // [n_heads]; KDA: [n_heads, key_dim]
  const float* skip = nullptr;     // Mamba-2: D [n_heads]

  MutableTokens out;  // y [n_heads, value_dim], activation dtype; may not overlap the inputs

  // Checkpoints in the plan's private layout (export_checkpoint gives [head, value, key]).
  void* checkpoint = nullptr;
  int64_t checkpoint_slot_stride = 0;  // elements of the checkpoint dtype
  float* scale = nullptr;              // int8 only
  int64_t scale_slot_stride = 0;

  Ring ring_value;  // ring dtype, [n_heads, value_dim] a row: u, Mamba-2: x
  Ring ring_key;    // ring dtype, [n_key_heads, key_dim] a row: k, Mamba-2: B
  Ring ring_gate;  // fp32, Mamba-2: dt [n_heads]; GDN: log alpha [n_heads]; KDA: [n_heads, key_dim]

  // May be null; += values that fp16 could not hold: ring values as they are computed, rejected
  // drafts' too, and checkpoint values when their fold is written (a sweep: when it passes).
  int64_t* n_saturated = nullptr;
  void* workspace = nullptr;  // Plan::workspace_bytes(n_workers), 64-byte aligned
};

}  // namespace replayssm
