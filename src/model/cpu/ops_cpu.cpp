#include "model/cpu/ops_cpu.h"

#include <algorithm>
#include <cstring>

#include "ops/parallel.h"

namespace replayssm {

CpuLayers plan_layers_cpu(const Model& model, Isa isa) {
  return plan_layers<CpuTypes>(model,
                               [isa](const auto& problem) { return plan_cpu(problem, isa); });
}

PassRowsCpu::PassRowsCpu(const ForwardLimits& limits) {
  rows.reserve(static_cast<size_t>(limits.max_rows));
  windows.reserve(static_cast<size_t>(limits.max_rows));
  positions.resize(static_cast<size_t>(limits.max_tokens));
  tokens.reserve(static_cast<size_t>(limits.max_rows));
}

int64_t PassRowsCpu::bytes() const {
  return static_cast<int64_t>(
      rows.capacity() * sizeof(Row) + windows.capacity() * sizeof(ops::AttentionRow) +
      positions.size() * sizeof(int64_t) + tokens.capacity() * sizeof(int32_t));
}

void PassRowsCpu::take(std::span<const DraftRow> drafts) {
  rows.clear();
  windows.clear();
  tokens.clear();
  n_step = 0;
  for (const DraftRow& draft : drafts) {
    const auto i = static_cast<int64_t>(tokens.size());
    tokens.push_back(draft.token);
    positions[static_cast<size_t>(i)] = draft.position;
    windows.push_back({draft.pages, draft.position, 1, i, /*first=*/1});
  }
}

void PassRowsCpu::sort(const ForwardBatch& batch) {
  rows.clear();
  windows.clear();
  std::ranges::fill(positions, 0);
  for (const Phase phase : {Phase::kStep, Phase::kSweep}) {
    for (const ForwardRow& r : batch.rows) {
      if (r.phase != phase || r.row.read_slot < 0) continue;
      rows.push_back(r.row);
      if (r.row.n_tokens == 0) continue;
      windows.push_back({r.pages, r.row.start, r.row.n_tokens, r.row.token});
      for (int32_t i = 0; i < r.row.n_tokens; ++i) {
        positions[static_cast<size_t>(r.row.token + i)] = r.row.start + i;
      }
    }
    if (phase == Phase::kStep) n_step = rows.size();
  }
}

EngineCpu::EngineCpu(const Model& model_in, const CpuLayers& layers_in,
                     const ops::Context& context_in, const ForwardLimits& limits, Arena& arena)
    : model(model_in),
      layers(layers_in),
      context(context_in),
      parallel(parallel_of(context_in.pool())) {
  for (const RopeShape& rope : model.ropes()) {
    ropes.emplace_back(rope.rotary_dims, rope.theta, rope.scaling);
  }
  const int64_t hidden = model.spec().hidden;
  mixed = arena.take_as<float>("scratch", limits.max_tokens * hidden);
  last = arena.take_as<float>("scratch", limits.max_logits * hidden);
  size_t bytes = 0;
  for (const auto& layer : layers.recurrent) {
    bytes = std::max(bytes, layer.plan->workspace_bytes(context.pool().size()));
  }
  workspace = arena.take("scratch", static_cast<int64_t>(bytes));
}

void OpsCpu::embed(const CpuWeights& weights, ops::Matrix residual) const {
  const int32_t* tokens = batch_.tokens.data();
  if (weights.embedding.data != nullptr) {
    ops::embed(context(), weights.embedding, tokens, residual);
  } else {
    ops::embed(context(), weights.table.empty() ? weights.head : weights.table, tokens, residual);
  }
}

void OpsCpu::last_norm(ops::ConstMatrix residual, ops::NormWeight weight, float eps,
                       ops::Matrix y) const {
  const ops::Matrix last{engine_.last, DType::kF32, y.rows, y.cols, y.cols};
  for (int64_t i = 0; i < y.rows; ++i) {
    std::memcpy(last.at(i), residual.at(batch_.logit_tokens[static_cast<size_t>(i)]),
                static_cast<size_t>(y.cols) * sizeof(float));
  }
  rms_norm(last, weight, eps, y);
}

void OpsCpu::linear_add(const ops::Linear& w, ops::ConstMatrix x, ops::Matrix residual) const {
  linear(w, x, mixed(residual));
  ops::residual_add(context(), residual, mixed(residual));
}

void OpsCpu::conv(size_t layer, const float* weight, const float* bias, ops::ConstMatrix x,
                  ops::Matrix y) const {
  ConvArgs args;
  args.rows = rows_.rows.data();
  args.n_rows = static_cast<int32_t>(rows_.rows.size());
  args.in = {x.data, x.stride};
  args.out = {y.data, y.stride};
  args.weight = weight;
  args.bias = bias;
  args.ring = conv_ring(engine_.layers.sizes.recurrent[layer], pool_.recurrent[layer]);
  engine_.layers.recurrent[layer].conv->run(args, engine_.parallel);
}

void OpsCpu::recurrence(size_t layer, StepArgs args) const {
  const Plan& plan = *engine_.layers.recurrent[layer].plan;
  place_state(engine_.layers.sizes.recurrent[layer], pool_.recurrent[layer], args);
  args.n_saturated = &engine_.n_saturated;
  args.workspace = engine_.workspace;
  args.rows = rows_.rows.data();
  args.n_rows = static_cast<int32_t>(rows_.n_step);
  if (args.n_rows > 0) plan.step(args, engine_.parallel);
  args.rows += rows_.n_step;
  args.n_rows = static_cast<int32_t>(rows_.rows.size() - rows_.n_step);
  if (args.n_rows > 0) plan.sweep(args, engine_.parallel);
}

void OpsCpu::prepare(ops::Heads x, ops::NormWeight norm, const AttentionPrologue& prologue) const {
  if (norm.data != nullptr) ops::head_norm(context(), x, norm, prologue.eps);
  if (prologue.rope < 0) return;
  engine_.ropes[static_cast<size_t>(prologue.rope)].apply(context(), prologue.angles, x);
}

void OpsCpu::remember(size_t layer, const AttentionPrologue& prologue, ops::Heads k,
                      ops::Heads v) const {
  prepare(k, prologue.k_norm, prologue);
  ops::kv_append(context(), engine_.layers.kv[layer], pool_.kv[layer], rows_.windows.data(),
                 std::ssize(rows_.windows), k, v);
}

void OpsCpu::attend(size_t layer, const AttentionPrologue& prologue, float scale, ops::Heads q,
                    ops::Heads k, ops::Heads v, ops::Heads y) const {
  prepare(q, prologue.q_norm, prologue);
  remember(layer, prologue, k, v);
  ops::attention(context(), engine_.layers.kv[layer], pool_.kv[layer], rows_.windows.data(),
                 std::ssize(rows_.windows), scale, q, y);
}

// y[t] = the hidden state at the position before token t's; before the first, zeros.
void OpsCpu::previous_hidden(ops::ConstMatrix hidden, ops::Matrix y) const {
  const auto bytes = static_cast<size_t>(hidden.cols * dtype_bytes(hidden.dtype));
  for (const Row& row : rows_.rows) {
    if (row.n_tokens == 0) continue;
    if (row.start == 0) {
      std::memset(y.at(row.token), 0, bytes);
    } else {
      std::memcpy(y.at(row.token), pool_.parts.hidden(row.ring_slot, row.start - 1).data, bytes);
    }
    for (int64_t i = row.token + 1; i < row.token + row.n_tokens; ++i) {
      std::memcpy(y.at(i), hidden.at(i - 1), bytes);
    }
  }
}

// The last rows of each window, as many as the ring holds.
void OpsCpu::keep_hidden(ops::ConstMatrix hidden) const {
  const int64_t ring_rows = engine_.layers.sizes.hidden.ring_rows;
  for (const Row& row : rows_.rows) {
    for (int64_t i = std::max<int64_t>(0, row.n_tokens - ring_rows); i < row.n_tokens; ++i) {
      const MemorySpan to = pool_.parts.hidden(row.ring_slot, row.start + i);
      std::memcpy(to.data, hidden.at(row.token + i), static_cast<size_t>(to.bytes));
    }
  }
}

void OpsCpu::activated_linear(MlpKind kind, const ops::Linear& w, ops::Matrix inner, ops::Matrix y,
                              ops::Matrix out) const {
  switch (kind) {
    case MlpKind::kGatedSilu:
      ops::silu_mul(context(), inner.slice_cols(0, y.cols), inner.slice_cols(y.cols, y.cols), y);
      break;
    case MlpKind::kRelu2:
      ops::relu2(context(), inner, y);
      break;
  }
  linear(w, y, out);
}

void OpsCpu::activated_linear_add(MlpKind kind, const ops::Linear& w, ops::Matrix inner,
                                  ops::Matrix y, ops::Matrix residual) const {
  activated_linear(kind, w, inner, y, mixed(residual));
  ops::residual_add(context(), residual, mixed(residual));
}

void OpsCpu::run_experts(const MoeSpec& spec, const CpuTypes::Experts& experts, ops::ConstMatrix x,
                         const MoeScratch& s) const {
  ops::sort_by_expert(s.experts, x.rows, spec.top_k, spec.n_experts, s.first, s.row);
  ops::spread_rows(context(), x, s.row, spec.top_k, s.x);
  for (int32_t e = 0; e < spec.n_experts; ++e) {
    const int64_t begin = s.first[e], n = s.first[e + 1] - begin;
    if (n == 0) continue;
    const MlpWeights<CpuTypes>& expert = experts[static_cast<size_t>(e)];
    const ops::Matrix inner = s.inner.slice_rows(begin, n);
    linear(expert.in, s.x.slice_rows(begin, n), inner);
    activated_linear(spec.kind, expert.down, inner, s.y.slice_rows(begin, n),
                     s.out.slice_rows(begin, n));
  }
}

void OpsCpu::add_shared(ops::Matrix mixed, const SharedExpert& shared) const {
  if (shared.x.data == nullptr) return;
  if (shared.gate.data != nullptr) {
    ops::add_gated(context(), shared.gate, shared.x, mixed);
  } else {
    ops::residual_add(context(), mixed, shared.x);
  }
}

bool OpsCpu::sum_experts_add(const MoeSpec& spec, const MoeScratch& scratch,
                             const SharedExpert& shared, ops::Matrix residual,
                             const NextNorm&) const {
  sum_experts(spec, scratch, mixed(residual));
  add_shared(mixed(residual), shared);
  ops::residual_add(context(), residual, mixed(residual));
  return false;
}

bool OpsCpu::linear_shared_add(const ops::Linear& w, ops::ConstMatrix x, const SharedExpert& shared,
                               ops::Matrix residual, const NextNorm&) const {
  linear(w, x, mixed(residual));
  add_shared(mixed(residual), shared);
  ops::residual_add(context(), residual, mixed(residual));
  return false;
}

}  // namespace replayssm
