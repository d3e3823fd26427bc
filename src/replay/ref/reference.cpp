#include "replay/ref/reference.h"

#include <cmath>

#include "replay/convert.h"

namespace replayssm::ref {
namespace {

double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double round_to(DType dtype, double x) {
  switch (dtype) {
    case DType::kF16:
      return half_to_float(float_to_half(static_cast<float>(x)));
    case DType::kBF16:
      return bf16_to_float(float_to_bf16(static_cast<float>(x)));
    default:
      return static_cast<float>(x);
  }
}

// The scale of an int8 row whose largest magnitude is given: seventeen significant bits.
double scale_of(double largest) {
  if (largest < 0x1p-100) return 0.0;
  int exponent = 0;
  const double fraction = std::frexp(largest / 127.0, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 17)), exponent - 17);
}

std::vector<double> normalised(const float* x, int n_heads, int dim, double factor) {
  std::vector<double> out(static_cast<size_t>(n_heads) * dim);
  for (int h = 0; h < n_heads; ++h) {
    double sum = 0;
    for (int i = 0; i < dim; ++i) sum += double{x[h * dim + i]} * x[h * dim + i];
    const double scale = factor / std::sqrt(sum + 1e-6);
    for (int i = 0; i < dim; ++i) out[h * dim + i] = x[h * dim + i] * scale;
  }
  return out;
}

}  // namespace

Prepared prepare(const Problem& p, const Parameters& w, const TokenInputs& in) {
  Prepared out;
  out.value.assign(in.value, in.value + p.n_heads * p.value_dim);
  if (p.family == Family::kMamba2) {
    out.query.assign(in.query, in.query + p.n_key_heads * p.key_dim);
    out.key.assign(in.key, in.key + p.n_key_heads * p.key_dim);
    for (int h = 0; h < p.n_heads; ++h) {
      out.scale.push_back(softplus(double{in.gate[h]} + w.dt_bias[h]));
      out.log_decay.push_back(-std::exp(double{w.a_log[h]}) * out.scale.back());
    }
    return out;
  }
  out.query = normalised(in.query, p.n_key_heads, p.key_dim, 1.0 / std::sqrt(double(p.key_dim)));
  out.key = normalised(in.key, p.n_key_heads, p.key_dim, 1.0);
  for (int h = 0; h < p.n_heads; ++h) {
    out.scale.push_back(p.beta_scale * sigmoid(in.beta[h]));
    const double rate = std::exp(double{w.a_log[h]});
    const int n_gates = p.family == Family::kKda ? p.key_dim : 1;
    for (int k = 0; k < n_gates; ++k) {
      const double x = double{in.gate[h * n_gates + k]} + w.dt_bias[h * n_gates + k];
      const bool bounded = p.family == Family::kKda && p.decay_gate == DecayGate::kBounded;
      out.log_decay.push_back(bounded ? p.decay_lower_bound * sigmoid(rate * x)
                                      : -rate * softplus(x));
    }
  }
  return out;
}

Recurrence::Recurrence(const Problem& problem, const Parameters& parameters)
    : problem_(problem),
      parameters_(parameters),
      state_(static_cast<size_t>(problem.n_heads) * problem.value_dim * problem.key_dim) {}

std::vector<double> Recurrence::append(const TokenInputs& inputs) {
  const Problem& p = problem_;
  const Prepared in = prepare(p, parameters_, inputs);
  std::vector<double> y(static_cast<size_t>(p.n_heads) * p.value_dim);
  const bool kda = p.family == Family::kKda;
  const bool mamba = p.family == Family::kMamba2;
  for (int h = 0; h < p.n_heads; ++h) {
    const int kh = h / (p.n_heads / p.n_key_heads);
    const double* key = in.key.data() + kh * p.key_dim;
    const double* query = in.query.data() + kh * p.key_dim;
    std::vector<double> alpha(p.key_dim);
    for (int k = 0; k < p.key_dim; ++k) {
      alpha[k] = std::exp(in.log_decay[kda ? h * p.key_dim + k : h]);
    }
    for (int v = 0; v < p.value_dim; ++v) {
      double* s = state_.data() + (static_cast<size_t>(h) * p.value_dim + v) * p.key_dim;
      double read = 0;
      for (int k = 0; k < p.key_dim; ++k) {
        s[k] *= alpha[k];
        read += s[k] * key[k];
      }
      const double value = in.value[h * p.value_dim + v];
      const double u = in.scale[h] * (mamba ? value : value - read);
      double out = 0;
      for (int k = 0; k < p.key_dim; ++k) {
        s[k] += u * key[k];
        out += s[k] * query[k];
      }
      y[h * p.value_dim + v] = out + (mamba ? parameters_.skip[h] * value : 0.0);
    }
  }
  return y;
}

GridReplay::GridReplay(const Problem& problem, const Parameters& parameters)
    : problem_(problem),
      parameters_(parameters),
      state_(static_cast<size_t>(problem.n_heads) * problem.value_dim * problem.key_dim) {}

