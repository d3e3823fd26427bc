#include <cmath>
#include <cstring>

#include "ops/ref/ref.h"
#include "replay/convert.h"

namespace replayssm::ops::ref {
namespace {

double value_at(const void* p, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return dtype == DType::kBF16 ? bf16_to_float(bits) : half_to_float(bits);
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double weight_at(NormWeight weight, int64_t i) {
  if (weight.data == nullptr) return 1.0;
  return weight.data[i] + (weight.zero_centred ? 1.0 : 0.0);
}

double inverse_rms(const std::vector<double>& x, float eps) {
  double sum = 0.0;
  for (const double v : x) sum += v * v;
  return 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

}  // namespace

double get(ConstMatrix x, int64_t row, int64_t col) { return value_at(x.at(row, col), x.dtype); }

double get(ConstHeads x, int64_t token, int64_t head, int64_t dim) {
  const char* p = static_cast<const char*>(x.at(token, head));
  return value_at(p + dim * dtype_bytes(x.dtype), x.dtype);
}

std::vector<double> linear(ConstMatrix x, ConstMatrix weight, const float* bias) {
  std::vector<double> y;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t o = 0; o < weight.rows; ++o) {
      double sum = bias == nullptr ? 0.0 : bias[o];
      for (int64_t i = 0; i < x.cols; ++i) sum += get(weight, o, i) * get(x, r, i);
      y.push_back(sum);
    }
  }
  return y;
}

std::vector<double> rms_norm(ConstMatrix x, NormWeight weight, float eps) {
  std::vector<double> y;
  for (int64_t r = 0; r < x.rows; ++r) {
    std::vector<double> row;
    for (int64_t i = 0; i < x.cols; ++i) row.push_back(get(x, r, i));
    const double factor = inverse_rms(row, eps);
    for (int64_t i = 0; i < x.cols; ++i) y.push_back(row[i] * factor * weight_at(weight, i));
  }
  return y;
}

std::vector<double> head_norm(ConstHeads x, NormWeight weight, float eps) {
  std::vector<double> y;
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t h = 0; h < x.heads; ++h) {
      std::vector<double> row;
      for (int64_t i = 0; i < x.dim; ++i) row.push_back(get(x, t, h, i));
      const double factor = inverse_rms(row, eps);
      for (int64_t i = 0; i < x.dim; ++i) y.push_back(row[i] * factor * weight_at(weight, i));
    }
  }
  return y;
}

std::vector<double> gated_norm(const GatedNorm& norm, ConstMatrix y, ConstMatrix z) {
  std::vector<double> out;
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t first = 0; first < y.cols; first += norm.group_size) {
      std::vector<double> value;
      std::vector<double> gate;
      for (int64_t i = 0; i < norm.group_size; ++i) {
        const double g = get(z, r, first + i);
        gate.push_back(norm.gate == GateFunction::kSilu ? g * sigmoid(g) : sigmoid(g));
        value.push_back(get(y, r, first + i));
        if (norm.order == GateOrder::kGateThenNorm) value.back() *= gate.back();
      }
      const double factor = inverse_rms(value, norm.eps);
      for (int64_t i = 0; i < norm.group_size; ++i) {
        const double w = weight_at(norm.weight, norm.shared_weight ? i : first + i);
        switch (norm.order) {
          case GateOrder::kGateThenNorm:
            out.push_back(value[i] * factor * w);
            break;
          case GateOrder::kNormThenGate:
            out.push_back(value[i] * factor * w * gate[i]);
            break;
          case GateOrder::kGateOnly:
            out.push_back(value[i] * gate[i]);
            break;
        }
      }
    }
  }
  return out;
}

std::vector<double> silu_mul(ConstMatrix gate, ConstMatrix up) {
  std::vector<double> y;
  for (int64_t r = 0; r < gate.rows; ++r) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const double g = get(gate, r, i);
      y.push_back(g * sigmoid(g) * get(up, r, i));
    }
  }
  return y;
}

std::vector<double> relu2(ConstMatrix x) {
  std::vector<double> y;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      const double positive = std::fmax(get(x, r, i), 0.0);
      y.push_back(positive * positive);
    }
  }
  return y;
}

std::vector<double> sigmoid_mul(ConstHeads x, ConstHeads gate) {
  std::vector<double> y;
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t h = 0; h < x.heads; ++h) {
      for (int64_t i = 0; i < x.dim; ++i) {
        y.push_back(get(x, t, h, i) * sigmoid(get(gate, t, h, i)));
      }
    }
  }
  return y;
}

std::vector<double> residual_add(ConstMatrix x, ConstMatrix y, float scale) {
  std::vector<double> out;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      out.push_back(get(x, r, i) + static_cast<double>(scale) * get(y, r, i));
    }
  }
  return out;
}

std::vector<double> rope(ConstHeads x, const int64_t* positions, int32_t rotary_dims,
                         double theta) {
  const int32_t half = rotary_dims / 2;
  std::vector<double> y;
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t h = 0; h < x.heads; ++h) {
      for (int64_t i = 0; i < x.dim; ++i) {
        if (i >= rotary_dims) {
          y.push_back(get(x, t, h, i));
          continue;
        }
        const double pair = static_cast<double>(i % half);
        const double angle =
            static_cast<double>(positions[t]) * std::pow(theta, -2.0 * pair / rotary_dims);
        const double other = i < half ? -get(x, t, h, i + half) : get(x, t, h, i - half);
        y.push_back(get(x, t, h, i) * std::cos(angle) + other * std::sin(angle));
      }
    }
  }
  return y;
}

}  // namespace replayssm::ops::ref
