#include "model/cuda/forward_cuda.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/linear_cuda.h"
#include "ops/cuda/norm_cuda.h"
#include "ops/cuda/rope_cuda.h"

namespace replayssm {
namespace {

namespace dev = ops::cuda;

// Up to here a step may fetch its rows while the kernel before it ends: one wave or little more.
constexpr int32_t kEarlyRows = 64;

// Columns of the scratch matrices.
struct Widths {
  int64_t wide = 0, conv = 0, gates = 0, y = 0;

  void add(const Mamba2Spec& s) {
    widen(s.inner() + s.conv_channels(), s.conv_channels(), s.n_heads, s.inner());
  }
  void add(const GdnSpec& s) {
    widen(s.conv_channels() + s.value_size(), s.conv_channels(), 2 * int64_t{s.n_value_heads},
          s.value_size());
  }
  void add(const AttentionSpec& s) {
    widen(s.q_size() * (s.output_gate ? 2 : 1) + 2 * s.kv_size(), 0, 0, s.q_size());
  }
  void add(const MoeSpec&) {}  // MoeScratchCuda has its own
  void add(const MlpSpec& s) { widen(s.kind == MlpKind::kGatedSilu ? 2 * s.ff : s.ff, 0, 0, s.ff); }

 private:
  void widen(int64_t wide_in, int64_t conv_in, int64_t gates_in, int64_t y_in) {
    wide = std::max(wide, wide_in);
    conv = std::max(conv, conv_in);
    gates = std::max(gates, gates_in);
    y = std::max(y, y_in);
  }
};

ops::Matrix matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

ops::Heads heads_of(const ops::Matrix& m, int64_t first, int64_t n_heads, int64_t dim,
                    int64_t head_stride) {
  return {m.at(0, first), m.dtype, m.rows, n_heads, dim, m.stride, head_stride};
}

Ring ring_of(void* data, int64_t ring_rows, int64_t row_elements) {
  return {data, ring_rows * row_elements, row_elements};
}

dev::AttentionRowsCuda attention_rows(const PassCuda& pass) {
  dev::AttentionRowsCuda out;
  out.start = pass.start;
  out.n_tokens = pass.row_tokens;
  out.token = pass.first_token;
  out.pages = pass.pages;
  out.pages_stride = pass.pages_stride;
  out.n_rows = pass.n_step + pass.n_sweep;
  out.max_tokens = pass.longest;
  out.max_positions = pass.max_positions;
  return out;
}

}  // namespace

// What the mixers of a pass see.
struct ForwardCuda::Call {
  const dev::CudaContext& context;
  const PassCuda& pass;
  const RecurrentLayerCuda* recurrent = nullptr;
  const RecurrentPoolCuda* pool = nullptr;
  size_t recurrent_index = 0;
  const AttentionLayerCuda* attention = nullptr;
  const ops::KvPool* kv = nullptr;
  ops::ConstMatrix in = {};   // bf16 [n_tokens, hidden]
  ops::Matrix residual = {};  // fp32, takes the mixer's output on top