// e^{G_to - G_from} of one head, per key channel.
std::vector<double> GridReplay::decay(const RingRow& from, const RingRow& to, int head) const {
  std::vector<double> out(problem_.key_dim);
  for (int k = 0; k < problem_.key_dim; ++k) {
    const int at = problem_.family == Family::kKda ? head * problem_.key_dim + k : head;
    out[k] = std::exp(to.log_decay[at] - from.log_decay[at]);
  }
  return out;
}

std::vector<double> GridReplay::append(const TokenInputs& inputs) {
  const Problem& p = problem_;
  const bool mamba = p.family == Family::kMamba2;
  Prepared in = prepare(p, parameters_, inputs);
  RingRow row;
  row.value.resize(in.value.size());
  row.scale = in.scale;
  row.log_decay = in.log_decay;
  for (double& k : in.key) row.key.push_back(round_to(p.ring, k));
  if (!rows_.empty()) {
    for (size_t i = 0; i < row.log_decay.size(); ++i) row.log_decay[i] += rows_.back().log_decay[i];
  }
  RingRow start;  // the checkpoint precedes the interval's first token: its prefix sum is zero
  start.log_decay.assign(row.log_decay.size(), 0.0);

  std::vector<double> y(static_cast<size_t>(p.n_heads) * p.value_dim);
  for (int h = 0; h < p.n_heads; ++h) {
    const int kh = h / (p.n_heads / p.n_key_heads);
    const double* key = row.key.data() + kh * p.key_dim;
    const double* query = in.query.data() + kh * p.key_dim;
    // The weight of ring row j in a read with operand z.
    auto weight = [&](const RingRow& j, const double* z) {
      const std::vector<double> e = decay(j, row, h);
      double sum = 0;
      for (int k = 0; k < p.key_dim; ++k) {
        sum += j.key[kh * p.key_dim + k] * e[k] * z[k];
      }
      return mamba ? j.scale[h] * sum : sum;
    };
    std::vector<double> weight_key, weight_query;
    for (const RingRow& j : rows_) {
      if (!mamba) weight_key.push_back(weight(j, key));
      weight_query.push_back(weight(j, query));
    }
    const double own_weight = weight(row, query);
    const std::vector<double> since_start = decay(start, row, h);
    for (int v = 0; v < p.value_dim; ++v) {
      const size_t at = static_cast<size_t>(h) * p.value_dim + v;
      double read_key = 0, out = 0;
      for (int k = 0; k < p.key_dim; ++k) {
        const double s = state_[at * p.key_dim + k] * since_start[k];
        read_key += s * key[k];
        out += s * query[k];
      }
      for (size_t j = 0; j < rows_.size(); ++j) {
        if (!mamba) read_key += weight_key[j] * rows_[j].value[at];
        out += weight_query[j] * rows_[j].value[at];
      }
      const double value = in.value[at];
      row.value[at] = round_to(p.ring, mamba ? value : in.scale[h] * (value - read_key));
      y[at] = out + own_weight * row.value[at] + (mamba ? parameters_.skip[h] * value : 0.0);
    }
  }
  rows_.push_back(std::move(row));
  if (++n_ % p.grid.interval == 0) fold();
  return y;
}

void GridReplay::fold() {
  const Problem& p = problem_;
  const RingRow& end = rows_.back();
  RingRow start;
  start.log_decay.assign(end.log_decay.size(), 0.0);
  for (int h = 0; h < p.n_heads; ++h) {
    const int kh = h / (p.n_heads / p.n_key_heads);
    const std::vector<double> since_start = decay(start, end, h);
    std::vector<std::vector<double>> since_row;
    for (const RingRow& j : rows_) since_row.push_back(decay(j, end, h));
    for (int v = 0; v < p.value_dim; ++v) {
      const size_t at = static_cast<size_t>(h) * p.value_dim + v;
      double* s = state_.data() + at * p.key_dim;
      double largest = 0;
      for (int k = 0; k < p.key_dim; ++k) {
        double sum = s[k] * since_start[k];
        for (size_t i = 0; i < rows_.size(); ++i) {
          const RingRow& j = rows_[i];
          const double scale = p.family == Family::kMamba2 ? j.scale[h] : 1.0;
          sum += scale * since_row[i][k] * j.value[at] * j.key[kh * p.key_dim + k];
        }
        s[k] = sum;
        largest = std::fmax(largest, std::fabs(sum));
      }
      for (int k = 0; k < p.key_dim; ++k) {
        if (p.checkpoint == DType::kI8) {
          const double step = scale_of(largest);
          s[k] = step > 0 ? std::nearbyint(s[k] / step) * step : 0.0;
        } else {
          s[k] = round_to(p.checkpoint, s[k]);
        }
      }
    }
  }
  rows_.clear();
}

}  // namespace replayssm::ref
