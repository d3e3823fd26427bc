// linear() for weights of few bits (few_bits_cuda.h): outputs are the rows of the products, rows of
// x the columns.
//
// Codes become bf16 exactly, by tricks with bits. Sums of kFold inputs are products of the tensor
// cores; each is then scaled and added in fp32. With mins the sums of x come from a product with
// ones. Codes of E2M1 take their scales as they are decoded, also exactly. So every output is
//
//   factor * (segment 0 + segment 1 + ...),   segment = sum over its folds, in order
//
// whatever the kernel: for few rows a warp has one segment of a tile, for many it has all of them,
// one after another.
#include "ops/cuda/device.cuh"
#include "ops/cuda/few_bits_cuda.h"
#include "ops/cuda/linear_few_cuda.h"

namespace replayssm::ops::cuda {
namespace {

using replayssm::cuda::copies_wait;
using replayssm::cuda::copy_16;
using replayssm::cuda::mma_bf16;
using replayssm::cuda::shared_address;

constexpr int kTile = kFewTile;
constexpr int kUnit = kFewUnit;
constexpr int kSteps = kUnit / 16;
constexpr int kWarps = kFewSegments;
constexpr int kThreads = 32 * kWarps;

struct Args {
  const uint8_t* weight;
  const float* factors;
  int64_t n_out;
  int32_t n_in, n_units, n_segments;
  int32_t unit_bytes, scales_at, mins_at, super_at;
  int32_t scale_record, min_record, super_record;
  int32_t groups;  // of a unit
  GroupScale scale;
  GroupMin min;
  uint32_t zero;                       // kInt4: bf16 twice
  uint32_t scale_factor, scale_added;  // kE2m1
  const uint16_t* x;
  int64_t x_stride;
  int64_t rows;
  void* y;
  DType y_dtype;
  int64_t y_stride;
  bool accumulate;
};

// kFold: inputs whose products are scaled together; 0 where no sum is scaled.
template <FewCodes kCodesOf, int kFoldOf, bool kMinOf>
struct Form {
  static constexpr FewCodes kCodes = kCodesOf;
  static constexpr int kFold = kFoldOf;
  static constexpr bool kMin = kMinOf;  // added: kAdded or kSuper
  static constexpr bool kZeros = kCodesOf == FewCodes::kInt4 && !kMinOf;
  static constexpr int kPieces = kCodesOf == FewCodes::kInt8   ? 4
                                 : kCodesOf == FewCodes::kInt6 ? 3
                                                               : 2;
  static constexpr int kFoldSteps = kFoldOf == 16 || kFoldOf == 0 ? 1 : 2;
};

// What a lane loads of a unit.
template <typename F>
struct Unit {
  uint4 codes[F::kPieces];
  uint4 scales, mins;
  uint2 super;
};

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// 2, 4, 8 or 16 bytes.
__device__ __forceinline__ uint4 load_record(const uint8_t* p, int bytes) {
  uint4 r = {};
  if (bytes == 16) {
    r = __ldg(reinterpret_cast<const uint4*>(p));
  } else if (bytes == 8) {
    const uint2 two = __ldg(reinterpret_cast<const uint2*>(p));
    r.x = two.x, r.y = two.y;
  } else if (bytes == 4) {
    r.x = __ldg(reinterpret_cast<const uint32_t*>(p));
  } else if (bytes == 2) {
    r.x = __ldg(reinterpret_cast<const uint16_t*>(p));
  }
  return r;
}

template <typename F>
__device__ __forceinline__ void load_unit(Unit<F>& unit, const Args& args, const uint8_t* p,
                                          int lane) {
#pragma unroll
  for (int i = 0; i < F::kPieces; ++i) unit.codes[i] = stream_16(p + 512 * i + 16 * lane);
  const int g = lane / 4;
  unit.scales = load_record(p + args.scales_at + g * args.scale_record, args.scale_record);
  if (F::kMin || F::kZeros) {
    unit.mins = load_record(p + args.mins_at + g * args.min_record, args.min_record);
  }
  const uint4 super = load_record(p + args.super_at + g * args.super_record, args.super_record);
  unit.super = make_uint2(super.x, super.y);
}

// A record's elements of four folds, in order: w[h] bytes of output g + 8 h. Fold kUnit / 16: those
// of folds [4 p, 4 p + 4).
__device__ __forceinline__ void four_bytes(uint32_t w[2], const uint4& record, int groups, int p) {
  if (groups == 8) {
    w[0] = p == 0 ? record.x : record.y;
    w[1] = p == 0 ? record.z : record.w;
  } else if (groups == 4) {
    w[0] = record.x;
    w[1] = record.y;
  } else if (groups == 2) {
    w[0] = __byte_perm(record.x, 0, 0x1100);
    w[1] = __byte_perm(record.x, 0, 0x3322);
  } else {
    w[0] = __byte_perm(record.x, 0, 0x0000);
    w[1] = __byte_perm(record.x, 0, 0x1111);
  }
}

// Likewise of 16-bit elements: w[2 h] and w[2 h + 1].
__device__ __forceinline__ void four_halves(uint32_t w[4], const uint4& record, int groups) {
  if (groups == 4) {
    w[0] = record.x, w[1] = record.y, w[2] = record.z, w[3] = record.w;
  } else if (groups == 2) {
    w[0] = __byte_perm(record.x, 0, 0x1010);
    w[1] = __byte_perm(record.x, 0, 0x3232);
    w[2] = __byte_perm(record.y, 0, 0x1010);
    w[3] = __byte_perm(record.y, 0, 0x3232);
  } else {
    w[0] = w[1] = __byte_perm(record.x, 0, 0x1010);
    w[2] = w[3] = __byte_perm(record.x, 0, 0x3232);
  }
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ void halves_to_floats(float out[2][4], const uint4& record, int groups,
                                                 bool bf16) {
  uint32_t w[4];
  four_halves(w, record, groups);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = w[i / 2] >> (16 * (i % 2)) & 0xffffu;
    out[i / 4][i % 4] = bf16 ? __uint_as_float(bits << 16) : half_bits(bits);
  }
}

// What folds [4 p, 4 p + 4) are multiplied by, of outputs g and g + 8.
template <typename F>
__device__ __forceinline__ void scales_of(float s[2][4], const Args& args, const Unit<F>& unit,
                                          int p) {
  if (args.scale == GroupScale::kF16 || args.scale == GroupScale::kBF16) {
    return halves_to_floats(s, unit.scales, args.groups, args.scale == GroupScale::kBF16);
  }
  if (args.scale == GroupScale::kNone) {
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = 1.0f;
    return;
  }
  uint32_t w[2];
  four_bytes(w, unit.scales, args.groups, p);
  const bool has_sign = args.scale == GroupScale::kI8;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float super =
        args.super_record > 0 ? half_bits(unit.super.x >> (16 * h) & 0xffffu) : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t byte = w[h] >> (8 * i) & 0xffu;
      const float value = static_cast<float>(has_sign ? static_cast<int>(static_cast<int8_t>(byte))
                                                      : static_cast<int>(byte));
      s[h][i] = __fmul_rn(value, super);
    }
  }
}

