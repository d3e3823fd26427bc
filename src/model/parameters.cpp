#include "model/parameters.h"

namespace replayssm {
namespace {

int64_t mlp(MlpKind kind, int64_t width, int64_t ff) {
  return (kind == MlpKind::kGatedSilu ? 3 : 2) * width * ff;
}

struct Counter {
  int64_t hidden;

  ParameterCount operator()(const Mamba2Spec& m) const {
    const int64_t projections = hidden * (2 * m.inner() + m.conv_channels() + m.n_heads);
    return dense(projections, m.conv_channels() * (m.conv_width + (m.conv_bias ? 1 : 0)) +
                                  3 * m.n_heads + m.inner());
  }
  ParameterCount operator()(const GdnSpec& g) const {
    const int64_t projections = hidden * (g.conv_channels() + 2 * g.value_size());
    return dense(projections, 2 * hidden * g.n_value_heads + g.conv_channels() * g.conv_width +
                                  2 * g.n_value_heads + g.value_dim);
  }
  ParameterCount operator()(const AttentionSpec& a) const {
    const int64_t projections = hidden * (a.q_size() * (a.output_gate ? 3 : 2) + 2 * a.kv_size());
    return dense(projections, a.qk_norm ? 2 * a.head_dim : 0);
  }
  ParameterCount operator()(const MlpSpec& m) const { return dense(mlp(m.kind, hidden, m.ff), 0); }
  ParameterCount operator()(const MoeSpec& m) const {
    const int64_t expert = mlp(m.kind, m.expert_width(), m.ff);
    const int64_t all = mlp(m.kind, hidden, m.shared_ff) + 2 * hidden * m.latent;
    ParameterCount out =
        dense(all, m.n_experts * (hidden + (m.router_bias ? 1 : 0)) + (m.shared_gate ? hidden : 0));
    out.total += m.n_experts * expert;
    out.active += m.top_k * expert;
    out.projections += m.n_experts * expert;
    return out;
  }

  static ParameterCount dense(int64_t projections, int64_t rest) {
    return {projections + rest, projections + rest, projections};
  }
};

}  // namespace

ParameterCount count_parameters(const MixerSpec& mixer, int64_t hidden) {
  return std::visit(Counter{hidden}, mixer);
}

ParameterCount count_parameters(const ModelSpec& spec) {
  const int64_t table = spec.vocab * spec.hidden;
  ParameterCount out{table * (spec.tied ? 1 : 2) + spec.hidden, table + spec.hidden, 0};
  for (const auto& layer : spec.layers) {
    for (const auto& mixer : layer.mixers) {
      const ParameterCount n = count_parameters(mixer, spec.hidden);
      out.total += spec.hidden + n.total;
      out.active += spec.hidden + n.active;
      out.projections += n.projections;
    }
  }
  return out;
}

ParameterCount count_parameters(const MtpSpec& mtp, int64_t hidden) {
  const int64_t fc = 2 * hidden * hidden, norms = 5 * hidden;
  ParameterCount out{fc + norms, fc + norms, fc};
  for (const MixerSpec& mixer : {MixerSpec(mtp.attention), mtp.feed_forward}) {
    const ParameterCount n = count_parameters(mixer, hidden);
    out.total += n.total;
    out.active += n.active;
    out.projections += n.projections;
  }
  return out;
}

int64_t weight_bytes(const ParameterCount& count, bool fp8) {
  return 2 * count.total - (fp8 ? count.projections : 0);
}

}  // namespace replayssm
