#include "model/forward.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/error.h"
#include "model/mixers/mixers.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/parallel.h"

namespace replayssm {
namespace {

size_t mixer_scratch_bytes(const Model& model, int64_t n_tokens) {
  size_t out = 0;
  for (const auto& layer : model.spec().layers) {
    for (const auto& mixer : layer.mixers) {
      out = std::max(out, std::visit(
                              [&](const auto& spec) {
                                return scratch_bytes(spec, model.activation(), n_tokens);
                              },
                              mixer));
    }
  }
  return out;
}

size_t workspace_bytes(const Model& model, int n_workers) {
  size_t out = 0;
  for (const auto& layer : model.recurrent()) {
    out = std::max(out, layer.plan != nullptr ? layer.plan->workspace_bytes(n_workers)
                                              : layer.plain->workspace_bytes(n_workers));
  }
  return out;
}

void check_slot(int32_t slot, int32_t slots, const char* what) {
  REPLAYSSM_CHECK(slot >= 0 && slot < slots, what, " slot ", slot, " of ", slots);
}

// kPlain: every token's state has a place or none.
void check_state_slots(const ForwardRow& r, const Model& model, const PoolSizes& sizes) {
  if (model.options().state != StateMode::kPlain) return;
  REPLAYSSM_CHECK(r.state_slots != nullptr && r.row.start == r.row.n, "plain state, start ",
                  r.row.start, " n ", r.row.n);
  for (int32_t i = 0; i < r.row.n_tokens; ++i) {
    if (r.state_slots[i] >= 0) check_slot(r.state_slots[i], sizes.checkpoint_slots, "state");
  }
}

void check_row(const ForwardRow& r, const Model& model, const PoolSizes& sizes, int64_t n_tokens) {
  const Row& row = r.row;
  if (row.read_slot < 0) return;
  check_slot(row.read_slot, sizes.checkpoint_slots, "read");
  check_slot(row.write_slot, sizes.checkpoint_slots, "write");
  check_slot(row.ring_slot, sizes.ring_slots, "ring");
  check_state_slots(r, model, sizes);
  REPLAYSSM_CHECK(row.n_tokens >= 0 && row.token >= 0 && row.token <= n_tokens - row.n_tokens,
                  "window of ", row.n_tokens, " at token ", row.token, " of ", n_tokens);
  REPLAYSSM_CHECK(row.start >= row.n && row.n >= row.c && row.c >= 0, "start ", row.start, " n ",
                  row.n, " c ", row.c);
  if (r.phase == Phase::kSweep) {
    REPLAYSSM_CHECK(row.start == row.n, "a sweep from ", row.start, " with n ", row.n);
  } else {
    REPLAYSSM_CHECK(row.start + row.n_tokens - row.n <= model.options().max_window, "a step to ",
                    row.start + row.n_tokens, " with n ", row.n);
  }
}

}  // namespace

struct ForwardBuffers {
  std::vector<Row> rows;                   // step rows, then sweep rows
  std::vector<ops::AttentionRow> windows;  // of rows with tokens
  std::vector<int32_t> state_slots;        // kPlain: [rows, longest window]
  std::vector<int64_t> positions;          // [max_tokens]
  std::vector<Buffer> angles;              // one table per Model::ropes()
  Buffer residual;                         // [max_tokens, hidden] fp32
  Buffer normed;                           // [max_tokens, hidden] activation dtype
  Buffer mixed;                            // [max_tokens, hidden] fp32
  Buffer last;                             // [max_logits, hidden] fp32
  Buffer last_normed;                      // [max_logits, hidden] activation dtype
  Buffer scratch;                          // of the largest mixer
  Buffer workspace;                        // of the largest plan
  ParallelFor parallel;
  int64_t n_saturated = 0;