  bool has(Part part) const { return (pass.parts & part) != 0; }
  void linear(const dev::LinearCuda& w, ops::ConstMatrix x, ops::Matrix y) const {
    if (has(kWeightsPart)) dev::linear(context, w, x, y);
  }
  void linear_to_residual(const dev::LinearCuda& w, ops::ConstMatrix x) const {
    if (has(kWeightsPart)) dev::linear(context, w, x, residual, /*accumulate=*/true);
  }
};

ForwardCuda::ForwardCuda(const ModelCuda& model, const ForwardCudaLimits& limits,
                         DeviceArena& arena)
    : model_(model), limits_(limits) {
  Widths widths;
  for (const LayerSpec& layer : model.spec().layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      std::visit([&](const auto& spec) { widths.add(spec); }, mixer);
      // A model's mixtures are all of one shape.
      const auto* moe = std::get_if<MoeSpec>(&mixer);
      if (moe == nullptr) continue;
      if (!moe_) moe_ = MoeScratchCuda::take(*moe, limits.max_tokens, arena);
      expert_rows_.push_back(
          {moe->n_experts, arena.take_as<int32_t>("scratch", int64_t{moe->n_experts} + 1)});
    }
  }
  const int64_t tokens = limits.max_tokens, hidden = model.spec().hidden;
  if (moe_) branch_workspace_ = arena.take("scratch", dev::CudaContext::kWorkspaceBytes);
  residual_ = arena.take_as<float>("scratch", tokens * hidden);
  normed_ = arena.take("scratch", tokens * hidden * 2);
  wide_ = arena.take("scratch", tokens * widths.wide * 2);
  conv_ = arena.take("scratch", tokens * widths.conv * 2);
  gates_ = arena.take_as<float>("scratch", tokens * widths.gates);
  y_ = arena.take("scratch", tokens * widths.y * 2);
  for (const RopeCuda& rope : model.ropes) {
    frequencies_.push_back(arena.take_as<double>("scratch", rope.rotary_dims / 2));
    angles_.push_back(arena.take_as<float>("scratch", tokens * rope.rotary_dims));
  }
  last_normed_ = arena.take("scratch", limits.max_logits * hidden * 2);
  logits_ = arena.take_as<float>("logits", limits.max_logits * model.spec().vocab);
  n_saturated_ = arena.take_as<int64_t>("scratch", 1);
  rebuild_args_.resize(model.recurrent.size());
}

void ForwardCuda::prepare(const dev::CudaContext& context) {
  for (size_t i = 0; i < model_.ropes.size(); ++i) {
    const RopeCuda& rope = model_.ropes[i];
    dev::rope_frequencies(context, rope.rotary_dims, rope.theta, frequencies_[i]);
  }
  if (moe_) branch_ = std::make_unique<BranchCuda>(context, branch_workspace_);
  check_cuda(cudaMemset(n_saturated_, 0, sizeof *n_saturated_), "cudaMemset");
}

