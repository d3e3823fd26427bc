// The walk over a model's tensors, written once: what each mixer reads, part by part. A backend's
// sink takes the parts into its memory; with a sink that counts it tells what they take.
//
//   Sink::Types
//   bool has(name)
//   bool is_tiled(name)                                   an output projection of a GDN layer
//   Linear linear(span<const MatrixPart>, LinearUse)      parts stacked along the outputs
//   Experts experts(n_experts, in, down)                  in(e), down(e): expert e's parts
//   const float* vector(name, n, VectorKind, width)       fp32; null from a sink that counts
//   void tables(description, weights)                     embedding and head
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "model/weight_files.h"
#include "model/weights.h"

namespace replayssm {

template <typename Sink>
class WeightWalk {
 public:
  using Types = typename Sink::Types;

  WeightWalk(const ModelDescription& model, Sink& sink) : model_(model), sink_(sink) {}

  ModelWeights<Types> run() {
    ModelWeights<Types> out;
    sink_.tables(model_, out);
    out.final_norm = norm(model_.names.final_norm);
    for (size_t i = 0; i < model_.spec.layers.size(); ++i) {
      auto& mixers = out.mixers.emplace_back();
      for (size_t j = 0; j < model_.spec.layers[i].mixers.size(); ++j) {
        mixers.push_back(mixer(model_.spec.layers[i].mixers[j], model_.names.mixers[i][j]));
      }
    }
    if (model_.spec.mtp) out.mtp = mtp(*model_.spec.mtp, *model_.names.mtp);
    return out;
  }

 private:
  using Linear = typename Types::Linear;
  struct Part {
    const std::string& name;
    int64_t rows;
  };

  int64_t hidden() const { return model_.spec.hidden; }
  const float* norm(const std::string& name) {
    return sink_.vector(
        name, hidden(),
        model_.spec.zero_centred_norms ? VectorKind::kZeroCentredNorm : VectorKind::kNorm);
  }
  MixerWeights<Types> mixer(const MixerSpec& spec, const MixerNames& names) {
    MixerWeights<Types> out;
    out.norm = norm(names.norm);
    std::visit(
        [&](const auto& kind) {
          using Kind = MixerKind<std::decay_t<decltype(kind)>>;
          out.mixer = take(kind, std::get<typename Kind::Names>(names.mixer));
        },
        spec);
    return out;
  }
  MtpWeights<Types> mtp(const MtpSpec& spec, const MtpNames& names) {
    MtpWeights<Types> out;
    out.fc = linear({{names.fc, hidden()}}, 2 * hidden());
    out.norm_embedding = norm(names.norm_embedding);
    out.norm_hidden = norm(names.norm_hidden);
    out.final_norm = norm(names.final_norm);
    out.attention = mixer(spec.attention, names.attention);
    out.feed_forward = mixer(spec.feed_forward, names.feed_forward);
    return out;
  }
  static MatrixPart whole(const Part& part, int64_t n_in) {
    return {part.name, part.rows, n_in, 0, part.rows};
  }
  Linear linear(std::initializer_list<Part> parts, int64_t n_in,
                LinearUse use = LinearUse::kLayer) {
    std::vector<MatrixPart> all;
    for (const Part& part : parts) all.push_back(whole(part, n_in));
    return sink_.linear(all, use);
  }

  Mamba2Weights<Types> take(const Mamba2Spec& spec, const Mamba2Names& names) {
    const int64_t zx = spec.inner() + spec.conv_channels(), heads = spec.n_heads;
    Mamba2Weights<Types> out;
    const MatrixPart zx_rows{names.in_proj, zx + heads, hidden(), 0, zx};
    const MatrixPart dt_rows{names.in_proj, zx + heads, hidden(), zx, heads};
    out.in_zx = sink_.linear({&zx_rows, 1}, LinearUse::kLayer);
    out.in_dt = sink_.linear({&dt_rows, 1}, LinearUse::kLayer);
    out.conv_weight = sink_.vector(names.conv_weight, spec.conv_channels() * spec.conv_width,
                                   VectorKind::kConvWeight, spec.conv_width);
    if (spec.conv_bias) {
      out.conv_bias = sink_.vector(names.conv_bias, spec.conv_channels(), VectorKind::kBias);
    }
    out.a_log = sink_.vector(names.a_log, heads, VectorKind::kALog);
    out.skip = sink_.vector(names.skip, heads, VectorKind::kSkip);
    out.dt_bias = sink_.vector(names.dt_bias, heads, VectorKind::kDtBias);
    out.norm = sink_.vector(names.norm, spec.inner(), VectorKind::kNorm);
    out.out = linear({{names.out_proj, hidden()}}, spec.inner());
    return out;
  }

  // The file keeps rows by group; each part's rows of all groups come together, in the order of the
  // lengths within a group.
  Linear ungrouped(const Part& all, int64_t n_groups, std::initializer_list<int64_t> lengths,
                   LinearUse use) {
    std::vector<MatrixPart> parts;
    int64_t at = 0;
    for (const int64_t length : lengths) {
      for (int64_t g = 0; g < n_groups; ++g) {
        parts.push_back({all.name, all.rows, hidden(), g * (all.rows / n_groups) + at, length});
      }
      at += length;
    }
    return sink_.linear(parts, use);
  }