  // Splits the batch by kernel and notes the position of every token.
  PassRows sort(const ForwardBatch& batch);
};

PassRows ForwardBuffers::sort(const ForwardBatch& batch) {
  size_t n_rows = 0, n_step = 0, n_windows = 0;
  int32_t longest = 0;
  for (const auto& r : batch.rows) longest = std::max(longest, r.row.n_tokens);
  std::fill(positions.begin(), positions.end(), 0);
  for (const Phase phase : {Phase::kStep, Phase::kSweep}) {
    for (const auto& r : batch.rows) {
      if (r.phase != phase || r.row.read_slot < 0) continue;
      for (int32_t i = 0; r.state_slots != nullptr && i < r.row.n_tokens; ++i) {
        state_slots[n_rows * static_cast<size_t>(longest) + static_cast<size_t>(i)] =
            r.state_slots[i];
      }
      rows[n_rows++] = r.row;
      if (r.row.n_tokens == 0) continue;
      windows[n_windows++] = {r.pages, r.row.start, r.row.n_tokens, r.row.token};
      for (int32_t i = 0; i < r.row.n_tokens; ++i) {
        positions[static_cast<size_t>(r.row.token + i)] = r.row.start + i;
      }
    }
    if (phase == Phase::kStep) n_step = n_rows;
  }
  const std::span<const Row> all(rows.data(), n_rows);
  return {all,
          all.first(n_step),
          all.subspan(n_step),
          {windows.data(), n_windows},
          state_slots.data(),
          longest};
}

Forward::Forward(const Model& model, const ops::Context& context, const ForwardLimits& limits)
    : model_(model),
      context_(context),
      limits_(limits),
      buffers_(std::make_unique<ForwardBuffers>()) {
  REPLAYSSM_CHECK(context.isa() == model.options().isa, isa_name(context.isa()), " context, ",
                  isa_name(model.options().isa), " plans");
  REPLAYSSM_CHECK(!model.weights().mixers.empty(), "a model without weights");
  REPLAYSSM_CHECK(limits.max_tokens > 0 && limits.max_rows > 0 && limits.max_logits > 0,
                  limits.max_tokens, " tokens, ", limits.max_rows, " rows");
  const auto tokens = static_cast<size_t>(limits.max_tokens);
  const auto logits = static_cast<size_t>(limits.max_logits);
  const auto hidden = static_cast<size_t>(model.spec().hidden);
  const auto activation_bytes = static_cast<size_t>(dtype_bytes(model.activation()));
  auto& b = *buffers_;
  b.rows.resize(static_cast<size_t>(limits.max_rows));
  b.windows.resize(static_cast<size_t>(limits.max_rows));
  b.positions.resize(tokens);
  if (model.options().state == StateMode::kPlain) {
    b.state_slots.resize(static_cast<size_t>(limits.max_rows) * tokens);
  }
  for (const auto& rope : model.ropes()) {
    b.angles.emplace_back(tokens * static_cast<size_t>(rope.rotary_dims()) * sizeof(float));
  }
  b.residual = Buffer(tokens * hidden * sizeof(float));
  b.normed = Buffer(tokens * hidden * activation_bytes);
  b.mixed = Buffer(tokens * hidden * sizeof(float));
  b.last = Buffer(logits * hidden * sizeof(float));
  b.last_normed = Buffer(logits * hidden * activation_bytes);
  b.scratch = Buffer(mixer_scratch_bytes(model, limits.max_tokens));
  b.workspace = Buffer(workspace_bytes(model, context.pool().size()));
  b.parallel = parallel_of(context.pool());
}

Forward::~Forward() = default;

int64_t Forward::n_saturated() const { return buffers_->n_saturated; }

int64_t Forward::bytes() const {
  const auto& b = *buffers_;
  size_t total = b.rows.size() * sizeof(Row) + b.windows.size() * sizeof(ops::AttentionRow) +
                 b.positions.size() * sizeof(int64_t) + b.state_slots.size() * sizeof(int32_t) +
                 b.residual.bytes() + b.normed.bytes() + b.mixed.bytes() + b.last.bytes() +
                 b.last_normed.bytes() + b.scratch.bytes() + b.workspace.bytes();
  for (const auto& table : b.angles) total += table.bytes();
  return static_cast<int64_t>(total);
}

namespace {

void check_batch(const ForwardBatch& batch, const Model& model, const ForwardLimits& limits,
                 const PoolSizes& sizes) {
  const int64_t n_tokens = std::ssize(batch.tokens);
  REPLAYSSM_CHECK(
      n_tokens <= limits.max_tokens && std::ssize(batch.logit_tokens) <= limits.max_logits &&
          std::ssize(batch.rows) <= limits.max_rows,
      n_tokens, " tokens, ", batch.logit_tokens.size(), " logits, ", batch.rows.size(), " rows");
  for (const auto& row : batch.rows) check_row(row, model, sizes, n_tokens);
  for (const int32_t id : batch.tokens) {
    REPLAYSSM_CHECK(id >= 0 && id < model.spec().vocab, "token ", id, " of ", model.spec().vocab);
  }
  for (const int64_t token : batch.logit_tokens) {
    REPLAYSSM_CHECK(token >= 0 && token < n_tokens, "logits of token ", token, " of ", n_tokens);
  }
}

void embed_tokens(const Pass& pass, const int32_t* tokens, ops::Matrix residual) {
  const ModelSpec& spec = pass.model.spec();
  const ModelWeights& weights = pass.model.weights();
  if (spec.tied) {
    ops::embed(pass.context, weights.head, tokens, residual);
    return;
  }
  const ops::ConstMatrix table{weights.embedding.data(), weights.embedding_dtype, spec.vocab,
                               spec.hidden, spec.hidden};
  ops::embed(pass.context, table, tokens, residual);
}

// Runs mixers in the order of the layers; each that has state takes the next pool of its kind.
class MixerRunner {
 public:
  MixerRunner(const Pass& pass, StatePool& state) : pass_(pass), state_(state) {}

