#include "model/weights.h"

#include <cstring>
#include <unordered_set>

#include "core/error.h"
#include "model/fp8.h"

namespace replayssm {
namespace {

DType dtype_of(const TensorView& tensor) {
  switch (tensor.dtype) {
    case FileDType::kF32:
      return DType::kF32;
    case FileDType::kF16:
      return DType::kF16;
    case FileDType::kBF16:
      return DType::kBF16;
    default:
      fail(tensor.path, ": tensor '", tensor.name, "' is ", file_dtype_name(tensor.dtype),
           "; weights must be F32, F16, BF16 or, matrices of layers, F8_E4M3 with scales");
  }
}

// A tensor as a matrix whose elements are aligned: a file's header may leave them at any byte.
class StoredMatrix {
 public:
  // The tensor's elements in [rows, cols], whatever its own shape.
  StoredMatrix(const TensorView& tensor, int64_t rows, int64_t cols)
      : matrix_{tensor.data, dtype_of(tensor), rows, cols, cols} {
    const auto address = reinterpret_cast<uintptr_t>(tensor.data);
    if (address % static_cast<uintptr_t>(dtype_bytes(matrix_.dtype)) != 0) {
      copy_ = Buffer(static_cast<size_t>(tensor.bytes));
      std::memcpy(copy_.data(), tensor.data, static_cast<size_t>(tensor.bytes));
      matrix_.data = copy_.data();
    }
  }
  StoredMatrix(const Fp8Matrix& fp8, DType to)
      : copy_(static_cast<size_t>(fp8.rows() * fp8.cols() * dtype_bytes(to))),
        matrix_{copy_.data(), to, fp8.rows(), fp8.cols(), fp8.cols()} {
    widen_fp8(fp8, to, copy_.data());
  }
  ops::ConstMatrix get() const { return matrix_; }

 private:
  Buffer copy_;
  ops::ConstMatrix matrix_;
};

// Hands out each tensor once, shape and type checked.
class Taker {
 public:
  // FP8 weights are widened to `fp8_to`, fp32 or bf16.
  Taker(const TensorFiles& files, DType fp8_to) : files_(files), fp8_to_(fp8_to) {}

  const TensorView& take(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView& tensor = find(name, shape);
    dtype_of(tensor);
    mark(tensor);
    n_parameters_ += tensor.n_elements();
    return tensor;
  }

  // A matrix of any stored type, aligned.
  StoredMatrix matrix(const std::string& name, int64_t rows, int64_t cols) {
    if (files_.at(name).dtype != FileDType::kF8E4M3) {
      return StoredMatrix(take(name, {rows, cols}), rows, cols);
    }
    const Fp8Matrix fp8 = read_fp8(files_, find(name, {rows, cols}));
    mark(*fp8.values);
    for (const TensorView* scales : fp8.beside) mark(*scales);
    n_parameters_ += rows * cols;
    return StoredMatrix(fp8, fp8_to_);
  }

  bool has(const std::string& name) const { return files_.find(name) != nullptr; }

  Vector vector(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView& tensor = take(name, shape);
    Vector out(static_cast<size_t>(tensor.n_elements()) * sizeof(float));
    widen_to_fp32(tensor, out.as<float>());
    return out;
  }

  // Files keep the taps of a channel together; the kernel takes [width, channels].
  Vector conv_weight(const std::string& name, int64_t channels, int64_t width) {
    const TensorView& tensor = take(name, {channels, 1, width});
    const std::vector<float> by_channel = read_fp32(tensor);
    Vector out(by_channel.size() * sizeof(float));
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t tap = 0; tap < width; ++tap) {
        out.as<float>()[tap * channels + channel] =
            by_channel[static_cast<size_t>(channel * width + tap)];
      }
    }
    return out;
  }

  // Of what was taken, without scales.
  int64_t n_parameters() const { return n_parameters_; }

  // Tensors that nobody took must begin with one of the prefixes, or scale an FP8 KV cache, which
  // is not run.
  std::vector<std::string> skipped(const std::vector<std::string>& prefixes) const {
    std::vector<std::string> out;
    for (const auto& tensor : files_.tensors()) {
      if (taken_.contains(&tensor)) continue;
      bool known =
          tensor.name.ends_with("k_proj.k_scale") || tensor.name.ends_with("v_proj.v_scale");
      for (const auto& prefix : prefixes) known = known || tensor.name.starts_with(prefix);
      if (!known) {
        fail(tensor.path, ": tensor '", tensor.name, "' has no place in the model of config.json");
      }
      out.push_back(tensor.name);
    }
    return out;
  }