  GdnWeights<Types> take(const GdnSpec& spec, const GdnNames& names) {
    const int64_t heads = spec.n_value_heads, share = heads / spec.n_key_heads;
    const int64_t channels = spec.conv_channels(), values = share * spec.value_dim;
    GdnWeights<Types> out;
    if (names.in_proj_qkvz.empty()) {
      out.in_qkvz =
          linear({{names.in_proj_qkv, channels}, {names.in_proj_z, spec.value_size()}}, hidden());
      out.in_ba =
          linear({{names.in_proj_b, heads}, {names.in_proj_a, heads}}, hidden(), LinearUse::kGate);
    } else {
      out.in_qkvz = ungrouped({names.in_proj_qkvz, channels + spec.value_size()}, spec.n_key_heads,
                              {spec.key_dim, spec.key_dim, values, values}, LinearUse::kLayer);
      out.in_ba = ungrouped({names.in_proj_ba, 2 * heads}, spec.n_key_heads, {share, share},
                            LinearUse::kGate);
    }
    out.conv_weight = sink_.vector(names.conv_weight, channels * spec.conv_width,
                                   VectorKind::kConvWeight, spec.conv_width);
    out.a_log = sink_.vector(names.a_log, heads, VectorKind::kALog);
    out.dt_bias = sink_.vector(names.dt_bias, heads, VectorKind::kDtBias);
    out.norm = sink_.vector(names.norm, spec.value_dim, VectorKind::kNorm);
    out.out = linear({{names.out_proj, hidden()}}, spec.value_size());
    out.tiled = sink_.is_tiled(names.out_proj);
    return out;
  }

  AttentionWeights<Types> take(const AttentionSpec& spec, const AttentionNames& names) {
    AttentionWeights<Types> out;
    const int64_t q_rows = spec.q_size() * (spec.output_gate ? 2 : 1);
    out.in_qkv = linear(
        {{names.q_proj, q_rows}, {names.k_proj, spec.kv_size()}, {names.v_proj, spec.kv_size()}},
        hidden());
    if (spec.qk_norm) {
      const VectorKind kind =
          spec.qk_norm_zero_centred ? VectorKind::kZeroCentredNorm : VectorKind::kNorm;
      out.q_norm = sink_.vector(names.q_norm, spec.head_dim, kind);
      out.k_norm = sink_.vector(names.k_norm, spec.head_dim, kind);
    }
    out.out = linear({{names.o_proj, hidden()}}, spec.q_size());
    return out;
  }

  MlpWeights<Types> take(const MlpSpec& spec, const MlpNames& names) {
    MlpWeights<Types> out;
    if (spec.kind == MlpKind::kGatedSilu) {
      out.in = linear({{names.gate_proj, spec.ff}, {names.up_proj, spec.ff}}, hidden());
    } else {
      out.in = linear({{names.up_proj, spec.ff}}, hidden());
    }
    out.down = linear({{names.down_proj, hidden()}}, spec.ff);
    return out;
  }

  typename Types::Experts experts(const MoeSpec& spec, const MoeNames& names) {
    const int64_t width = spec.expert_width(), n = spec.n_experts;
    const bool gated = spec.kind == MlpKind::kGatedSilu;
    const int64_t rows = gated ? 2 * spec.ff : spec.ff;
    if (!names.fused_in.empty() && (sink_.has(names.fused_in) || sink_.has(names.fused_down))) {
      const auto of_stack = [n](const std::string& name, int64_t each, int64_t n_in, int64_t e) {
        return std::vector<MatrixPart>{{name, n * each, n_in, e * each, each, n}};
      };
      return sink_.experts(
          spec.n_experts, [&](int64_t e) { return of_stack(names.fused_in, rows, width, e); },
          [&](int64_t e) { return of_stack(names.fused_down, width, spec.ff, e); });
    }
    const auto part = [&](int64_t e, const char* name, int64_t n_out, int64_t n_in) {
      return MatrixPart{concat(names.experts, e, ".", name), n_out, n_in, 0, n_out};
    };
    return sink_.experts(
        spec.n_experts,
        [&](int64_t e) {
          std::vector<MatrixPart> parts;
          if (gated) parts.push_back(part(e, "gate_proj.weight", spec.ff, width));
          parts.push_back(part(e, "up_proj.weight", spec.ff, width));
          return parts;
        },
        [&](int64_t e) {
          return std::vector<MatrixPart>{part(e, "down_proj.weight", width, spec.ff)};
        });
  }

  MoeWeights<Types> take(const MoeSpec& spec, const MoeNames& names) {
    MoeWeights<Types> out;
    out.router = spec.shared_gate
                     ? linear({{names.router, spec.n_experts}, {names.shared_gate, 1}}, hidden(),
                              LinearUse::kRouter)
                     : linear({{names.router, spec.n_experts}}, hidden(), LinearUse::kRouter);
    if (spec.router_bias) {
      out.router_bias = sink_.vector(names.router_bias, spec.n_experts, VectorKind::kBias);
    }
    out.experts = experts(spec, names);
    if (spec.shared_ff > 0) out.shared = take(MlpSpec{spec.kind, spec.shared_ff}, names.shared);
    if (spec.latent > 0) {
      out.latent_in = linear({{names.latent_in, spec.latent}}, hidden());
      out.latent_out = linear({{names.latent_out, hidden()}}, spec.latent);
    }
    return out;
  }

  const ModelDescription& model_;
  Sink& sink_;
};

template <typename Sink>
ModelWeights<typename Sink::Types> take_weights(const ModelDescription& model, Sink& sink) {
  return WeightWalk<Sink>(model, sink).run();
}

}  // namespace replayssm
