#include "ops/moe.h"

#include "model/mixers/mixers.h"
#include "model/router.h"
#include "ops/elementwise.h"

namespace replayssm {
namespace {

struct Scratch {
  ops::Matrix logits;  // fp32, the router's | the shared expert's gate
  int32_t* experts;    // [tokens, top_k]
  int32_t* row;        // [tokens, top_k]
  int32_t* first;      // [n_experts + 1]
  float* weights;      // [tokens, top_k]
  ops::Matrix latent;  // activation, to the experts and from them
  ops::Matrix sum;     // fp32, of the experts, where that is not `out`
  ops::Matrix x;       // by expert, as all that follow
  ops::Matrix inner;
  ops::Matrix y;
  ops::Matrix experts_out;  // fp32
  ops::Matrix shared_inner;
  ops::Matrix shared_y;
  ops::Matrix shared_out;  // fp32

  Scratch(Arena& arena, const MoeSpec& spec, DType activation, int64_t n_tokens) {
    const int64_t n = n_tokens * spec.top_k;
    const auto mlp = [&](int64_t rows, int64_t ff, ops::Matrix& in, ops::Matrix& out) {
      in = arena.take(activation, rows, spec.kind == MlpKind::kGatedSilu ? 2 * ff : ff);
      out = arena.take(activation, rows, ff);
    };
    const auto integers = [&](int64_t count) {
      static_assert(sizeof(int32_t) == sizeof(float));
      return static_cast<int32_t*>(arena.take(DType::kF32, 1, count).data);
    };
    logits = arena.take(DType::kF32, n_tokens, spec.n_experts + (spec.shared_gate ? 1 : 0));
    experts = integers(n);
    row = integers(n);
    first = integers(int64_t{spec.n_experts} + 1);
    weights = static_cast<float*>(arena.take(DType::kF32, n_tokens, spec.top_k).data);
    latent = arena.take(activation, n_tokens, spec.latent);
    sum = arena.take(DType::kF32, n_tokens, spec.latent);
    x = arena.take(activation, n, spec.expert_width());
    mlp(n, spec.ff, inner, y);
    experts_out = arena.take(DType::kF32, n, spec.expert_width());
    if (spec.shared_ff == 0) return;
    mlp(n_tokens, spec.shared_ff, shared_inner, shared_y);
    shared_out = arena.take(DType::kF32, n_tokens, spec.hidden);
  }
};

// out = sum over the chosen experts, fp32, [tokens, expert_width].
void run_experts(const Pass& pass, const MoeSpec& spec, const MoeWeights& weights, const Scratch& s,
                 ops::ConstMatrix in, ops::Matrix out) {
  ops::sort_by_expert(s.experts, pass.n_tokens, spec.top_k, spec.n_experts, s.first, s.row);
  ops::spread_rows(pass.context, in, s.row, spec.top_k, s.x);
  for (int32_t e = 0; e < spec.n_experts; ++e) {
    const int64_t begin = s.first[e], n = s.first[e + 1] - begin;
    if (n == 0) continue;
    run_mlp(pass.context, spec.kind, weights.experts[static_cast<size_t>(e)],
            s.x.slice_rows(begin, n), s.inner.slice_rows(begin, n), s.y.slice_rows(begin, n),
            s.experts_out.slice_rows(begin, n));
  }
  ops::sum_rows(pass.context, s.experts_out, s.row, s.weights, spec.top_k, out);
}

}  // namespace

size_t scratch_bytes(const MoeSpec& spec, DType activation, int64_t n_tokens) {
  Arena arena(nullptr);
  Scratch(arena, spec, activation, n_tokens);
  return arena.used();
}

void run_moe(const Pass& pass, const MoeSpec& spec, const MoeWeights& weights, ops::ConstMatrix in,
             ops::Matrix out) {
  Arena arena(pass.scratch);
  const Scratch s(arena, spec, pass.activation, pass.n_tokens);

  weights.router.run(pass.context, in, s.logits);
  ops::route(pass.context, router_of(spec, weights.router_bias.as<float>()),
             s.logits.slice_cols(0, spec.n_experts), s.experts, s.weights);
  if (spec.latent > 0) {
    weights.latent_in.run(pass.context, in, s.latent);
    run_experts(pass, spec, weights, s, s.latent, s.sum);
    ops::copy(pass.context, s.sum, s.latent);
    weights.latent_out.run(pass.context, s.latent, out);
  } else {
    run_experts(pass, spec, weights, s, in, out);
  }
  if (spec.shared_ff == 0) return;
  run_mlp(pass.context, spec.kind, weights.shared, in, s.shared_inner, s.shared_y, s.shared_out);
  if (spec.shared_gate) {
    ops::add_gated(pass.context, s.logits.slice_cols(spec.n_experts, 1), s.shared_out, out);
  } else {
    ops::residual_add(pass.context, out, s.shared_out);
  }
}

}  // namespace replayssm
