// The mixers: out = mixer(in) over the packed tokens of a pass. One function per kind, each beside
// the layout of its scratch.
#pragma once

#include <cstdint>
#include <span>

#include "model/forward.h"
#include "model/model.h"
#include "model/state.h"
#include "model/weights.h"
#include "ops/context.h"
#include "ops/matrix.h"

namespace replayssm {

// Hands out scratch from one block. With a null block it only counts: the same layout function
// gives the bytes at creation and the places in a pass.
class Arena {
 public:
  explicit Arena(void* block) : block_(static_cast<std::byte*>(block)) {}

  ops::Matrix take(DType dtype, int64_t rows, int64_t cols) {
    void* data = block_ == nullptr ? nullptr : block_ + used_;
    used_ += static_cast<size_t>((rows * cols * dtype_bytes(dtype) + 63) / 64 * 64);
    return {data, dtype, rows, cols, cols};
  }
  size_t used() const { return used_; }

 private:
  std::byte* block_;
  size_t used_ = 0;
};

// The windows of a pass, sorted by what each kernel takes.
struct PassRows {
  std::span<const Row> all;  // step rows, then sweep rows
  std::span<const Row> step;
  std::span<const Row> sweep;
  std::span<const ops::AttentionRow> attention;
  // StateMode::kPlain: [all.size(), state_slots_stride], where the state goes after each token.
  const int32_t* state_slots;
  int32_t state_slots_stride;
};

// What every mixer of a pass sees.
struct Pass {
  const ops::Context& context;
  const ParallelFor& parallel;
  const PassRows& rows;
  DType activation;
  int64_t n_tokens;
  void* scratch;                   // for Arena
  std::span<const Buffer> angles;  // RoPE tables, as Model::ropes() counts
  void* recurrent_workspace;       // Plan::workspace_bytes
  int64_t* n_saturated;
  const Model& model;
  const RecurrenceObserver& observer;
};

// in [tokens, hidden] activation dtype; out [tokens, hidden] fp32.
void run_mamba2(const Pass& pass, const Mamba2Spec& spec, const Mamba2Weights& weights,
                const RecurrentLayer& layer, RecurrentPool& pool, ops::ConstMatrix in,
                ops::Matrix out);
void run_gdn(const Pass& pass, const GdnSpec& spec, const GdnWeights& weights,
             const RecurrentLayer& layer, RecurrentPool& pool, ops::ConstMatrix in,
             ops::Matrix out);
void run_attention(const Pass& pass, const AttentionSpec& spec, const AttentionWeights& weights,
                   const AttentionLayer& layer, const ops::KvPool& pool, ops::ConstMatrix in,
                   ops::Matrix out);
void run_mlp(const Pass& pass, const MlpSpec& spec, const MlpWeights& weights, ops::ConstMatrix in,
             ops::Matrix out);
void run_moe(const Pass& pass, const MoeSpec& spec, const MoeWeights& weights, ops::ConstMatrix in,
             ops::Matrix out);

// One MLP over any rows: inner [rows, ff], gated kinds 2 ff; y [rows, ff], both scratch.
void run_mlp(const ops::Context& context, MlpKind kind, const MlpWeights& weights,
             ops::ConstMatrix x, ops::Matrix inner, ops::Matrix y, ops::Matrix out);

// Scratch of one call over n_tokens.
size_t scratch_bytes(const Mamba2Spec& spec, DType activation, int64_t n_tokens);
size_t scratch_bytes(const GdnSpec& spec, DType activation, int64_t n_tokens);
size_t scratch_bytes(const AttentionSpec& spec, DType activation, int64_t n_tokens);
size_t scratch_bytes(const MlpSpec& spec, DType activation, int64_t n_tokens);
size_t scratch_bytes(const MoeSpec& spec, DType activation, int64_t n_tokens);

// The short conv over all windows: x [tokens, channels] -> y, same shape, other memory.
void run_conv(const Pass& pass, const RecurrentLayer& layer, RecurrentPool& pool,
              const Vector& weight, const Vector& bias, ops::ConstMatrix x, ops::Matrix y);

// The one place where a recurrence runs: fills in rows, checkpoints, rings and workspace of `args`,
// then steps the step rows and sweeps the sweep rows.
void run_recurrence(const Pass& pass, const RecurrentLayer& layer, RecurrentPool& pool,
                    StepArgs args);

}  // namespace replayssm
