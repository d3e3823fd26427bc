#include "model/formats/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "replay/convert.h"

namespace replayssm {
namespace {

void put_half(std::byte* to, float value, float& stored) {
  const uint16_t bits = float_to_half(value);
  std::memcpy(to, &bits, 2);
  stored = half_to_float(bits);
}

int nearest(float value, float scale, int low, int high) {
  if (scale == 0.0f) return std::clamp(0, low, high);
  return std::clamp(static_cast<int>(std::lrint(value / scale)), low, high);
}

// Two runs of n/2 codes, low nibbles and high.
void put_halves(const int* codes, int n, std::byte* to) {
  for (int j = 0; j < n / 2; ++j) {
    to[j] = static_cast<std::byte>(codes[j] | codes[j + n / 2] << 4);
  }
}

void encode_q8_0(const float* x, std::byte* out) {
  float most = 0.0f, scale = 0.0f;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(x[i]));
  put_half(out, most / 127.0f, scale);
  for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<std::byte>(nearest(x[i], scale, -127, 127));
}

// The number of largest magnitude is code 0: minus eight times the scale.
void encode_q4_0(const float* x, std::byte* out) {
  float most = 0.0f, scale = 0.0f;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(most)) most = x[i];
  }
  put_half(out, most / -8.0f, scale);
  int codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = 8 + nearest(x[i], scale, -8, 7);
  put_halves(codes, 32, out + 2);
}

void encode_q4_k(const float* x, std::byte* out) {
  float scales[8], mins[8], most_scale = 0.0f, most_min = 0.0f;
  for (int j = 0; j < 8; ++j) {
    const auto [low, high] = std::minmax_element(x + 32 * j, x + 32 * j + 32);
    mins[j] = std::max(0.0f, -*low);
    scales[j] = std::max(0.0f, (*high + mins[j]) / 15.0f);
    most_scale = std::max(most_scale, scales[j]);
    most_min = std::max(most_min, mins[j]);
  }
  float d = 0.0f, dmin = 0.0f;
  put_half(out, most_scale / 63.0f, d);
  put_half(out + 2, most_min / 63.0f, dmin);
  std::memset(out + 4, 0, 12);
  int codes[256];
  for (int j = 0; j < 8; ++j) {
    const int scale = nearest(scales[j], d, 0, 63), min = nearest(mins[j], dmin, 0, 63);
    std::byte* s = out + 4;
    if (j < 4) {
      s[j] |= static_cast<std::byte>(scale);
      s[j + 4] |= static_cast<std::byte>(min);
    } else {
      s[j + 4] = static_cast<std::byte>((scale & 15) | (min & 15) << 4);
      s[j - 4] |= static_cast<std::byte>(scale >> 4 << 6);
      s[j] |= static_cast<std::byte>(min >> 4 << 6);
    }
    const float step = d * static_cast<float>(scale), below = dmin * static_cast<float>(min);
    for (int i = 0; i < 32; ++i) codes[32 * j + i] = nearest(x[32 * j + i] + below, step, 0, 15);
  }
  for (int k = 0; k < 4; ++k) put_halves(codes + 64 * k, 64, out + 16 + 32 * k);
}

// 0, .5, 1, 1.5, 2, 3, 4, 6; ties to the even code.
uint8_t e2m1_nearest(float value) {
  constexpr float kUpTo[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float magnitude = std::fabs(value);
  uint8_t code = 0;
  while (code < 7 && (magnitude > kUpTo[code] || (magnitude == kUpTo[code] && code % 2 == 1))) {
    ++code;
  }
  return static_cast<uint8_t>(value < 0.0f ? code | 8 : code);
}

}  // namespace

uint8_t e4m3_nearest(float value) {
  if (!(value > 0.0f)) return 0;
  if (value >= 448.0f) return 0x7e;
  const int exponent = std::max(std::ilogb(value), -6);
  const auto steps = static_cast<int>(std::lrint(std::ldexp(value, 3 - exponent)));
  // Eight steps are the next exponent's first code, so codes follow one another.
  return static_cast<uint8_t>(((exponent + 6) << 3) + steps);
}

void encode_blocks(BlockType type, const float* values, int64_t n, std::byte* out) {
  const BlockShape& shape = *find_block_shape(static_cast<int32_t>(type));
  REPLAYSSM_CHECK(n % shape.elements == 0, n, " of ", shape.name);
  for (int64_t b = 0; b < n / shape.elements; ++b) {
    const float* x = values + b * shape.elements;
    std::byte* to = out + b * shape.bytes;
    switch (type) {
      case BlockType::kF32:
        std::memcpy(to, x, 4);
        break;
      case BlockType::kF16:
      case BlockType::kBF16: {
        const uint16_t bits = type == BlockType::kF16 ? float_to_half(*x) : float_to_bf16(*x);
        std::memcpy(to, &bits, 2);
        break;
      }
      case BlockType::kQ4_0:
        encode_q4_0(x, to);
        break;
      case BlockType::kQ8_0:
        encode_q8_0(x, to);
        break;
      case BlockType::kQ4_K:
        encode_q4_k(x, to);
        break;
      default:
        check_failed(__FILE__, __LINE__, "a type with an encoder", shape.name);
    }
  }
}

Nvfp4 encode_nvfp4(const float* values, int64_t rows, int64_t cols) {
  REPLAYSSM_CHECK(cols % 16 == 0, cols);
  Nvfp4 out;
  const int64_t n = rows * cols;
  float most = 0.0f;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(values[i]));
  // The largest block's scale is E4M3's largest.
  if (most > 0.0f) out.scale_2 = most / (6.0f * 448.0f);
  out.codes.resize(static_cast<size_t>(n / 2));
  out.scales.resize(static_cast<size_t>(n / 16));
  for (int64_t b = 0; b < n / 16; ++b) {
    const float* x = values + 16 * b;
    float block = 0.0f;
    for (int i = 0; i < 16; ++i) block = std::max(block, std::fabs(x[i]));
    const uint8_t scale = e4m3_nearest(block / 6.0f / out.scale_2);
    out.scales[static_cast<size_t>(b)] = scale;
    const float step = ops::e4m3_value(scale) * out.scale_2;
    for (int i = 0; i < 16; i += 2) {
      const uint8_t low = step == 0.0f ? 0 : e2m1_nearest(x[i] / step);
      const uint8_t high = step == 0.0f ? 0 : e2m1_nearest(x[i + 1] / step);
      out.codes[static_cast<size_t>(8 * b + i / 2)] = static_cast<uint8_t>(low | high << 4);
    }
  }
  return out;
}

}  // namespace replayssm
