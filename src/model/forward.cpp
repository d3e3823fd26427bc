#include "model/forward.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "model/mixers/mixers.h"
#include "ops/elementwise.h"
#include "ops/norm.h"

namespace replayssm {
namespace {

ParallelFor parallel_of(ThreadPool& pool) {
  ParallelFor out;
  out.run = [](void* ctx, int64_t count, ParallelFor::Function function, const void* arg) {
    static_cast<ThreadPool*>(ctx)->run(count, function, arg);
  };
  out.ctx = &pool;
  out.n_workers = pool.size();
  return out;
}

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

void Forward::run(const ForwardBatch& batch, StatePool& state, float* logits) {
  const ModelSpec& spec = model_.spec();
  const ModelWeights& weights = model_.weights();
  const auto n_tokens = static_cast<int64_t>(batch.tokens.size());
  const auto n_logits = static_cast<int64_t>(batch.logit_tokens.size());
  REPLAYSSM_CHECK(n_tokens <= limits_.max_tokens && n_logits <= limits_.max_logits &&
                      static_cast<int64_t>(batch.rows.size()) <= limits_.max_rows,
                  n_tokens, " tokens, ", n_logits, " logits, ", batch.rows.size(), " rows");
  for (const auto& row : batch.rows) check_row(row, model_, state.sizes(), n_tokens);
  for (const int32_t id : batch.tokens) {
    REPLAYSSM_CHECK(id >= 0 && id < spec.vocab, "token ", id, " of ", spec.vocab);
  }

  auto& b = *buffers_;
  const PassRows rows = b.sort(batch);
  const DType activation = model_.activation();
  const ops::Matrix residual{b.residual.data(), DType::kF32, n_tokens, spec.hidden, spec.hidden};
  const ops::Matrix normed{b.normed.data(), activation, n_tokens, spec.hidden, spec.hidden};
  const ops::Matrix mixed{b.mixed.data(), DType::kF32, n_tokens, spec.hidden, spec.hidden};
  const Pass pass{context_,         b.parallel,         rows,           activation, n_tokens,
                  b.scratch.data(), b.workspace.data(), &b.n_saturated, model_,     observer_};

  if (spec.tied) {
    ops::embed(context_, weights.head, batch.tokens.data(), residual);
  } else {
    const ops::ConstMatrix table{weights.embedding.data(), weights.embedding_dtype, spec.vocab,
                                 spec.hidden, spec.hidden};
    ops::embed(context_, table, batch.tokens.data(), residual);
  }
  for (size_t i = 0; i < b.angles.size(); ++i) {
    model_.ropes()[i].angles(context_, b.positions.data(), n_tokens, b.angles[i].as<float>());
  }

  size_t n_recurrent = 0, n_attention = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    for (size_t j = 0; j < spec.layers[i].mixers.size(); ++j) {
      const MixerSpec& mixer = spec.layers[i].mixers[j];
      const MixerWeights& w = weights.mixers[i][j];
      ops::rms_norm(context_, residual, {w.norm.as<float>(), spec.zero_centred_norms},
                    spec.norm_eps, normed);
      if (const auto* mamba = std::get_if<Mamba2Spec>(&mixer)) {
        run_mamba2(pass, *mamba, std::get<Mamba2Weights>(w.mixer), model_.recurrent()[n_recurrent],
                   state.recurrent(n_recurrent), normed, mixed);
        ++n_recurrent;
      } else if (const auto* gdn = std::get_if<GdnSpec>(&mixer)) {
        run_gdn(pass, *gdn, std::get<GdnWeights>(w.mixer), model_.recurrent()[n_recurrent],
                state.recurrent(n_recurrent), normed, mixed);
        ++n_recurrent;
      } else if (const auto* attention = std::get_if<AttentionSpec>(&mixer)) {
        const AttentionLayer& layer = model_.attention()[n_attention];
        const bool turns = layer.rope >= 0;
        run_attention(pass, *attention, std::get<AttentionWeights>(w.mixer), layer,
                      turns ? &model_.ropes()[layer.rope] : nullptr,
                      turns ? b.angles[layer.rope].as<float>() : nullptr, state.kv(n_attention),
                      spec.norm_eps, spec.zero_centred_norms, normed, mixed);
        ++n_attention;
      } else {
        run_mlp(pass, std::get<MlpSpec>(mixer), std::get<MlpWeights>(w.mixer), normed, mixed);
      }
      ops::residual_add(context_, residual, mixed);
    }
  }

  if (n_logits == 0) return;
  const ops::Matrix last{b.last.data(), DType::kF32, n_logits, spec.hidden, spec.hidden};
  const ops::Matrix last_normed{b.last_normed.data(), activation, n_logits, spec.hidden,
                                spec.hidden};
  for (int64_t i = 0; i < n_logits; ++i) {
    const int64_t token = batch.logit_tokens[static_cast<size_t>(i)];
    REPLAYSSM_CHECK(token >= 0 && token < n_tokens, "logits of token ", token, " of ", n_tokens);
    std::memcpy(last.at(i), residual.at(token), static_cast<size_t>(spec.hidden) * sizeof(float));
  }
  ops::rms_norm(context_, last, {weights.final_norm.as<float>(), spec.zero_centred_norms},
                spec.norm_eps, last_normed);
  weights.head.run(context_, last_normed, {logits, DType::kF32, n_logits, spec.vocab, spec.vocab});
}

}  // namespace replayssm
