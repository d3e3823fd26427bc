#include "model/cuda/weights_cuda.h"

#include "core/error.h"

namespace replayssm {
namespace {

using ops::cuda::LinearCuda;
using ops::cuda::WeightType;

int64_t n_scales(WeightType type, int64_t n_out, int64_t n_in) {
  using ops::cuda::kFp8Block;
  if (type == WeightType::kFp8Row) return n_out;
  return (n_out + kFp8Block - 1) / kFp8Block * ops::cuda::fp8_scale_stride(n_in);
}

struct Part {
  const std::string& name;
  int64_t rows;
};

class Taker {
 public:
  Taker(WeightType type, DeviceArena& arena, WeightSource& source)
      : type_(type), arena_(arena), source_(source) {}

  // Parts are stacked along the outputs.
  LinearCuda linear(std::initializer_list<Part> parts, int64_t n_in) {
    return linear(parts, n_in, type_);
  }
  LinearCuda linear(std::initializer_list<Part> parts, int64_t n_in, WeightType type) {
    LinearCuda out;
    out.type = type;
    out.n_in = n_in;
    for (const Part& part : parts) out.n_out += part.rows;
    auto* to = static_cast<char*>(arena_.take("weights", weight_bytes(out.type, out.n_out, n_in)));
    out.weight = to;
    for (const Part& part : parts) {
      source_.matrix(part.name, part.rows, n_in, type, to);
      if (to != nullptr) to += weight_bytes(out.type, part.rows, n_in);
    }
    if (type != WeightType::kBF16) {
      const int64_t n = n_scales(type, out.n_out, n_in);
      auto* scales = arena_.take_as<float>("weights", n);
      source_.scales(n, n_in, scales);
      out.scales = scales;
    }
    return out;
  }

  const float* vector(const std::string& name, int64_t n, VectorKind kind, int32_t width = 1) {
    auto* to = arena_.take_as<float>("weights", n);
    source_.vector(name, n, kind, width, to);
    return to;
  }

