#include "model/cuda/weights_cuda.h"

#include "core/error.h"

namespace replayssm {
namespace {

using ops::cuda::LinearCuda;
using ops::cuda::WeightType;

constexpr int64_t kFp8Multiple = 16;  // of inputs and outputs, which FP8 products need

struct Part {
  const std::string& name;
  int64_t rows;
};

// Rows of a whole tensor.
MatrixPart whole(const std::string& name, int64_t rows, int64_t cols) {
  return {name, rows, cols, 0, rows};
}

class Taker {
 public:
  Taker(DeviceArena& arena, WeightSource& source) : arena_(arena), source_(source) {}

  // Parts are stacked along the outputs, as BF16 or as the source would hold them.
  LinearCuda linear(std::initializer_list<Part> parts, int64_t n_in) {
    return linear(stacked(parts, n_in), /*any=*/true);
  }
  LinearCuda linear_bf16(std::initializer_list<Part> parts, int64_t n_in) {
    return linear(stacked(parts, n_in), /*any=*/false);
  }
  // The parts and rows of zeros up to a multiple of kPaddedOutputs.
  LinearCuda linear_padded(std::initializer_list<Part> parts, int64_t n_in) {
    return linear(stacked(parts, n_in), /*any=*/false, kPaddedOutputs);
  }
  // To be cut at row `cut`.
  LinearCuda linear_to_cut(const Part& part, int64_t n_in, int64_t cut) {
    const bool fp8 = source_.type_of(part.name) == WeightType::kFp8Row;
    return linear(stacked({part}, n_in), /*any=*/fp8 && cut % kFp8Multiple == 0);
  }
  LinearCuda linear(const std::vector<MatrixPart>& parts, bool any, int64_t padded = 1) {
    LinearCuda out;
    out.type = any ? type_of(parts) : WeightType::kBF16;
    out.n_in = parts[0].cols;
    for (const MatrixPart& part : parts) out.n_out += part.n_rows;
    const int64_t there = out.n_out;
    out.n_out = (out.n_out + padded - 1) / padded * padded;
    char* to = take_weight(out, 1);
    float* scales = take_scales(out, 1);
    fill(parts, out.type, to, scales);
    if (to != nullptr && out.n_out > there) {
      const int64_t begin = weight_bytes(out.type, there, out.n_in);
      const int64_t end = weight_bytes(out.type, out.n_out, out.n_in);
      check_cuda(cudaMemset(to + begin, 0, static_cast<size_t>(end - begin)), "cudaMemset");
    }
    out.weight = to;
    out.scales = scales;
    return out;
  }

  // All experts' weights, each of these parts.
  ops::cuda::ExpertsCuda experts(const std::string& prefix, int32_t n_experts,
                                 std::initializer_list<Part> parts, int64_t n_in) {
    ops::cuda::ExpertsCuda out;
    out.n_experts = n_experts;
    LinearCuda& stack = out.stack;
    stack.n_in = n_in;
    for (const Part& part : parts) stack.n_out += part.rows;
    const auto parts_of = [&](int32_t e) {
      std::vector<MatrixPart> all;
      for (const Part& part : parts) {
        all.push_back(whole(concat(prefix, e, ".", part.name), part.rows, n_in));
      }
      return all;
    };
    stack.type = type_of(parts_of(0));
    for (int32_t e = 1; e < n_experts; ++e) {
      if (type_of(parts_of(e)) != stack.type) stack.type = WeightType::kBF16;
    }
    char* to = take_weight(stack, n_experts);
    float* scales = take_scales(stack, n_experts);
    stack.weight = to;
    stack.scales = scales;
    for (int32_t e = 0; to != nullptr && e < n_experts; ++e) {
      fill(parts_of(e), stack.type, to, scales);
      to += weight_bytes(stack.type, stack.n_out, n_in);
      if (scales != nullptr) scales += n_scales(stack.type, stack.n_out, n_in);
    }
    return out;
  }
  // All in one tensor.
  ops::cuda::ExpertsCuda experts(const std::string& name, int32_t n_experts, int64_t n_out,
                                 int64_t n_in) {
    const int64_t rows = n_experts * n_out;
    const std::vector<MatrixPart> whole_stack = {{name, rows, n_in, 0, rows, n_experts}};
    const LinearCuda all = linear(whole_stack, /*any=*/false);
    return {{all.weight, all.type, n_out, n_in, nullptr}, n_experts};
  }