template <typename F>
__device__ __forceinline__ void mins_of(float m[2][4], const Args& args, const Unit<F>& unit) {
  if (args.min == GroupMin::kAdded) return halves_to_floats(m, unit.mins, args.groups, false);
  uint32_t w[2];
  four_bytes(w, unit.mins, args.groups, 0);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float super = -half_bits(unit.super.y >> (16 * h) & 0xffffu);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      m[h][i] = __fmul_rn(static_cast<float>(w[h] >> (8 * i) & 0xffu), super);
    }
  }
}

__device__ __forceinline__ uint32_t add_bf16(uint32_t x, uint32_t y) {
  const __nv_bfloat162 z = __hadd2(*reinterpret_cast<const __nv_bfloat162*>(&x),
                                   *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const uint32_t*>(&z);
}
__device__ __forceinline__ uint32_t subtract_bf16(uint32_t x, uint32_t y) {
  return add_bf16(x, y ^ 0x80008000u);
}
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t x, uint32_t y) {
  const __nv_bfloat162 z = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x),
                                   *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const uint32_t*>(&z);
}

constexpr uint32_t k128 = 0x43004300;  // bf16 128 twice: its lower seven bits count

// What step s subtracts from its codes (kInt4), or multiplies them by (kE2m1): outputs g and g + 8,
// bf16 twice.
template <typename F>
__device__ __forceinline__ void constants_of(uint32_t k[2], const Args& args, const Unit<F>& unit,
                                             int s) {
  if constexpr (F::kCodes == FewCodes::kInt4) {
    k[0] = k[1] = args.zero;
    if (F::kZeros && args.min == GroupMin::kZero) {
      uint32_t w[2];
      four_bytes(w, unit.mins, args.groups, 0);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        k[h] = __byte_perm(w[h], 0xc3u, 0x4040 + 0x0101 * (s / 2));
      }
    }
  } else if constexpr (F::kCodes == FewCodes::kE2m1) {
    uint32_t w[2];
    const bool narrow = args.groups == 8;
    four_bytes(w, unit.scales, args.groups, s / 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t two = narrow ? __byte_perm(w[h], 0, 0x4040 + 0x0101 * (s % 4))
                                  : __byte_perm(w[h], 0, 0x4040 + 0x0101 * (s / 2));
      k[h] = two * args.scale_factor + args.scale_added;
    }
  }
}