  void run(const MixerSpec& spec, const MixerWeights& weights, ops::ConstMatrix in,
           ops::Matrix out) {
    std::visit([&](const auto& mixer) { run_one(mixer, weights, in, out); }, spec);
  }

 private:
  void run_one(const Mamba2Spec& spec, const MixerWeights& weights, ops::ConstMatrix in,
               ops::Matrix out) {
    const size_t i = n_recurrent_++;
    run_mamba2(pass_, spec, std::get<Mamba2Weights>(weights.mixer), pass_.model.recurrent()[i],
               state_.recurrent(i), in, out);
  }
  void run_one(const GdnSpec& spec, const MixerWeights& weights, ops::ConstMatrix in,
               ops::Matrix out) {
    const size_t i = n_recurrent_++;
    run_gdn(pass_, spec, std::get<GdnWeights>(weights.mixer), pass_.model.recurrent()[i],
            state_.recurrent(i), in, out);
  }
  void run_one(const AttentionSpec& spec, const MixerWeights& weights, ops::ConstMatrix in,
               ops::Matrix out) {
    const size_t i = n_attention_++;
    run_attention(pass_, spec, std::get<AttentionWeights>(weights.mixer),
                  pass_.model.attention()[i], state_.kv(i), in, out);
  }
  void run_one(const MlpSpec& spec, const MixerWeights& weights, ops::ConstMatrix in,
               ops::Matrix out) {
    run_mlp(pass_, spec, std::get<MlpWeights>(weights.mixer), in, out);
  }
  void run_one(const MoeSpec& spec, const MixerWeights& weights, ops::ConstMatrix in,
               ops::Matrix out) {
    run_moe(pass_, spec, std::get<MoeWeights>(weights.mixer), in, out);
  }

  const Pass& pass_;
  StatePool& state_;
  size_t n_recurrent_ = 0;
  size_t n_attention_ = 0;
};

}  // namespace

void Forward::run(const ForwardBatch& batch, StatePool& state, float* logits) {
  check_batch(batch, model_, limits_, state.sizes());
  const ModelSpec& spec = model_.spec();
  const ModelWeights& weights = model_.weights();
  const int64_t n_tokens = std::ssize(batch.tokens), n_logits = std::ssize(batch.logit_tokens);
  const auto rows_of = [&](Buffer& buffer, DType dtype, int64_t n) {
    return ops::Matrix{buffer.data(), dtype, n, spec.hidden, spec.hidden};
  };

  auto& b = *buffers_;
  const PassRows rows = b.sort(batch);
  const Pass pass{context_,       b.parallel,       rows,     model_.activation(),
                  n_tokens,       b.scratch.data(), b.angles, b.workspace.data(),
                  &b.n_saturated, model_,           observer_};
  const ops::Matrix residual = rows_of(b.residual, DType::kF32, n_tokens);
  const ops::Matrix normed = rows_of(b.normed, pass.activation, n_tokens);
  const ops::Matrix mixed = rows_of(b.mixed, DType::kF32, n_tokens);

  embed_tokens(pass, batch.tokens.data(), residual);
  for (size_t i = 0; i < b.angles.size(); ++i) {
    model_.ropes()[i].angles(context_, b.positions.data(), n_tokens, b.angles[i].as<float>());
  }
  MixerRunner runner(pass, state);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    for (size_t j = 0; j < spec.layers[i].mixers.size(); ++j) {
      const MixerWeights& w = weights.mixers[i][j];
      ops::rms_norm(context_, residual, {w.norm.as<float>(), spec.zero_centred_norms},
                    spec.norm_eps, normed);
      runner.run(spec.layers[i].mixers[j], w, normed, mixed);
      ops::residual_add(context_, residual, mixed);
    }
  }

  if (n_logits == 0) return;
  const ops::Matrix last = rows_of(b.last, DType::kF32, n_logits);
  const ops::Matrix last_normed = rows_of(b.last_normed, pass.activation, n_logits);
  for (int64_t i = 0; i < n_logits; ++i) {
    std::memcpy(last.at(i), residual.at(batch.logit_tokens[static_cast<size_t>(i)]),
                static_cast<size_t>(spec.hidden) * sizeof(float));
  }
  ops::rms_norm(context_, last, {weights.final_norm.as<float>(), spec.zero_centred_norms},
                spec.norm_eps, last_normed);
  weights.head.run(context_, last_normed, {logits, DType::kF32, n_logits, spec.vocab, spec.vocab});
}

}  // namespace replayssm