  bool has(const std::string& name) const { return source_.has(name); }

  const float* vector(const std::string& name, int64_t n, VectorKind kind, int32_t width = 1) {
    auto* to = arena_.take_as<float>("weights", n);
    if (to != nullptr) source_.vector(name, n, kind, width, to);
    return to;
  }

 private:
  static std::vector<MatrixPart> stacked(std::initializer_list<Part> parts, int64_t n_in) {
    std::vector<MatrixPart> out;
    for (const Part& part : parts) out.push_back(whole(part.name, part.rows, n_in));
    return out;
  }

  // One for all parts; blocks of scales must not be cut.
  WeightType type_of(const std::vector<MatrixPart>& parts) const {
    const WeightType type = source_.type_of(parts[0].name);
    int64_t rows = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      const bool cut = parts[i].first % ops::cuda::kFp8Block != 0 ||
                       (!last && parts[i].n_rows % ops::cuda::kFp8Block != 0);
      if (source_.type_of(parts[i].name) != type || (type == WeightType::kFp8Block && cut)) {
        return WeightType::kBF16;
      }
      rows += parts[i].n_rows;
    }
    const bool fits = parts[0].cols % kFp8Multiple == 0 && rows % kFp8Multiple == 0;
    return fits ? type : WeightType::kBF16;
  }

  char* take_weight(const LinearCuda& w, int64_t n) {
    return static_cast<char*>(arena_.take("weights", n * weight_bytes(w.type, w.n_out, w.n_in)));
  }
  float* take_scales(const LinearCuda& w, int64_t n) {
    if (w.type == WeightType::kBF16) return nullptr;
    return arena_.take_as<float>("weights", n * n_scales(w.type, w.n_out, w.n_in));
  }