// The fragment of step s: codes as bf16.
template <typename F>
__device__ __forceinline__ void fragment(uint32_t a[4], const Args& args, const Unit<F>& unit,
                                         int s) {
  uint32_t k[2];
  constants_of(k, args, unit, s);
  if constexpr (F::kCodes == FewCodes::kInt4) {
    const uint32_t w = word_of(unit.codes[s / 4], s % 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a[j] = add_bf16((w >> (4 * j) & 0x000f000fu) | k128, k[j % 2]);
    }
  } else if constexpr (F::kCodes == FewCodes::kE2m1) {
    const uint32_t w = word_of(unit.codes[s / 4], s % 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Exponent and mantissa as a bf16 of 2^-126 times the value.
      const uint32_t sign = w << (12 - 4 * j) & 0x80008000u;
      const uint32_t rest = j < 2 ? w << (6 - 4 * j) : w >> (4 * j - 6);
      a[j] = multiply_bf16(sign | (rest & 0x01c001c0u), k[j % 2]);
    }
  } else if constexpr (F::kCodes == FewCodes::kIq4) {
    const uint32_t w = word_of(unit.codes[s / 4], s % 4);
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const uint32_t four = p == 0 ? w : w >> 16;
      const uint32_t index = four & 0x7777u;
      // -127 -104 -83 -65 -49 -35 -22 -10, each with 128 added
      const uint32_t below = __byte_perm(0x3f2d1801u, 0x766a5d4fu, index);
      // 1 13 25 38 53 69 89 113, each with 1 added
      const uint32_t above = __byte_perm(0x271a0e02u, 0x725a4636u, index);
      // An index's fourth bit clears its byte: 127 where the value is below 0.
      const uint32_t is_below = __byte_perm(0x7f7f7f7fu, 0x7f7f7f7fu, four);
      const uint32_t value = (below & is_below) | (above & ~is_below);
      const uint32_t added = is_below + 0x01010101u;  // 128 or 1: of 256 and 129
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const uint32_t select = q == 0 ? 0x4140u : 0x4342u;
        a[2 * p + q] = subtract_bf16(__byte_perm(value, 0x43434343u, select),
                                     __byte_perm(added, 0x43434343u, select));
      }
    }
  } else if constexpr (F::kCodes == FewCodes::kInt6) {
    const uint32_t low = word_of(unit.codes[s / 4], s % 4), high = word_of(unit.codes[2], s / 2);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 8 * (s % 2) + 2 * j;
      const uint32_t two = at < 4 ? high << (4 - at) : high >> (at - 4);
      const uint32_t bits = (low >> (4 * j) & 0x000f000fu) | k128;
      a[j] = add_bf16(bits | (two & 0x00300030u), 0xc320c320u);  // less 160
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t w = word_of(unit.codes[s / 2], 2 * (s % 2) + j / 2) >> (8 * (j % 2));
      a[j] = subtract_bf16((w & 0x007f007fu) | k128, (w & 0x00800080u) | k128);
    }
  }
}