 private:
  WeightType type_;
  DeviceArena& arena_;
  WeightSource& source_;
};

// Rows [first, first + n) of a weight.
LinearCuda rows_of(const LinearCuda& all, int64_t first, int64_t n) {
  REPLAYSSM_CHECK(all.type != WeightType::kFp8Block, "rows of blocks");
  LinearCuda out = all;
  if (all.weight != nullptr) {
    out.weight =
        static_cast<const char*>(all.weight) + ops::cuda::weight_bytes(all.type, first, all.n_in);
  }
  if (all.scales != nullptr) out.scales = all.scales + first;
  out.n_out = n;
  return out;
}

Mamba2WeightsCuda take(const Mamba2Spec& spec, const Mamba2Names& names, const ModelSpec& model,
                       Taker& taker) {
  const int64_t zx = spec.inner() + spec.conv_channels(), heads = spec.n_heads;
  Mamba2WeightsCuda out;
  const LinearCuda in = taker.linear({{names.in_proj, zx + heads}}, model.hidden);
  out.in_zx = rows_of(in, 0, zx);
  out.in_dt = rows_of(in, zx, heads);
  out.conv_weight = taker.vector(names.conv_weight, spec.conv_channels() * spec.conv_width,
                                 VectorKind::kConvWeight, spec.conv_width);
  if (spec.conv_bias) {
    out.conv_bias = taker.vector(names.conv_bias, spec.conv_channels(), VectorKind::kBias);
  }
  out.a_log = taker.vector(names.a_log, heads, VectorKind::kALog);
  out.skip = taker.vector(names.skip, heads, VectorKind::kSkip);
  out.dt_bias = taker.vector(names.dt_bias, heads, VectorKind::kDtBias);
  out.norm = taker.vector(names.norm, spec.inner(), VectorKind::kNorm);
  out.out = taker.linear({{names.out_proj, model.hidden}}, spec.inner());
  return out;
}

GdnWeightsCuda take(const GdnSpec& spec, const GdnNames& names, const ModelSpec& model,
                    Taker& taker) {
  const int64_t heads = spec.n_value_heads;
  GdnWeightsCuda out;
  out.in_qkvz = taker.linear(
      {{names.in_proj_qkv, spec.conv_channels()}, {names.in_proj_z, spec.value_size()}},
      model.hidden);
  out.in_ba = taker.linear({{names.in_proj_b, heads}, {names.in_proj_a, heads}}, model.hidden,
                           WeightType::kBF16);
  out.conv_weight = taker.vector(names.conv_weight, spec.conv_channels() * spec.conv_width,
                                 VectorKind::kConvWeight, spec.conv_width);
  out.a_log = taker.vector(names.a_log, heads, VectorKind::kALog);
  out.dt_bias = taker.vector(names.dt_bias, heads, VectorKind::kDtBias);
  out.norm = taker.vector(names.norm, spec.value_dim, VectorKind::kNorm);
  out.out = taker.linear({{names.out_proj, model.hidden}}, spec.value_size());
  return out;
}

AttentionWeightsCuda take(const AttentionSpec& spec, const AttentionNames& names,
                          const ModelSpec& model, Taker& taker) {
  AttentionWeightsCuda out;
  const int64_t q_rows = spec.q_size() * (spec.output_gate ? 2 : 1);
  out.in_qkv = taker.linear(
      {{names.q_proj, q_rows}, {names.k_proj, spec.kv_size()}, {names.v_proj, spec.kv_size()}},
      model.hidden);
  if (spec.qk_norm) {
    const VectorKind kind =
        spec.qk_norm_zero_centred ? VectorKind::kZeroCentredNorm : VectorKind::kNorm;
    out.q_norm = taker.vector(names.q_norm, spec.head_dim, kind);
    out.k_norm = taker.vector(names.k_norm, spec.head_dim, kind);
  }
  out.out = taker.linear({{names.o_proj, model.hidden}}, spec.q_size());
  return out;
}

MlpWeightsCuda take(const MlpSpec& spec, const MlpNames& names, const ModelSpec& model,
                    Taker& taker) {
  MlpWeightsCuda out;
  if (spec.kind == MlpKind::kGatedSilu) {
    out.in = taker.linear({{names.gate_proj, spec.ff}, {names.up_proj, spec.ff}}, model.hidden);
  } else {
    out.in = taker.linear({{names.up_proj, spec.ff}}, model.hidden);
  }
  out.down = taker.linear({{names.down_proj, model.hidden}}, spec.ff);
  return out;
}

// The names are of the same alternative as the spec.
MixerWeightsCuda take_mixer(const MixerSpec& spec, const MixerNames& names, const ModelSpec& model,
                            VectorKind norm, Taker& taker) {
  MixerWeightsCuda out;
  out.norm = taker.vector(names.norm, model.hidden, norm);
  if (const auto* mamba = std::get_if<Mamba2Spec>(&spec)) {
    out.mixer = take(*mamba, std::get<Mamba2Names>(names.mixer), model, taker);
  } else if (const auto* gdn = std::get_if<GdnSpec>(&spec)) {
    out.mixer = take(*gdn, std::get<GdnNames>(names.mixer), model, taker);
  } else if (const auto* attention = std::get_if<AttentionSpec>(&spec)) {
    out.mixer = take(*attention, std::get<AttentionNames>(names.mixer), model, taker);
  } else {
    out.mixer = take(std::get<MlpSpec>(spec), std::get<MlpNames>(names.mixer), model, taker);
  }
  return out;
}

}  // namespace

ModelWeightsCuda take_weights(const ModelDescription& model, ops::cuda::WeightType type,
                              DeviceArena& arena, WeightSource& source) {
  const ModelSpec& spec = model.spec;
  const VectorKind norm =
      spec.zero_centred_norms ? VectorKind::kZeroCentredNorm : VectorKind::kNorm;
  Taker taker(type, arena, source);
  ModelWeightsCuda out;
  const LinearCuda table =
      taker.linear({{model.names.embedding, spec.vocab}}, spec.hidden, WeightType::kBF16);
  out.embedding = table.weight;
  out.head =
      spec.tied ? table
                : taker.linear({{model.names.lm_head, spec.vocab}}, spec.hidden, WeightType::kBF16);
  out.final_norm = taker.vector(model.names.final_norm, spec.hidden, norm);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    auto& mixers = out.mixers.emplace_back();
    for (size_t j = 0; j < spec.layers[i].mixers.size(); ++j) {
      mixers.push_back(
          take_mixer(spec.layers[i].mixers[j], model.names.mixers[i][j], spec, norm, taker));
    }
  }
  source.finish();
  return out;
}

}  // namespace replayssm