 private:
  const TensorView& find(const std::string& name, const std::vector<int64_t>& shape) const {
    const TensorView& tensor = files_.at(name);
    if (tensor.shape != shape) {
      TensorView expected;
      expected.shape = shape;
      fail(tensor.path, ": tensor '", name, "' has shape ", tensor.shape_text(),
           ", config.json needs ", expected.shape_text());
    }
    return tensor;
  }
  void mark(const TensorView& tensor) {
    if (taken_.insert(&tensor).second) return;
    fail(tensor.path, ": tensor '", tensor.name, "' would be used twice");
  }

  const TensorFiles& files_;
  DType fp8_to_;
  std::unordered_set<const TensorView*> taken_;
  int64_t n_parameters_ = 0;
};

ops::Linear take_linear(Taker& taker, const std::string& name, int64_t n_out, int64_t n_in) {
  return ops::Linear::pack(taker.matrix(name, n_out, n_in).get());
}

Mamba2Weights load(const Mamba2Spec& spec, const Mamba2Names& names, int64_t hidden, Taker& taker) {
  const int64_t zx = spec.inner() + spec.conv_channels(), heads = spec.n_heads;
  Mamba2Weights out;
  const StoredMatrix in = taker.matrix(names.in_proj, zx + heads, hidden);
  out.in_zx = ops::Linear::pack(in.get().slice_rows(0, zx));
  out.in_dt = ops::Linear::pack(in.get().slice_rows(zx, heads));
  out.conv_weight = taker.conv_weight(names.conv_weight, spec.conv_channels(), spec.conv_width);
  if (spec.conv_bias) out.conv_bias = taker.vector(names.conv_bias, {spec.conv_channels()});
  out.a_log = taker.vector(names.a_log, {heads});
  out.skip = taker.vector(names.skip, {heads});
  out.dt_bias = taker.vector(names.dt_bias, {heads});
  out.norm = taker.vector(names.norm, {spec.inner()});
  out.out = take_linear(taker, names.out_proj, hidden, spec.inner());
  return out;
}

// Rows that stand together by group, of the given lengths within a group, each part's all in a row.
std::vector<ops::ConstMatrix> ungrouped(ops::ConstMatrix m, int64_t n_groups,
                                        std::initializer_list<int64_t> lengths) {
  std::vector<ops::ConstMatrix> parts;
  const int64_t group = m.rows / n_groups;
  int64_t at = 0;
  for (const int64_t length : lengths) {
    for (int64_t g = 0; g < n_groups; ++g) parts.push_back(m.slice_rows(g * group + at, length));
    at += length;
  }
  return parts;
}

void load_inputs(const GdnSpec& spec, const GdnNames& names, int64_t hidden, Taker& taker,
                 GdnWeights& out) {
  const int64_t heads = spec.n_value_heads, share = heads / spec.n_key_heads;
  if (!names.in_proj_qkvz.empty()) {
    const int64_t qkvz_rows = spec.conv_channels() + spec.value_size();
    const StoredMatrix qkvz = taker.matrix(names.in_proj_qkvz, qkvz_rows, hidden);
    const StoredMatrix ba = taker.matrix(names.in_proj_ba, 2 * heads, hidden);
    const int64_t values = share * spec.value_dim;
    out.in_qkvz = ops::Linear::pack(
        ungrouped(qkvz.get(), spec.n_key_heads, {spec.key_dim, spec.key_dim, values, values}));
    out.in_ba = ops::Linear::pack(ungrouped(ba.get(), spec.n_key_heads, {share, share}));
    return;
  }
  const StoredMatrix qkv = taker.matrix(names.in_proj_qkv, spec.conv_channels(), hidden);
  const StoredMatrix z = taker.matrix(names.in_proj_z, spec.value_size(), hidden);
  const ops::ConstMatrix qkvz[] = {qkv.get(), z.get()};
  out.in_qkvz = ops::Linear::pack(qkvz);
  const StoredMatrix b = taker.matrix(names.in_proj_b, heads, hidden);
  const StoredMatrix a = taker.matrix(names.in_proj_a, heads, hidden);
  const ops::ConstMatrix ba[] = {b.get(), a.get()};
  out.in_ba = ops::Linear::pack(ba);
}

GdnWeights load(const GdnSpec& spec, const GdnNames& names, int64_t hidden, Taker& taker) {
  const int64_t heads = spec.n_value_heads;
  GdnWeights out;
  load_inputs(spec, names, hidden, taker, out);
  out.conv_weight = taker.conv_weight(names.conv_weight, spec.conv_channels(), spec.conv_width);
  out.a_log = taker.vector(names.a_log, {heads});
  out.dt_bias = taker.vector(names.dt_bias, {heads});
  out.norm = taker.vector(names.norm, {spec.value_dim});
  out.out = take_linear(taker, names.out_proj, hidden, spec.value_size());
  return out;
}