// sum[t] += a unit's products with columns [8 t, 8 t + 8). b(t, s): the fragment of x of step s.
template <typename F, int kN, typename B>
__device__ __forceinline__ void multiply_unit(float sum[kN][4], const Args& args,
                                              const Unit<F>& unit, const B& b) {
  if constexpr (F::kFold == 0) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      fragment(a, args, unit, s);
#pragma unroll
      for (int t = 0; t < kN; ++t) {
        const uint2 x = b(t, s);
        mma_bf16(sum[t], a[0], a[1], a[2], a[3], x.x, x.y);
      }
    }
  } else {
    constexpr uint32_t kOnes = 0x3f803f80;
    constexpr int kEach = F::kFoldSteps;
    float m[2][4];
    if constexpr (F::kMin) mins_of(m, args, unit);
#pragma unroll
    for (int p = 0; p < kSteps / kEach / 4; ++p) {
      float scale[2][4];
      scales_of(scale, args, unit, p);
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        uint32_t a[kEach][4];
#pragma unroll
        for (int i = 0; i < kEach; ++i) fragment(a[i], args, unit, (4 * p + f) * kEach + i);
#pragma unroll
        for (int t = 0; t < kN; ++t) {
          float part[4] = {}, ones[4] = {};
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            const uint2 x = b(t, (4 * p + f) * kEach + i);
            mma_bf16(part, a[i][0], a[i][1], a[i][2], a[i][3], x.x, x.y);
            if (F::kMin) mma_bf16(ones, kOnes, kOnes, kOnes, kOnes, x.x, x.y);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[t][i] = __fmaf_rn(part[i], scale[i / 2][f], sum[t][i]);
            if (F::kMin) sum[t][i] = __fmaf_rn(ones[i], m[i / 2][f], sum[t][i]);
          }
        }
      }
    }
  }
}

__device__ __forceinline__ int first_unit(const Args& args, int segment) {
  return args.n_units * segment / args.n_segments;
}

__device__ __forceinline__ void put(const Args& args, int64_t row, int64_t output, float sum) {
  if (output >= args.n_out) return;
  const int64_t at = row * args.y_stride + output;
  sum = __fmul_rn(sum, args.factors[output]);
  if (args.accumulate) sum = static_cast<float*>(args.y)[at] + sum;
  store_one(args.y, args.y_dtype, at, sum);
}

