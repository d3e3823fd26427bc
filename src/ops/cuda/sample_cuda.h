// src/ops/sample.h on the device: a draw is the same pure function of (logits, params, position).
#pragma once

#include <cstdint>

#include "ops/cuda/context_cuda.h"
#include "ops/matrix.h"
#include "ops/sample.h"

namespace replayssm::ops::cuda {

// tokens[r] = the index of the largest logit of row r, the lowest on a tie. logits fp32. A row with
// NaN or +inf gives SampleStatus::kNan and token -1, one of -inf alone kEmpty; status may be null.
void argmax(const CudaContext& context, ConstMatrix logits, int32_t* tokens,
            SampleStatus* status = nullptr);

// Row r is drawn with params[sequence[r]] at positions[r] (of the token drawn).
struct SampleRowsCuda {
  const SamplerParams* params = nullptr;
  const int32_t* sequence = nullptr;  // [rows]; null: r
  const int64_t* positions = nullptr;
};
void sample(const CudaContext& context, ConstMatrix logits, const SampleRowsCuda& rows,
            int32_t* tokens, SampleStatus* status = nullptr);

// out[r] = ln softmax(logits[r])[tokens[r]].
void log_prob(const CudaContext& context, ConstMatrix logits, const int32_t* tokens, double* out);

// Verification by equality. Batch row r has n_tokens[r] rows of logits from row first[r] on: of one
// committed token, then of drafts. drawn[first[r] + i] is the token drawn after its i-th. A draft
// is accepted if all drafts before it are and it equals the token drawn in its place:
//   n_accepted[r]  accepted drafts, in [0, n_tokens - 1]; the step commits n_accepted + 1 positions
//   next[r]        the token drawn after the last accepted one
// A row without logits gives 0 and -1.
struct VerifyRowsCuda {
  const int32_t* n_tokens = nullptr;
  const int64_t* first = nullptr;
  const int64_t* token_of = nullptr;  // where the token of a row of logits is; null: at its index
  int32_t n_rows = 0;
};
void verify(const CudaContext& context, const VerifyRowsCuda& rows, const int32_t* tokens,
            const int32_t* drawn, int32_t* n_accepted, int32_t* next);

}  // namespace replayssm::ops::cuda