AttentionWeights load(const AttentionSpec& spec, const AttentionNames& names, int64_t hidden,
                      Taker& taker) {
  AttentionWeights out;
  const int64_t q_rows = spec.q_size() * (spec.output_gate ? 2 : 1);
  const StoredMatrix q = taker.matrix(names.q_proj, q_rows, hidden);
  const StoredMatrix k = taker.matrix(names.k_proj, spec.kv_size(), hidden);
  const StoredMatrix v = taker.matrix(names.v_proj, spec.kv_size(), hidden);
  const ops::ConstMatrix qkv[] = {q.get(), k.get(), v.get()};
  out.in_qkv = ops::Linear::pack(qkv);
  if (spec.qk_norm) {
    out.q_norm = taker.vector(names.q_norm, {spec.head_dim});
    out.k_norm = taker.vector(names.k_norm, {spec.head_dim});
  }
  out.out = take_linear(taker, names.o_proj, hidden, spec.q_size());
  return out;
}

MlpWeights load(const MlpSpec& spec, const MlpNames& names, int64_t width, Taker& taker) {
  MlpWeights out;
  const StoredMatrix up = taker.matrix(names.up_proj, spec.ff, width);
  if (spec.kind == MlpKind::kGatedSilu) {
    const StoredMatrix gate = taker.matrix(names.gate_proj, spec.ff, width);
    const ops::ConstMatrix parts[] = {gate.get(), up.get()};
    out.in = ops::Linear::pack(parts);
  } else {
    out.in = ops::Linear::pack(up.get());
  }
  out.down = take_linear(taker, names.down_proj, width, spec.ff);
  return out;
}

std::vector<MlpWeights> load_experts(const MoeSpec& spec, const MoeNames& names, Taker& taker) {
  const int64_t width = spec.expert_width(), n = spec.n_experts;
  std::vector<MlpWeights> out;
  if (names.fused_in.empty() || !(taker.has(names.fused_in) || taker.has(names.fused_down))) {
    for (int64_t e = 0; e < n; ++e) {
      const std::string at = concat(names.experts, e, ".");
      const MlpNames expert{at + "gate_proj.weight", at + "up_proj.weight",
                            at + "down_proj.weight"};
      out.push_back(load(MlpSpec{spec.kind, spec.ff}, expert, width, taker));
    }
    return out;
  }
  const int64_t rows = spec.kind == MlpKind::kGatedSilu ? 2 * spec.ff : spec.ff;
  const StoredMatrix in(taker.take(names.fused_in, {n, rows, width}), n * rows, width);
  const StoredMatrix down(taker.take(names.fused_down, {n, width, spec.ff}), n * width, spec.ff);
  for (int64_t e = 0; e < n; ++e) {
    out.push_back({ops::Linear::pack(in.get().slice_rows(e * rows, rows)),
                   ops::Linear::pack(down.get().slice_rows(e * width, width))});
  }
  return out;
}

MoeWeights load(const MoeSpec& spec, const MoeNames& names, int64_t hidden, Taker& taker) {
  MoeWeights out;
  const StoredMatrix router = taker.matrix(names.router, spec.n_experts, hidden);
  if (spec.shared_gate) {
    const StoredMatrix gate = taker.matrix(names.shared_gate, 1, hidden);
    const ops::ConstMatrix parts[] = {router.get(), gate.get()};
    out.router = ops::Linear::pack(parts);
  } else {
    out.router = ops::Linear::pack(router.get());
  }
  if (spec.router_bias) out.router_bias = taker.vector(names.router_bias, {spec.n_experts});
  out.experts = load_experts(spec, names, taker);
  if (spec.shared_ff > 0) {
    out.shared = load(MlpSpec{spec.kind, spec.shared_ff}, names.shared, hidden, taker);
  }
  if (spec.latent > 0) {
    out.latent_in = take_linear(taker, names.latent_in, spec.latent, hidden);
    out.latent_out = take_linear(taker, names.latent_out, hidden, spec.latent);
  }
  return out;
}

// The names are of the same alternative as the spec.
MixerWeights load_mixer(const MixerSpec& spec, const MixerNames& names, int64_t hidden,
                        Taker& taker) {
  MixerWeights out;
  out.norm = taker.vector(names.norm, {hidden});
  if (const auto* mamba = std::get_if<Mamba2Spec>(&spec)) {
    out.mixer = load(*mamba, std::get<Mamba2Names>(names.mixer), hidden, taker);
  } else if (const auto* gdn = std::get_if<GdnSpec>(&spec)) {
    out.mixer = load(*gdn, std::get<GdnNames>(names.mixer), hidden, taker);
  } else if (const auto* attention = std::get_if<AttentionSpec>(&spec)) {
    out.mixer = load(*attention, std::get<AttentionNames>(names.mixer), hidden, taker);
  } else if (const auto* mlp = std::get_if<MlpSpec>(&spec)) {
    out.mixer = load(*mlp, std::get<MlpNames>(names.mixer), hidden, taker);
  } else {
    out.mixer = load(std::get<MoeSpec>(spec), std::get<MoeNames>(names.mixer), hidden, taker);
  }
  return out;
}

