// A drafting head (MtpSpec) as its formulas say, in double with plain loops, from a folder's files.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/router.h"
#include "model/safetensors.h"
#include "ops/ref/ref.h"

namespace replayssm {

using Doubles = std::vector<double>;

inline Doubles plus(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

class MtpReference {
 public:
  explicit MtpReference(const std::string& folder)
      : files_(TensorFiles::open_folder(folder)), model_(describe_model(folder, files_)) {}

  struct Output {
    Doubles m;       // after the head's last norm
    Doubles logits;  // of the token after `position`
  };
  // Entry `position` of one text: its token and the hidden state at the position before. Entries
  // come in order; one that comes again drops those after it.
  Output next(int64_t position, int32_t token, const Doubles& before) {
    const MtpSpec& spec = *model_.spec.mtp;
    const MtpNames& names = *model_.names.mtp;
    const auto hidden = static_cast<size_t>(model_.spec.hidden);
    const Doubles& table = tensor(model_.names.embedding);
    const auto row = table.begin() + static_cast<int64_t>(token * hidden);
    Doubles in = norm(Doubles(row, row + static_cast<int64_t>(hidden)), names.norm_embedding);
    const Doubles normed = norm(before, names.norm_hidden);
    in.insert(in.end(), normed.begin(), normed.end());
    Doubles x = product(names.fc, in);
    x = plus(x, attention(spec.attention, std::get<AttentionNames>(names.attention.mixer), position,
                          norm(x, names.attention.norm)));
    const Doubles y = norm(x, names.feed_forward.norm);
    if (const auto* mlp = std::get_if<MlpSpec>(&spec.feed_forward)) {
      const auto& of = std::get<MlpNames>(names.feed_forward.mixer);
      x = plus(x, this->mlp(mlp->kind, of.gate_proj, of.up_proj, of.down_proj, y));
    } else {
      x = plus(x, mixture(std::get<MoeSpec>(spec.feed_forward),
                          std::get<MoeNames>(names.feed_forward.mixer), y));
    }
    Output out;
    out.m = norm(x, names.final_norm);
    out.logits = head(out.m);
    return out;
  }
  // The model's own output head.
  Doubles head(const Doubles& hidden) {
    return product(model_.spec.tied ? model_.names.embedding : model_.names.lm_head, hidden);
  }

 private:
  const Doubles& tensor(const std::string& name) {
    Doubles& out = read_[name];
    if (out.empty()) {
      const std::vector<float> values = read_fp32(files_.at(name));
      out.assign(values.begin(), values.end());
    }
    return out;
  }
  Doubles product(const std::string& name, const Doubles& x) {
    const Doubles& w = tensor(name);
    Doubles out(w.size() / x.size());
    for (size_t o = 0; o < out.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) out[o] += w[o * x.size() + i] * x[i];
    }
    return out;
  }
  static void normalise(double* x, size_t n, const Doubles& w, bool zero_centred, double eps) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[i] * x[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t i = 0; i < n; ++i) x[i] *= scale * (w[i] + (zero_centred ? 1 : 0));
  }
  Doubles norm(Doubles x, const std::string& name) {
    normalise(x.data(), x.size(), tensor(name), model_.spec.zero_centred_norms,
              model_.spec.norm_eps);
    return x;
  }
  // Norm and RoPE of the heads in x.
  void prepare(const AttentionSpec& spec, const std::string& norm_name, int64_t position,
               Doubles& x) {
    const auto dim = static_cast<size_t>(spec.head_dim),
               half = static_cast<size_t>(spec.rotary_dims) / 2;
    for (size_t at = 0; at < x.size(); at += dim) {
      if (spec.qk_norm) {
        normalise(&x[at], dim, tensor(norm_name), spec.qk_norm_zero_centred, spec.qk_norm_eps);
      }
      for (size_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(position) *
            std::pow(spec.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
        const double a = x[at + i], b = x[at + half + i];
        x[at + i] = a * std::cos(angle) - b * std::sin(angle);
        x[at + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  Doubles attention(const AttentionSpec& spec, const AttentionNames& names, int64_t position,
                    const Doubles& x) {
    const auto dim = static_cast<size_t>(spec.head_dim),
               n_heads = static_cast<size_t>(spec.n_heads);
    const size_t group = n_heads / static_cast<size_t>(spec.n_kv_heads);
    const Doubles rows = product(names.q_proj, x);
    Doubles q, gate, k = product(names.k_proj, x);
    const size_t each = spec.output_gate ? 2 * dim : dim;
    for (size_t h = 0; h < n_heads; ++h) {
      const auto at = rows.begin() + static_cast<int64_t>(h * each);
      q.insert(q.end(), at, at + static_cast<int64_t>(dim));
      gate.insert(gate.end(), at + static_cast<int64_t>(dim), at + static_cast<int64_t>(each));
    }
    prepare(spec, names.q_norm, position, q);
    prepare(spec, names.k_norm, position, k);
    keys_.resize(static_cast<size_t>(position - 1));
    values_.resize(static_cast<size_t>(position - 1));
    keys_.push_back(k);
    values_.push_back(product(names.v_proj, x));
    Doubles y(n_heads * dim);
    for (size_t h = 0; h < n_heads; ++h) {
      const size_t kv = h / group * dim;
      Doubles weights;
      double sum = 0;
      for (const Doubles& key : keys_) {
        double score = 0;
        for (size_t d = 0; d < dim; ++d) score += q[h * dim + d] * key[kv + d];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        sum += weights.back();
      }
      for (size_t d = 0; d < dim; ++d) {
        for (size_t j = 0; j < weights.size(); ++j) {
          y[h * dim + d] += weights[j] / sum * values_[j][kv + d];
        }
        if (spec.output_gate) y[h * dim + d] /= 1 + std::exp(-gate[h * dim + d]);
      }
    }
    return product(names.o_proj, y);
  }
  Doubles mlp(MlpKind kind, const std::string& gate_name, const std::string& up_name,
              const std::string& down_name, const Doubles& x) {
    Doubles inner = product(up_name, x);
    if (kind == MlpKind::kRelu2) {
      for (double& v : inner) v = v > 0 ? v * v : 0;
    } else {
      const Doubles gate = product(gate_name, x);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= gate[i] / (1 + std::exp(-gate[i]));
    }
    return product(down_name, inner);
  }
  Doubles mixture(const MoeSpec& spec, const MoeNames& names, const Doubles& x) {
    const Doubles logits = product(names.router, x);
    std::vector<float> bias;
    if (spec.router_bias) bias = read_fp32(files_.at(names.router_bias));
    const ops::Router router = router_of(spec, spec.router_bias ? bias.data() : nullptr);
    const Doubles in = spec.latent > 0 ? product(names.latent_in, x) : x;
    Doubles sum(in.size());
    for (const auto& choice : ops::ref::route(router, {logits.begin(), logits.end()})) {
      const std::string at = concat(names.experts, choice.expert, ".");
      const Doubles y = mlp(spec.kind, at + "gate_proj.weight", at + "up_proj.weight",
                            at + "down_proj.weight", in);
      for (size_t i = 0; i < y.size(); ++i) sum[i] += choice.weight * y[i];
    }
    if (spec.latent > 0) sum = product(names.latent_out, sum);
    const MlpNames& shared = names.shared;
    Doubles all = mlp(spec.kind, shared.gate_proj, shared.up_proj, shared.down_proj, x);
    if (spec.shared_gate) {
      const double gate = product(names.shared_gate, x)[0];
      for (double& v : all) v /= 1 + std::exp(-gate);
    }
    return plus(sum, all);
  }

  TensorFiles files_;
  ModelDescription model_;
  std::map<std::string, Doubles> read_;
  std::vector<Doubles> keys_, values_;  // of entries 1, 2, ...
};

}  // namespace replayssm
