#include "model/parameters.h"

namespace replayssm {
namespace {

int64_t mlp(MlpKind kind, int64_t width, int64_t ff) {
  return (kind == MlpKind::kGatedSilu ? 3 : 2) * width * ff;
}

struct Counter {
  int64_t hidden;

  ParameterCount operator()(const Mamba2Spec& m) const {
    return always(hidden * (m.inner() + m.conv_channels() + m.n_heads) +
                  m.conv_channels() * (m.conv_width + (m.conv_bias ? 1 : 0)) + 3 * m.n_heads +
                  m.inner() + m.inner() * hidden);
  }
  ParameterCount operator()(const GdnSpec& g) const {
    return always(hidden * (g.conv_channels() + g.value_size() + 2 * g.n_value_heads) +
                  g.conv_channels() * g.conv_width + 2 * g.n_value_heads + g.value_dim +
                  g.value_size() * hidden);
  }
  ParameterCount operator()(const AttentionSpec& a) const {
    return always(hidden * (a.q_size() * (a.output_gate ? 2 : 1) + 2 * a.kv_size()) +
                  (a.qk_norm ? 2 * a.head_dim : 0) + a.q_size() * hidden);
  }
  ParameterCount operator()(const MlpSpec& m) const { return always(mlp(m.kind, hidden, m.ff)); }
  ParameterCount operator()(const MoeSpec& m) const {
    const int64_t expert = mlp(m.kind, m.expert_width(), m.ff);
    const int64_t rest = m.n_experts * (hidden + (m.router_bias ? 1 : 0)) +
                         mlp(m.kind, hidden, m.shared_ff) + (m.shared_gate ? hidden : 0) +
                         2 * hidden * m.latent;
    return {rest + m.n_experts * expert, rest + m.top_k * expert};
  }

  static ParameterCount always(int64_t n) { return {n, n}; }
};

}  // namespace

ParameterCount count_parameters(const MixerSpec& mixer, int64_t hidden) {
  return std::visit(Counter{hidden}, mixer);
}

ParameterCount count_parameters(const ModelSpec& spec) {
  const int64_t table = spec.vocab * spec.hidden;
  ParameterCount out{table * (spec.tied ? 1 : 2) + spec.hidden, table + spec.hidden};
  for (const auto& layer : spec.layers) {
    for (const auto& mixer : layer.mixers) {
      const ParameterCount n = count_parameters(mixer, spec.hidden);
      out.total += spec.hidden + n.total;
      out.active += spec.hidden + n.active;
    }
  }
  return out;
}

}  // namespace replayssm