// Some files of tied models carry the head too: it must be the embedding.
void check_tied_head(const ModelDescription& model, const TensorFiles& files, Taker& taker,
                     const TensorView& embedding) {
  if (files.find(model.names.lm_head) == nullptr) return;
  const TensorView& head = taker.take(model.names.lm_head, {model.spec.vocab, model.spec.hidden});
  const bool same = head.dtype == embedding.dtype
                        ? std::memcmp(head.data, embedding.data, head.bytes) == 0
                        : read_fp32(head) == read_fp32(embedding);
  if (!same) {
    fail(head.path, ": tensor '", head.name, "' differs from '", embedding.name,
         "', but tie_word_embeddings is true");
  }
}

void load_tables(const ModelDescription& model, const TensorFiles& files, Taker& taker,
                 ModelWeights& out) {
  const ModelSpec& spec = model.spec;
  const TensorView& embedding = taker.take(model.names.embedding, {spec.vocab, spec.hidden});
  out.embedding_dtype = dtype_of(embedding);
  if (spec.tied) {
    check_tied_head(model, files, taker, embedding);
    out.head = ops::Linear::pack(StoredMatrix(embedding, spec.vocab, spec.hidden).get());
    return;
  }
  if (files.find(model.names.lm_head) == nullptr) {
    fail(files.source(), ": has no tensor '", model.names.lm_head,
         "', but tie_word_embeddings is false");
  }
  out.head = take_linear(taker, model.names.lm_head, spec.vocab, spec.hidden);
  out.embedding = Buffer(static_cast<size_t>(embedding.bytes));
  std::memcpy(out.embedding.data(), embedding.data, static_cast<size_t>(embedding.bytes));
}

size_t bytes_of(const Mamba2Weights& w) {
  return w.in_zx.bytes() + w.in_dt.bytes() + w.conv_weight.bytes() + w.conv_bias.bytes() +
         w.a_log.bytes() + w.skip.bytes() + w.dt_bias.bytes() + w.norm.bytes() + w.out.bytes();
}

size_t bytes_of(const GdnWeights& w) {
  return w.in_qkvz.bytes() + w.in_ba.bytes() + w.conv_weight.bytes() + w.a_log.bytes() +
         w.dt_bias.bytes() + w.norm.bytes() + w.out.bytes();
}

size_t bytes_of(const AttentionWeights& w) {
  return w.in_qkv.bytes() + w.q_norm.bytes() + w.k_norm.bytes() + w.out.bytes();
}

size_t bytes_of(const MlpWeights& w) { return w.in.bytes() + w.down.bytes(); }

size_t bytes_of(const MoeWeights& w) {
  size_t total = w.router.bytes() + w.router_bias.bytes() + bytes_of(w.shared) +
                 w.latent_in.bytes() + w.latent_out.bytes();
  for (const auto& expert : w.experts) total += bytes_of(expert);
  return total;
}

}  // namespace

size_t ModelWeights::bytes() const {
  size_t total = embedding.bytes() + head.bytes() + final_norm.bytes();
  for (const auto& layer : mixers) {
    for (const auto& weights : layer) {
      total += weights.norm.bytes();
      total += std::visit([](const auto& mixer) { return bytes_of(mixer); }, weights.mixer);
    }
  }
  return total;
}

ModelWeights load_weights(const ModelDescription& model, const TensorFiles& files) {
  const DType stored = stored_dtype(model, files);
  Taker taker(files, stored == DType::kBF16 ? DType::kBF16 : DType::kF32);
  ModelWeights out;
  load_tables(model, files, taker, out);
  out.final_norm = taker.vector(model.names.final_norm, {model.spec.hidden});
  for (size_t i = 0; i < model.spec.layers.size(); ++i) {
    auto& mixers = out.mixers.emplace_back();
    for (size_t j = 0; j < model.spec.layers[i].mixers.size(); ++j) {
      mixers.push_back(load_mixer(model.spec.layers[i].mixers[j], model.names.mixers[i][j],
                                  model.spec.hidden, taker));
    }
  }
  out.n_parameters = taker.n_parameters();
  out.skipped = taker.skipped(model.names.skipped_prefixes);
  return out;
}

DType stored_dtype(const ModelDescription& model, const TensorFiles& files) {
  return dtype_of(files.at(model.names.embedding));
}

}  // namespace replayssm
