#include "model/mixers/mixers.h"
#include "ops/elementwise.h"

namespace replayssm {
namespace {

struct Scratch {
  ops::Matrix in;  // gate | up, or up
  ops::Matrix y;

  Scratch(Arena& arena, const MlpSpec& spec, DType activation, int64_t n_tokens)
      : in(arena.take(activation, n_tokens,
                      spec.kind == MlpKind::kGatedSilu ? 2 * spec.ff : spec.ff)),
        y(arena.take(activation, n_tokens, spec.ff)) {}
};

}  // namespace

size_t scratch_bytes(const MlpSpec& spec, DType activation, int64_t n_tokens) {
  Arena arena(nullptr);
  Scratch(arena, spec, activation, n_tokens);
  return arena.used();
}

void run_mlp(const ops::Context& context, MlpKind kind, const MlpWeights& weights,
             ops::ConstMatrix x, ops::Matrix inner, ops::Matrix y, ops::Matrix out) {
  weights.in.run(context, x, inner);
  switch (kind) {
    case MlpKind::kGatedSilu:
      ops::silu_mul(context, inner.slice_cols(0, y.cols), inner.slice_cols(y.cols, y.cols), y);
      break;
    case MlpKind::kRelu2:
      ops::relu2(context, inner, y);
      break;
  }
  weights.down.run(context, y, out);
}

void run_mlp(const Pass& pass, const MlpSpec& spec, const MlpWeights& weights, ops::ConstMatrix in,
             ops::Matrix out) {
  Arena arena(pass.scratch);
  const Scratch s(arena, spec, pass.activation, pass.n_tokens);
  run_mlp(pass.context, spec.kind, weights, in, s.in, s.y, out);
}

}  // namespace replayssm