  // Null from an arena that counts.
  void fill(const std::vector<MatrixPart>& parts, WeightType type, char* to, float* scales) {
    if (to == nullptr) return;
    for (const MatrixPart& part : parts) {
      source_.matrix(part, type, to, scales);
      to += weight_bytes(type, part.n_rows, part.cols);
      if (scales != nullptr) scales += n_scales(type, part.n_rows, part.cols);
    }
  }

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
  const LinearCuda in = taker.linear_to_cut({names.in_proj, zx + heads}, model.hidden, zx);
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

// Rows that stand together by group, of the given lengths within a group, each part's all in a row.
std::vector<MatrixPart> ungrouped(const MatrixPart& all, int64_t n_groups,
                                  std::initializer_list<int64_t> lengths) {
  std::vector<MatrixPart> out;
  int64_t at = 0;
  for (const int64_t length : lengths) {
    for (int64_t g = 0; g < n_groups; ++g) {
      MatrixPart part = all;
      part.first = g * (all.rows / n_groups) + at;
      part.n_rows = length;
      out.push_back(part);
    }
    at += length;
  }
  return out;
}

void take_inputs(const GdnSpec& spec, const GdnNames& names, const ModelSpec& model, Taker& taker,
                 GdnWeightsCuda& out) {
  const int64_t heads = spec.n_value_heads, share = heads / spec.n_key_heads;
  if (names.in_proj_qkvz.empty()) {
    out.in_qkvz = taker.linear(
        {{names.in_proj_qkv, spec.conv_channels()}, {names.in_proj_z, spec.value_size()}},
        model.hidden);
    out.in_ba =
        taker.linear_bf16({{names.in_proj_b, heads}, {names.in_proj_a, heads}}, model.hidden);
    return;
  }
  const MatrixPart qkvz =
      whole(names.in_proj_qkvz, spec.conv_channels() + spec.value_size(), model.hidden);
  const int64_t values = share * spec.value_dim;
  out.in_qkvz =
      taker.linear(ungrouped(qkvz, spec.n_key_heads, {spec.key_dim, spec.key_dim, values, values}),
                   /*any=*/true);
  out.in_ba = taker.linear(
      ungrouped(whole(names.in_proj_ba, 2 * heads, model.hidden), spec.n_key_heads, {share, share}),
      /*any=*/false);
}

GdnWeightsCuda take(const GdnSpec& spec, const GdnNames& names, const ModelSpec& model,
                    Taker& taker) {
  const int64_t heads = spec.n_value_heads;
  GdnWeightsCuda out;
  take_inputs(spec, names, model, taker, out);
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

void take_experts(const MoeSpec& spec, const MoeNames& names, Taker& taker, MoeWeightsCuda& out) {
  static const std::string kGate = "gate_proj.weight", kUp = "up_proj.weight",
                           kDown = "down_proj.weight";
  const int64_t width = spec.expert_width();
  const int32_t n = spec.n_experts;
  const bool gated = spec.kind == MlpKind::kGatedSilu;
  if (!names.fused_in.empty() && taker.has(names.fused_in)) {
    out.in = taker.experts(names.fused_in, n, gated ? 2 * spec.ff : spec.ff, width);
    out.down = taker.experts(names.fused_down, n, width, spec.ff);
    return;
  }
  out.in = gated ? taker.experts(names.experts, n, {{kGate, spec.ff}, {kUp, spec.ff}}, width)
                 : taker.experts(names.experts, n, {{kUp, spec.ff}}, width);
  out.down = taker.experts(names.experts, n, {{kDown, width}}, spec.ff);
}

MoeWeightsCuda take(const MoeSpec& spec, const MoeNames& names, const ModelSpec& model,
                    Taker& taker) {
  MoeWeightsCuda out;
  out.router = spec.shared_gate
                   ? taker.linear_padded({{names.router, spec.n_experts}, {names.shared_gate, 1}},
                                         model.hidden)
                   : taker.linear_padded({{names.router, spec.n_experts}}, model.hidden);
  if (spec.router_bias) {
    out.router_bias = taker.vector(names.router_bias, spec.n_experts, VectorKind::kBias);
  }
  take_experts(spec, names, taker, out);
  if (spec.shared_ff > 0) {
    out.shared = take(MlpSpec{spec.kind, spec.shared_ff}, names.shared, model, taker);
  }
  if (spec.latent > 0) {
    out.latent_in = taker.linear({{names.latent_in, spec.latent}}, model.hidden);
    out.latent_out = taker.linear({{names.latent_out, model.hidden}}, spec.latent);
  }
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
  } else if (const auto* mlp = std::get_if<MlpSpec>(&spec)) {
    out.mixer = take(*mlp, std::get<MlpNames>(names.mixer), model, taker);
  } else {
    out.mixer = take(std::get<MoeSpec>(spec), std::get<MoeNames>(names.mixer), model, taker);
  }
  return out;
}

}  // namespace

ModelWeightsCuda take_weights(const ModelDescription& model, DeviceArena& arena,
                              WeightSource& source) {
  const ModelSpec& spec = model.spec;
  const VectorKind norm =
      spec.zero_centred_norms ? VectorKind::kZeroCentredNorm : VectorKind::kNorm;
  Taker taker(arena, source);
  ModelWeightsCuda out;
  const LinearCuda table = taker.linear_bf16({{model.names.embedding, spec.vocab}}, spec.hidden);
  out.embedding = table.weight;
  out.head =
      spec.tied ? table : taker.linear_bf16({{model.names.lm_head, spec.vocab}}, spec.hidden);
  out.final_norm = taker.vector(model.names.final_norm, spec.hidden, norm);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    auto& mixers = out.mixers.emplace_back();
    for (size_t j = 0; j < spec.layers[i].mixers.size(); ++j) {
      mixers.push_back(
          take_mixer(spec.layers[i].mixers[j], model.names.mixers[i][j], spec, norm, taker));
    }
  }
  if (!arena.counts_only()) source.finish();
  return out;
}

}  // namespace replayssm