// A block has one tile and up to 8 kN rows, a warp one segment.
template <typename F, int kN>
__global__ void __launch_bounds__(kThreads, kN == 1 ? 3 : 2)
    few_rows_kernel(const __grid_constant__ Args args) {
  constexpr int kPitch = kTile + 4;  // of a row's outputs: no bank conflicts
  __shared__ float parts[kWarps][8 * kN][kPitch];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, c = lane % 4;
  const int64_t row = int64_t{blockIdx.y} * (8 * kN);
  const int n = static_cast<int>(min(args.rows - row, int64_t{8 * kN}));
  if (warp < args.n_segments) {
    const int end = first_unit(args, warp + 1);
    int u = first_unit(args, warp);
    const uint8_t* at = args.weight + (int64_t{blockIdx.x} * args.n_units + u) * args.unit_bytes;
    const uint16_t* x[kN];
#pragma unroll
    for (int t = 0; t < kN; ++t) {
      // Rows past the end repeat the last one; their results are not stored.
      x[t] = args.x + (row + min(8 * t + g, n - 1)) * args.x_stride + u * kUnit + 4 * c;
    }
    float sum[kN][4] = {};
    const auto multiply = [&](const Unit<F>& unit) {
      const auto load = [&](int t, int s) {
        if (u * kUnit + 16 * s >= args.n_in) return make_uint2(0, 0);
        return *reinterpret_cast<const uint2*>(x[t] + 16 * s);
      };
      if constexpr (kN == 1) {
        uint2 all[kSteps];
#pragma unroll
        for (int s = 0; s < kSteps; ++s) all[s] = load(0, s);
        multiply_unit<F, kN>(sum, args, unit, [&](int, int s) { return all[s]; });
      } else {
        multiply_unit<F, kN>(sum, args, unit, load);
      }
#pragma unroll
      for (int t = 0; t < kN; ++t) x[t] += kUnit;
      ++u;
    };
    Unit<F> even, odd;
    load_unit(even, args, at, lane);
    if (u + 1 < end) load_unit(odd, args, at + args.unit_bytes, lane);
    while (true) {
      multiply(even);
      if (u == end) break;
      at += 2 * args.unit_bytes;
      if (u + 1 < end) load_unit(even, args, at, lane);
      multiply(odd);
      if (u == end) break;
      if (u + 1 < end) load_unit(odd, args, at + args.unit_bytes, lane);
    }
#pragma unroll
    for (int t = 0; t < kN; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) parts[warp][8 * t + 2 * c + i % 2][g + 8 * (i / 2)] = sum[t][i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n * kTile; i += kThreads) {
    float sum = parts[0][i / kTile][i % kTile];
    for (int s = 1; s < args.n_segments; ++s) {
      sum = __fadd_rn(sum, parts[s][i / kTile][i % kTile]);
    }
    put(args, row + i / kTile, int64_t{blockIdx.x} * kTile + i % kTile, sum);
  }
}

constexpr int kManyN = 8;  // columns of eight per block
constexpr int kManyRows = 8 * kManyN;
constexpr int kManyPitch = kUnit + 16;  // of x in shared memory: no bank conflicts

// A block has a tile per warp and up to 64 rows, whose x it shares.
template <typename F>
__global__ void __launch_bounds__(kThreads) many_rows_kernel(const __grid_constant__ Args args) {
  __shared__ __align__(16) uint16_t shared[2][kManyRows][kManyPitch];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, c = lane % 4;
  const int64_t row = int64_t{blockIdx.y} * kManyRows;
  const int n = static_cast<int>(min(args.rows - row, int64_t{kManyRows}));
  const int64_t tiles = (args.n_out + kTile - 1) / kTile;
  // A warp past the end repeats the last tile; its results are not stored.
  const int64_t tile = int64_t{blockIdx.x} * kWarps + warp;
  const uint8_t* at = args.weight + min(tile, tiles - 1) * args.n_units * int64_t{args.unit_bytes};
  const auto fetch_x = [&](int u) {
    for (int i = static_cast<int>(threadIdx.x); i < kManyRows * kUnit / 8; i += kThreads) {
      const int r = i / (kUnit / 8), at_unit = i % (kUnit / 8) * 8;
      uint16_t* const to = &shared[u % 2][r][at_unit];
      if (u * kUnit + at_unit < args.n_in) {
        copy_16(shared_address(to),
                args.x + (row + min(r, n - 1)) * args.x_stride + u * kUnit + at_unit);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
  };
  float sum[kManyN][4] = {}, total[kManyN][4];
  Unit<F> unit, next;
  load_unit(next, args, at, lane);
  fetch_x(0);
  int segment = 0, end = first_unit(args, 1);
  for (int u = 0; u < args.n_units; ++u) {
    unit = next;
    copies_wait();
    __syncthreads();  // x of this unit is there, and nobody reads that of the last
    if (u + 1 < args.n_units) {
      at += args.unit_bytes;
      load_unit(next, args, at, lane);
      fetch_x(u + 1);
    }
    multiply_unit<F, kManyN>(sum, args, unit, [&](int t, int s) {
      return *reinterpret_cast<const uint2*>(&shared[u % 2][8 * t + g][16 * s + 4 * c]);
    });
    if (u + 1 < end) continue;
#pragma unroll
    for (int i = 0; i < 4 * kManyN; ++i) {
      float& s = sum[i / 4][i % 4];
      float& all = total[i / 4][i % 4];
      all = segment == 0 ? s : __fadd_rn(all, s);
      s = 0.0f;
    }
    end = first_unit(args, ++segment + 1);
  }
  if (tile >= tiles) return;
#pragma unroll
  for (int t = 0; t < kManyN; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 8 * t + 2 * c + i % 2;
      if (r < n) put(args, row + r, tile * kTile + g + 8 * (i / 2), total[t][i]);
    }
  }
}

// A warp widens units of one tile: blockIdx.x the tile, counted from `first`.
template <typename F>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const __grid_constant__ Args args, int64_t first, uint16_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, c = lane % 4;
  const int64_t tile = first / kTile + blockIdx.x;
  for (int u = static_cast<int>(blockIdx.y) * kWarps + warp; u < args.n_units;
       u += static_cast<int>(gridDim.y) * kWarps) {
    Unit<F> unit;
    load_unit(unit, args, args.weight + (tile * args.n_units + u) * args.unit_bytes, lane);
    float scale[2][4] = {}, m[2][4] = {};
    if constexpr (F::kMin) mins_of(m, args, unit);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      constexpr int kEach = F::kFoldSteps;
      if (F::kFold != 0 && s % (4 * kEach) == 0) scales_of(scale, args, unit, s / (4 * kEach));
      uint32_t a[4];
      fragment(a, args, unit, s);
      const int input = u * kUnit + 16 * s + 4 * c;
      if (input >= args.n_in) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t output = tile * kTile + g + 8 * h;
        if (output >= args.n_out) continue;
        const float factor = args.factors[output];
        uint32_t out[2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          float2 v = unpack_bf16(a[2 * q + h]);
          if constexpr (F::kFold != 0) {
            const int f = s / kEach % 4;
            v.x = __fmaf_rn(v.x, scale[h][f], m[h][f]);
            v.y = __fmaf_rn(v.y, scale[h][f], m[h][f]);
          }
          out[q] = pack_bf16(v.x * factor, v.y * factor);
        }
        *reinterpret_cast<uint2*>(to + (output - first) * args.n_in + input) =
            make_uint2(out[0], out[1]);
      }
    }
  }
}