int64_t ForwardCuda::n_saturated() const {
  int64_t out = 0;
  check_cuda(cudaMemcpy(&out, n_saturated_, sizeof out, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return out;
}

double ForwardCuda::experts_read() const {
  if (!moe_) return 0;
  int64_t total = 0;
  for (const ExpertRows& layer : expert_rows_) {
    std::vector<int32_t> first(static_cast<size_t>(layer.n_experts) + 1);
    check_cuda(cudaMemcpy(first.data(), layer.first, first.size() * sizeof(int32_t),
                          cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    for (size_t e = 0; e + 1 < first.size(); ++e) total += first[e + 1] > first[e] ? 1 : 0;
  }
  return static_cast<double>(total) / static_cast<double>(expert_rows_.size());
}

void ForwardCuda::run(const dev::CudaContext& context, const PassCuda& pass, StatePoolCuda& pools) {
  const ModelSpec& spec = model_.spec();
  const ModelWeightsCuda& weights = model_.weights;
  REPLAYSSM_CHECK(pass.n_tokens > 0 && pass.n_tokens <= limits_.max_tokens &&
                      pass.n_logits <= limits_.max_logits,
                  pass.n_tokens, " tokens, ", pass.n_logits, " logits");
  Call call{context, pass};
  call.residual = matrix(residual_, DType::kF32, pass.n_tokens, spec.hidden);
  const ops::Matrix normed = matrix(normed_, DType::kBF16, pass.n_tokens, spec.hidden);
  call.in = normed;
  if (call.has(kRestPart)) {
    const ops::ConstMatrix table{weights.embedding, DType::kBF16, spec.vocab, spec.hidden,
                                 spec.hidden};
    dev::embed(context, table, pass.tokens, call.residual);
    for (size_t i = 0; i < model_.ropes.size(); ++i) {
      const RopeCuda& rope = model_.ropes[i];
      dev::rope_angles(context, frequencies_[i], rope.rotary_dims, pass.positions, pass.n_tokens,
                       angles_[i]);
    }
  }
  const auto norm_of = [&](const MixerWeightsCuda& w) {
    return ops::NormWeight{w.norm, spec.zero_centred_norms};
  };
  size_t n_recurrent = 0, n_attention = 0, n_moe = 0;
  bool is_normed = false;  // by the mixer before
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    for (size_t j = 0; j < spec.layers[i].mixers.size(); ++j) {
      const MixerSpec& mixer = spec.layers[i].mixers[j];
      const MixerWeightsCuda& w = weights.mixers[i][j];
      if (call.has(kRestPart) && !is_normed) {
        dev::rms_norm(context, call.residual, norm_of(w), spec.norm_eps, normed);
      }
      is_normed = false;
      if (std::holds_alternative<AttentionSpec>(mixer)) {
        call.attention = &model_.attention[n_attention];
        call.kv = &pools.kv[n_attention++];
      } else if (std::holds_alternative<Mamba2Spec>(mixer) ||
                 std::holds_alternative<GdnSpec>(mixer)) {
        call.recurrent_index = n_recurrent;
        call.recurrent = &model_.recurrent[n_recurrent];
        call.pool = &pools.recurrent[n_recurrent++];
      }
      // Weights are of the same alternative as the spec.
      if (const auto* mamba = std::get_if<Mamba2Spec>(&mixer)) {
        run_mixer(call, *mamba, std::get<Mamba2WeightsCuda>(w.mixer));
      } else if (const auto* gdn = std::get_if<GdnSpec>(&mixer)) {
        run_mixer(call, *gdn, std::get<GdnWeightsCuda>(w.mixer));
      } else if (const auto* attention = std::get_if<AttentionSpec>(&mixer)) {
        run_mixer(call, *attention, std::get<AttentionWeightsCuda>(w.mixer));
      } else if (const auto* mlp = std::get_if<MlpSpec>(&mixer)) {
        run_mixer(call, *mlp, std::get<MlpWeightsCuda>(w.mixer));
      } else {
        const MixerWeightsCuda* const next = weights.after(i, j);
        dev::NormedOutput then;
        if (next != nullptr) then = {norm_of(*next), spec.norm_eps, normed};
        is_normed = next != nullptr;
        run_moe(context, *branch_, std::get<MoeSpec>(mixer), std::get<MoeWeightsCuda>(w.mixer),
                *moe_, expert_rows_[n_moe++].first, call.in, call.residual, then,
                call.has(kWeightsPart), call.has(kRestPart));
      }
    }
  }
  if (pass.n_logits == 0) return;
  const ops::Matrix last = matrix(last_normed_, DType::kBF16, pass.n_logits, spec.hidden);
  if (call.has(kRestPart)) {
    ops::Matrix from = call.residual;
    if (pass.logit_tokens == nullptr) from.rows = pass.n_logits;
    dev::rms_norm(context, from, {weights.final_norm, spec.zero_centred_norms}, spec.norm_eps, last,
                  pass.logit_tokens);
  }
  call.linear(weights.head, last, matrix(logits_, DType::kF32, pass.n_logits, spec.vocab));
}

void ForwardCuda::run_mixer(const Call& call, const Mamba2Spec& spec,
                            const Mamba2WeightsCuda& weights) {
  const int64_t n = call.pass.n_tokens, channels = spec.conv_channels();
  const int64_t inner = spec.inner(), bc = int64_t{spec.n_groups} * spec.state_dim;
  const ops::Matrix zx = matrix(wide_, DType::kBF16, n, inner + channels);
  const RecurrentPoolCuda& pool = *call.pool;
  const int64_t kept = call.pass.kept_set * limits_.max_tokens;
  float* gates = pool.kept_gates == nullptr ? gates_ : pool.kept_gates + kept * spec.n_heads;
  void* conv_data =
      pool.kept_conv == nullptr ? conv_ : static_cast<char*>(pool.kept_conv) + kept * channels * 2;
  const ops::Matrix dt = matrix(gates, DType::kF32, n, spec.n_heads);
  const ops::Matrix conv = matrix(conv_data, DType::kBF16, n, channels);
  const ops::Matrix y = matrix(y_, DType::kBF16, n, inner);

  call.linear(weights.in_zx, call.in, zx);
  call.linear(weights.in_dt, call.in, dt);
  run_conv(call, weights.conv_weight, weights.conv_bias, zx.slice_cols(inner, channels), conv);

  StepArgs args;
  args.value = {conv.data, conv.stride};
  args.key = {conv.at(0, inner), conv.stride};
  args.query = {conv.at(0, inner + bc), conv.stride};
  args.gate = {dt.data, dt.stride};
  args.a_log = weights.a_log;
  args.dt_bias = weights.dt_bias;
  args.skip = weights.skip;
  args.out = {y.data, y.stride};
  run_recurrence(call, args);

  ops::GatedNorm norm;
  norm.order = ops::GateOrder::kGateThenNorm;
  norm.group_size = inner / spec.n_groups;
  norm.weight.data = weights.norm;
  norm.eps = spec.norm_eps;
  if (call.has(kRestPart)) dev::gated_norm(call.context, norm, y, zx.slice_cols(0, inner), y);
  call.linear_to_residual(weights.out, y);
}

void ForwardCuda::run_mixer(const Call& call, const GdnSpec& spec, const GdnWeightsCuda& weights) {
  const int64_t n = call.pass.n_tokens, channels = spec.conv_channels();
  const int64_t n_gates = 2 * int64_t{spec.n_value_heads};
  const ops::Matrix qkvz = matrix(wide_, DType::kBF16, n, channels + spec.value_size());
  const RecurrentPoolCuda& pool = *call.pool;
  const int64_t kept = call.pass.kept_set * limits_.max_tokens;
  float* gates = pool.kept_gates == nullptr ? gates_ : pool.kept_gates + kept * n_gates;
  void* conv_data =
      pool.kept_conv == nullptr ? conv_ : static_cast<char*>(pool.kept_conv) + kept * channels * 2;
  const ops::Matrix ba = matrix(gates, DType::kF32, n, n_gates);
  const ops::Matrix conv = matrix(conv_data, DType::kBF16, n, channels);
  const ops::Matrix y = matrix(y_, DType::kBF16, n, spec.value_size());

  call.linear(weights.in_qkvz, call.in, qkvz);
  call.linear(weights.in_ba, call.in, ba);
  run_conv(call, weights.conv_weight, nullptr, qkvz.slice_cols(0, channels), conv);

  StepArgs args;
  args.query = {conv.data, conv.stride};
  args.key = {conv.at(0, spec.key_size()), conv.stride};
  args.value = {conv.at(0, 2 * spec.key_size()), conv.stride};
  args.beta = {ba.data, ba.stride};
  args.gate = {ba.at(0, spec.n_value_heads), ba.stride};
  args.a_log = weights.a_log;
  args.dt_bias = weights.dt_bias;
  args.out = {y.data, y.stride};
  run_recurrence(call, args);

  ops::GatedNorm norm;
  norm.order = ops::GateOrder::kNormThenGate;
  norm.group_size = spec.value_dim;
  norm.weight.data = weights.norm;
  norm.shared_weight = true;
  norm.eps = spec.norm_eps;
  if (call.has(kRestPart)) {
    dev::gated_norm(call.context, norm, y, qkvz.slice_cols(channels, spec.value_size()), y);
  }
  call.linear_to_residual(weights.out, y);
}

void ForwardCuda::run_mixer(const Call& call, const AttentionSpec& spec,
                            const AttentionWeightsCuda& weights) {
  const int64_t n = call.pass.n_tokens, dim = spec.head_dim;
  const int64_t q_stride = spec.output_gate ? 2 * dim : dim;
  const int64_t q_columns = spec.n_heads * q_stride;
  const ops::Matrix qkv = matrix(wide_, DType::kBF16, n, q_columns + 2 * spec.kv_size());
  const ops::Matrix out = matrix(y_, DType::kBF16, n, spec.q_size());
  const ops::Heads q = heads_of(qkv, 0, spec.n_heads, dim, q_stride);
  const ops::Heads k = heads_of(qkv, q_columns, spec.n_kv_heads, dim, dim);
  const ops::Heads v = heads_of(qkv, q_columns + spec.kv_size(), spec.n_kv_heads, dim, dim);
  const ops::Heads y = heads_of(out, 0, spec.n_heads, dim, dim);
  const dev::AttentionRowsCuda rows = attention_rows(call.pass);
  const dev::KvShapeCuda& shape = call.attention->kv;

  call.linear(weights.in_qkv, call.in, qkv);
  if (call.has(kKvPart)) {
    dev::QkPrologue prologue;
    if (spec.qk_norm) {
      prologue.q_norm = {weights.q_norm, spec.qk_norm_zero_centred};
      prologue.k_norm = {weights.k_norm, spec.qk_norm_zero_centred};
      prologue.eps = spec.qk_norm_eps;
    }
    if (call.attention->rope >= 0) {
      prologue.rope_table = angles_[static_cast<size_t>(call.attention->rope)];
      prologue.rotary_dims = spec.rotary_dims;
    }
    dev::qk_prologue_append(call.context, prologue, shape, *call.kv, rows, q, k, v);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    dev::attention(call.context, shape, *call.kv, rows, scale, q, y);
  }
  if (spec.output_gate && call.has(kRestPart)) {
    dev::sigmoid_mul(call.context, y, heads_of(qkv, dim, spec.n_heads, dim, q_stride), y);
  }
  call.linear_to_residual(weights.out, out);
}

void ForwardCuda::run_mixer(const Call& call, const MlpSpec& spec, const MlpWeightsCuda& weights) {
  const bool gated = spec.kind == MlpKind::kGatedSilu;
  const ops::Matrix in =
      matrix(wide_, DType::kBF16, call.pass.n_tokens, gated ? 2 * spec.ff : spec.ff);
  const ops::Matrix y = matrix(y_, DType::kBF16, call.pass.n_tokens, spec.ff);
  call.linear(weights.in, call.in, in);
  if (dev::is_fp8(weights.down.type)) {
    if (!call.has(kWeightsPart)) return;
    dev::linear_activated(call.context, weights.down,
                          gated ? dev::Activation::kSiluMul : dev::Activation::kRelu2, in,
                          call.residual, /*accumulate=*/true);
    return;
  }
  if (call.has(kRestPart)) {
    if (gated) {
      dev::silu_mul(call.context, in.slice_cols(0, spec.ff), in.slice_cols(spec.ff, spec.ff), y);
    } else {
      dev::relu2(call.context, in, y);
    }
  }
  call.linear_to_residual(weights.down, y);
}

void ForwardCuda::run_conv(const Call& call, const float* weight, const float* bias,
                           ops::ConstMatrix in, ops::Matrix out) {
  if (!call.has(kRestPart)) return;
  const ConvProblem& problem = call.recurrent->conv->problem();
  ConvArgs args;
  args.rows = call.pass.rows;
  args.n_rows = call.pass.n_step + call.pass.n_sweep;
  args.in = {in.data, in.stride};
  args.out = {out.data, out.stride};
  args.weight = weight;
  args.bias = bias;
  args.ring = ring_of(call.pool->conv, problem.ring_rows, problem.n_channels);
  call.recurrent->conv->run(args, call.pass.n_tokens, call.context.stream());
}

cuda::BaselineArgs ForwardCuda::baseline_args(const StepArgs& args,
                                              const RecurrentPoolCuda& pool) const {
  cuda::BaselineArgs out;
  out.inputs = {args.query, args.key, args.value, args.gate, args.beta};
  out.kept = out.inputs;
  out.a_log = args.a_log;
  out.dt_bias = args.dt_bias;
  out.skip = args.skip;
  out.out = args.out;
  out.state = pool.state;
  return out;
}

void ForwardCuda::run_recurrence(const Call& call, StepArgs args) {
  const RecurrentLayerCuda& layer = *call.recurrent;
  const RecurrentPoolCuda& pool = *call.pool;
  const PassCuda& pass = call.pass;
  if (!call.has(kStatePart)) return;
  if (layer.plan == nullptr) {
    cuda::BaselineArgs baseline = baseline_args(args, pool);
    baseline.rows = pass.state_rows;
    baseline.n_rows = pass.n_step;
    baseline.state_slot_stride = layer.state_elements;
    baseline.snapshot_slots = pass.snapshot_slots;
    baseline.snapshot_stride = pass.longest;
    if (model_.options.way == StateWay::kJointAdvance) {
      // The window before lies in the other set, at the same places.
      const int64_t sets = pass.kept_set == 0 ? 1 : -1;
      const auto other = [&](Tokens t, int64_t element_bytes) {
        const int64_t elements = sets * limits_.max_tokens * t.token_stride;
        return Tokens{static_cast<const char*>(t.data) + elements * element_bytes, t.token_stride};
      };
      baseline.kept = {other(args.query, 2), other(args.key, 2), other(args.value, 2),
                       other(args.gate, 4), other(args.beta, 4)};
      if (args.beta.data == nullptr) baseline.kept.beta = args.beta;
    }
    if (model_.options.way == StateWay::kActivationReplay) {
      rebuild_args_[call.recurrent_index] = args;
    }
    cuda::baseline_step(layer.problem, baseline, call.context.stream(),
                        /*early=*/pass.n_step <= kEarlyRows);
    return;
  }
  const int64_t ring_rows = layer.problem.grid.ring_rows;
  args.checkpoint = pool.state;
  args.checkpoint_slot_stride = layer.state_elements;
  args.scale = layer.scale_elements == 0 ? nullptr : pool.scale;
  args.scale_slot_stride = layer.scale_elements;
  args.ring_value = ring_of(pool.ring_value, ring_rows, layer.value_row);
  args.ring_key = ring_of(pool.ring_key, ring_rows, layer.key_row);
  args.ring_gate = ring_of(pool.ring_gate, ring_rows, layer.gate_row);
  args.n_saturated = n_saturated_;
  args.rows = pass.rows;
  args.n_rows = pass.n_step;
  // The conv before it writes nothing that a step fetches early.
  layer.plan->step(args, call.context.stream(),
                   {.early = pass.n_step <= kEarlyRows, .single = pass.single});
  args.rows = pass.rows + pass.n_step;
  args.n_rows = pass.n_sweep;
  if (pass.n_sweep > 0) layer.plan->sweep(args, call.context.stream());
}

void ForwardCuda::rebuild(const dev::CudaContext& context, const PassCuda& pass,
                          const cuda::BaselineRow* rows, StatePoolCuda& pools) {
  if ((pass.parts & kStatePart) == 0) return;
  for (size_t i = 0; i < model_.recurrent.size(); ++i) {
    const RecurrentLayerCuda& layer = model_.recurrent[i];
    cuda::BaselineArgs args = baseline_args(rebuild_args_[i], pools.recurrent[i]);
    args.rows = rows;
    args.n_rows = pass.n_step;
    args.state_slot_stride = layer.state_elements;
    cuda::baseline_step(layer.problem, args, context.stream());
  }
}

}  // namespace replayssm