Args args_of(const LinearCuda& weight) {
  const FewBits& form = weight.few;
  Args args = {};
  args.weight = static_cast<const uint8_t*>(weight.weight);
  args.factors = weight.scales;
  args.n_out = weight.n_out;
  args.n_in = static_cast<int32_t>(weight.n_in);
  args.n_units = static_cast<int32_t>(few_units(weight.n_in));
  args.n_segments = static_cast<int32_t>(std::min<int64_t>(args.n_units, kFewSegments));
  args.unit_bytes = static_cast<int32_t>(form.unit_bytes());
  args.scale_record = form.scale_record();
  args.min_record = form.min_record();
  args.super_record = form.super_record();
  args.scales_at = static_cast<int32_t>(form.codes_bytes());
  args.mins_at = args.scales_at + 8 * args.scale_record;
  args.super_at = args.mins_at + 8 * args.min_record;
  args.groups = static_cast<int32_t>(form.groups());
  args.scale = form.format.scale;
  args.min = form.format.min;
  // -(128 + zero), of bf16: 128 and more have the step 1.
  args.zero = 0xc300c300u + static_cast<uint32_t>(form.zero) * 0x00010001u;
  const bool e8m0 = form.format.scale == GroupScale::kE8m0;
  args.scale_factor = e8m0 ? 128 : 16;
  args.scale_added = e8m0 ? 0 : (235u << 7) * 0x00010001u;
  return args;
}

// body(Form) of the weight's.
template <typename Body>
void with_form(const FewBits& form, const Body& body) {
  const bool narrow = form.format.group == 16;
  const bool min = form.format.min == GroupMin::kAdded || form.format.min == GroupMin::kSuper;
  switch (form.codes) {
    case FewCodes::kInt4:
      return min ? body(Form<FewCodes::kInt4, 32, true>())
                 : body(Form<FewCodes::kInt4, 32, false>());
    case FewCodes::kE2m1:
      return body(Form<FewCodes::kE2m1, 0, false>());
    case FewCodes::kIq4:
      return body(Form<FewCodes::kIq4, 32, false>());
    case FewCodes::kInt6:
      if (narrow) return body(Form<FewCodes::kInt6, 16, false>());
      return min ? body(Form<FewCodes::kInt6, 32, true>())
                 : body(Form<FewCodes::kInt6, 32, false>());
    case FewCodes::kInt8:
      return body(Form<FewCodes::kInt8, 32, false>());
  }
}

}  // namespace

void linear_few(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                bool accumulate) {
  REPLAYSSM_CHECK(x.dtype == DType::kBF16 && in_pieces(x) && is_activation(y.dtype), "x ",
                  dtype_name(x.dtype), ", or rows that are not aligned");
  Args args = args_of(weight);
  args.x = static_cast<const uint16_t*>(x.data);
  args.x_stride = x.stride;
  args.rows = y.rows;
  args.y = y.data;
  args.y_dtype = y.dtype;
  args.y_stride = y.stride;
  args.accumulate = accumulate;
  const auto tiles = static_cast<unsigned>(few_tiles(weight.n_out));
  with_form(weight.few, [&](auto form) {
    using F = decltype(form);
    const auto few = [&](auto* kernel, int64_t rows) {
      kernel<<<dim3(tiles, blocks_for(y.rows, rows)), kThreads, 0, context.stream()>>>(args);
    };
    if (y.rows <= 8) {
      few(few_rows_kernel<F, 1>, 8);
    } else if (y.rows <= 32) {
      few(few_rows_kernel<F, 4>, 32);
    } else {
      const dim3 grid(blocks_for(tiles, kWarps), blocks_for(y.rows, kManyRows));
      many_rows_kernel<F><<<grid, kThreads, 0, context.stream()>>>(args);
    }
  });
  check_launch("linear");
}

void widen_few(const CudaContext& context, const LinearCuda& weight, int64_t first, int64_t n,
               void* to) {
  REPLAYSSM_CHECK(first % kTile == 0, first);
  const Args args = args_of(weight);
  const dim3 grid(blocks_for(n, kTile), blocks_for(args.n_units, 4 * kWarps));
  with_form(weight.few, [&](auto form) {
    widen_kernel<decltype(form)>
        <<<grid, kThreads, 0, context.stream()>>>(args, first, static_cast<uint16_t*>(to));
  });
  check_launch("linear");
}

}  // namespace replayssm::ops::cuda
