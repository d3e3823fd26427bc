// StepBlock::fold() and its parts: moves the checkpoint forward by one interval.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

// The interval's ring values times their fold weights, in mma A operand order, per group of 16
// slots: rows g (even i) and g+8 (odd i) of product m, slots 2c, 2c+1 (i < 2) and 2c+8, 2c+9. KDA's
// weights are in the keys.
template <typename T>
__device__ void StepBlock<T>::weighted_values(int base, int m, WeightedValues weighted) const {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    float weight[4];
    uint32_t x[4][kMs];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = group * 16 + 2 * c() + i % 2 + i / 2 * 8;
      weight[i] = s_.fold_weight[head_of(set_of(m))][parity(base)][slot];
      const uint16_t* rows = s_.values[interval_row(base) + slot];
      if constexpr (T::kInt8) {
        x[i][0] = *reinterpret_cast<const uint32_t*>(rows + lane_row(m));
      } else {
        read_rows(rows, x[i]);
      }
    }
    const int own = T::kInt8 ? 0 : m;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = i / 2 * 2;
      const uint32_t pair = i % 2 == 0 ? low_halves(x[first][own], x[first + 1][own])
                                       : high_halves(x[first][own], x[first + 1][own]);
      float2& two = weighted[group][i];
      two = T::kMamba ? unpack_bf16(pair) : unpack_half(pair);
      if constexpr (!T::kKda) {
        two.x *= weight[first];
        two.y *= weight[first + 1];
      }
    }
  }
}

// Splits the weighted values, times a factor per row, into kParts 16-bit operands [rows x slots]
// whose sum they are.
template <typename T>
__device__ void StepBlock<T>::fold_operand(const WeightedValues weighted, const float factor[2],
                                           FoldOperand parts) const {
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) {
    const float2 two = weighted[i / 4][i % 4];
    float low = two.x * factor[i % 2], high = two.y * factor[i % 2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint32_t& bits = parts[i / 4][part][i % 4];
      bits = T::kMamba ? pack_bf16(low, high) : pack_half(low, high);
      const float2 taken = T::kMamba ? unpack_bf16(bits) : unpack_half(bits);
      low -= taken.x;
      high -= taken.y;
    }
  }
}

// d += sum_j (weighted value of slot j) k_j^T for the 16 keys of a step: d[0..3] its first eight
// keys, d[4..7] its second eight. keys: ldmatrix address of the interval's keys.
template <typename T>
__device__ void StepBlock<T>::fold_step(uint32_t keys, int step, const FoldOperand parts,
                                        float d[8]) const {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t own = keys + group * 16 * T::kKeyStride * 2 + step * 32;
    uint32_t k[4];
    load_matrices_transposed(k, own);
    if constexpr (T::kKda) {
      uint32_t lost[4];
      load_matrices_transposed(lost, own + kSlots * T::kKeyStride * 2);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t* a = parts[group][0];
        mma_f16(d + 4 * n, a[0], a[1], a[2], a[3], k[2 * n], k[2 * n + 1]);
        mma_f16(d + 4 * n, a[0], a[1], a[2], a[3], lost[2 * n], lost[2 * n + 1]);
      }
    } else {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        // The smaller parts of three get an accumulator of their own: the tensor cores truncate
        // against the magnitude of what they add to.
        float small[4] = {};
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const uint32_t* a = parts[group][part];
          float* sum = kParts == 3 && part > 0 ? small : d + 4 * n;
          if constexpr (T::kMamba) {
            mma_bf16(sum, a[0], a[1], a[2], a[3], k[2 * n], k[2 * n + 1]);
          } else {
            mma_f16(sum, a[0], a[1], a[2], a[3], k[2 * n], k[2 * n + 1]);
          }
        }
        if constexpr (kParts == 3) {
#pragma unroll
          for (int e = 0; e < 4; ++e) d[4 * n + e] += small[e];
        }
      }
    }
  }
}

// Decays over the interval of the lane's keys in a step: 2c, 2c+1, 2c+8, 2c+9.
template <typename T>
__device__ void StepBlock<T>::fold_decay(int step, float decay, float x[4]) const {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (T::kKda) {
      x[i] = s_.kda.decay[step * kStepKeys + 2 * c() + i % 2 + i / 2 * 8];
    } else {
      x[i] = decay;
    }
  }
}

// fold() for products [first, first + kGroup) of a checkpoint without scales: reads the state chunk
// by chunk, adds, rounds, writes it back in place and, unless slot is null, to the stored tiles at
// `slot`. The accumulator layout D is the operand layout A, so nothing moves between lanes.
template <typename T>
template <int kGroup>
__device__ void StepBlock<T>::fold_group(uint32_t keys, int first, const FoldOperand parts[],
                                         const float decay[], uint8_t* slot) const {
  const bool counts = T::kSweep || slot != nullptr;
  uint32_t top[kGroup] = {};  // fp16: largest magnitude written; counted only if it saturated
#pragma unroll 2
  for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int m = first + i;
      // old, d: {row g: keys 2c, 2c+1; row g+8: the same}, then keys 2c+8 and 2c+9. Each dtype's
      // chunk (tile.h) is brought into this order and back.
      float old[8], d[8] = {};
      if constexpr (T::kCheckpoint == DType::kF32) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const float4 x = *reinterpret_cast<const float4*>(chunk(2 * step + pair, m));
          old[4 * pair] = x.x;
          old[4 * pair + 2] = x.y;
          old[4 * pair + 1] = x.z;
          old[4 * pair + 3] = x.w;
        }
      } else {
        const uint4 raw = *chunk(step, m);
        const uint32_t r[4] = {raw.x, raw.y, raw.z, raw.w};
        if constexpr (T::kCheckpoint == DType::kF16) {
          // Widened by a product with the unit matrix: fewer instructions than conversions.
          constexpr float kZero[4] = {};
          unit_product(old, r[0], r[1], unit_columns(), kZero);
          unit_product(old + 4, r[2], r[3], unit_columns(), kZero);
        } else {
#pragma unroll
          for (int word = 0; word < 4; ++word) {
            const float2 two = unpack_bf16(r[word]);
            old[2 * word] = two.x;
            old[2 * word + 1] = two.y;
          }
        }
      }
      // The tensor cores truncate their sums. The old state lives for thousands of folds, so it is
      // added with rounding, outside of them.
      fold_step(keys, step, parts[i], d);
      float keys_decay[4];
      fold_decay(step, decay[i], keys_decay);
#pragma unroll
      for (int e = 0; e < 8; ++e) d[e] = fmaf(old[e], keys_decay[e / 4 * 2 + e % 2], d[e]);
      if constexpr (T::kCheckpoint == DType::kF32) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const float4 x =
              make_float4(d[4 * pair], d[4 * pair + 2], d[4 * pair + 1], d[4 * pair + 3]);
          *reinterpret_cast<float4*>(chunk(2 * step + pair, m)) = x;
          if (slot != nullptr) {
            *reinterpret_cast<float4*>(slot + chunk_offset(2 * step + pair, m)) = x;
          }
        }
      } else {
        uint32_t r[4];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          r[word] = T::kCheckpoint == DType::kF16 ? pack_half_finite(d[2 * word], d[2 * word + 1])
                                                  : pack_bf16(d[2 * word], d[2 * word + 1]);
        }
        const uint4 raw = make_uint4(r[0], r[1], r[2], r[3]);
        *chunk(step, m) = raw;
        if (slot != nullptr) *reinterpret_cast<uint4*>(slot + chunk_offset(step, m)) = raw;
        if (T::kCheckpoint == DType::kF16 && counts) {
#pragma unroll
          for (int word = 0; word < 4; ++word) top[i] = larger_number(top[i], r[word]);
        }
      }
    }
  }
  // Saturated values are counted in a second pass over the chunks, and only if there are any.
  if constexpr (T::kCheckpoint == DType::kF16) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (n_largest(top[i]) == 0) continue;
      int n = 0;
#pragma unroll 1
      for (int step = 0; step < T::kSteps; ++step) {
        const uint4 raw = *chunk(step, first + i);
        n += n_largest(raw.x) + n_largest(raw.y) + n_largest(raw.z) + n_largest(raw.w);
      }
      count_saturated(n);
    }
  }
}

// S <- e^{G_end} S + sum_j w_j u_j k_j^T over the interval at `base`, rounded to the checkpoint's
// dtype. All rows of the interval are in shared memory. A pending fold is also written to the write
// slot; a crossing one is not. A sweep writes the last grid point's.
template <typename T>
__device__ void StepBlock<T>::fold(int base, bool pending) {
  const bool to_slot = T::kSweep ? base + kSlots == (end_ & ~(kSlots - 1)) : pending;
  wait_state();
  const int lane = threadIdx.x % 32;
  // Matrices {slots 0..7, slots 8..15} of the step's first eight keys, then of its second.
  uint32_t keys = shared_address(&s_.keys[interval_row(base) + lane % 16][lane / 16 * 8]);
  if constexpr (T::kKda) {
    kda_fold_keys(base);
    keys = shared_address(&s_.kda.fold_keys[0][lane % 16][lane / 16 * 8]);
  }
  uint8_t* slot = nullptr;
  if (to_slot) {
    slot = static_cast<uint8_t*>(a_.checkpoint) +
           (write_slot_ * a_.checkpoint_slot_stride + int64_t{first_row_} * T::kKeyDim) *
               T::kElementBytes;
  }
  if constexpr (T::kInt8) {
    float* scales = nullptr;
    if (to_slot) scales = a_.scale + write_slot_ * a_.scale_slot_stride + first_row_;
    // Not unrolled: one copy per product would not fit the instruction cache.
#pragma unroll 1
    for (int m = 0; m < kMs; ++m) fold_int8(keys, base, m, slot, scales);
  } else {
    // Two products at a time: their loads and sums overlap, and registers still suffice.
    constexpr int kGroup = kMs % 2 == 1 ? 1 : 2;
#pragma unroll
    for (int first = 0; first < kMs; first += kGroup) {
      FoldOperand parts[kGroup];
      float decay[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        decay[i] = interval_decay(base, first + i);
        WeightedValues weighted;
        const float one[2] = {1, 1};
        weighted_values(base, first + i, weighted);
        fold_operand(weighted, one, parts[i]);
      }
      fold_group<kGroup>(keys, first, parts, decay, slot);
    }
  }
}

// Decay of product m's head over the whole interval. KDA: 1, its decays are per key channel.
template <typename T>
__device__ float StepBlock<T>::interval_decay(int base, int m) const {
  return T::kKda ? 1.0f : s_.gates[head_of(set_of(m))][parity(base)][kSlots - 1].x;
}

// Chooses the units of the lane's two rows. weighted: the lane's weighted ring values; old bytes
// have the value byte * decay * row_scale. `first`: of the first try, which also sets `wanted` from
// the largest weighted value.
//   unit    the row's unit: decay * old scale * 2^k, -5 <= k <= 24, at least `wanted`
//   factor  1 / unit
//   above   the high byte that makes an old byte the fp16 number (1024 + byte) * 2^-k
//   start   minus what that adds to the byte's value in units; NaN if the old scale is not finite
template <typename T>
__device__ __forceinline__ void StepBlock<T>::int8_units(const WeightedValues weighted, float decay,
                                                         const float* row_scale, bool first,
                                                         float wanted[2], float unit[2],
                                                         float factor[2], uint32_t above[2],
                                                         float start[4]) const {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float old = decay * row_scale[half];
    float most = fmaxf(fabsf(weighted[0][half].x), fabsf(weighted[0][half].y));
#pragma unroll
    for (int i = half + 2; i < 4 * kGroups; i += 2) {
      const float2 two = weighted[i / 4][i % 4];
      most = fmaxf(most, fmaxf(fabsf(two.x), fabsf(two.y)));
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(kFull, most, step));
    }
    if (first) wanted[half] = fmaxf(most * 0x1p-7f, 0x1p-110f);
    // The range that fp16 allows. Old bytes that would need more are nothing beside the new values.
    const float ratio = fminf(fmaxf(wanted[half] * reciprocal(old), 0x1p-6f), 0x1p23f);
    const uint32_t power = (__float_as_uint(ratio) & 0x7f800000u) + 0x00800000u;
    unit[half] = fmaxf(old * __uint_as_float(power), wanted[half]);
    factor[half] = reciprocal(unit[half]);
    above[half] = 0x64646464u - ((power >> 23) - 127u) * 0x04040404u;
    const float zero = -1152.0f * __uint_as_float(0x7f000000u - power);
    // Two equal numbers that the compiler takes for different ones: otherwise it would copy one
    // register into two for every product.
    start[2 * half] = fmaf(old, 0.0f, zero);
    start[2 * half + 1] = fmaf(-old, 0.0f, zero);
  }
}

// The folded rows in units, as fp16: x[step] = {row g, row g+8} of the step's first eight keys,
// then of its second eight. one: unit_columns(). largest: magnitude over all keys, per row.
template <typename T>
__device__ __forceinline__ void StepBlock<T>::int8_sums(
    uint32_t keys, uint32_t one, const uint8_t* chunks, const FoldOperand parts,
    const uint32_t above[2], const float start[4], uint32_t x[T::kSteps][4],
    float largest[2]) const {
  uint32_t top[2];
#pragma unroll
  for (int step = 0; step < T::kSteps; ++step) {
    const uint4 raw = *reinterpret_cast<const uint4*>(chunks + step / 2 * kInt8ChunkBytes);
    const uint32_t word[2] = {step % 2 == 0 ? raw.x : raw.z, step % 2 == 0 ? raw.y : raw.w};
    float d[8];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      unit_product(d + 4 * n, __byte_perm(word[n], above[0], 0x4140),
                   __byte_perm(word[n], above[1], 0x4342), one, start);
    }
    if constexpr (T::kKda) {
      float keys_decay[4];
      fold_decay(step, 1.0f, keys_decay);
#pragma unroll
      for (int e = 0; e < 8; ++e) d[e] *= keys_decay[e / 4 * 2 + e % 2];
    }
    fold_step(keys, step, parts, d);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[step][i] = pack_half(d[2 * i], d[2 * i + 1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t both = larger(x[step][half], x[step][2 + half]);
      top[half] = step == 0 ? both : larger(top[half], both);
    }
  }
  uint32_t tops = larger(low_halves(top[0], top[1]), high_halves(top[0], top[1]));
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    tops = larger(tops, __shfl_xor_sync(kFull, tops, step));
  }
  largest[0] = unpack_half(tops).x;
  largest[1] = unpack_half(tops).y;
}

// True if a row of the warp overflowed fp16 or lost its precision, so that the sums have to be
// taken again with the units in `wanted`. Mamba-2's keys may have any size: as often as needed. The
// others' keys are below one: at most once.
template <typename T>
__device__ __forceinline__ bool StepBlock<T>::int8_retry(bool first, const float largest[2],
                                                         const float unit[2],
                                                         const uint32_t above[2],
                                                         float wanted[2]) const {
  bool again = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool up = T::kMamba && largest[half] == INFINITY && unit[half] < 0x1p100f;
    const bool down = largest[half] < 0x1p-8f && unit[half] > 0x1p-100f &&
                      (T::kMamba ? above[half] < 0x78787878u : first);
    if (up || down) again = true;
    wanted[half] = unit[half] * (up ? 0x1p12f : down ? T::kMamba ? 0x1p-12f : 0x1p-8f : 1.0f);
  }
  return __any_sync(kFull, again);
}

// fold() of product m of an int8 checkpoint. A row can be rounded only when its largest value is
// known, so the product's rows wait in registers, as fp16 in a unit of each row's own. The unit is
// the old scale with its decay times a power of two, so old bytes keep their value over any number
// of folds. slot, scales: the stored tiles and scales, or null.
template <typename T>
__device__ void StepBlock<T>::fold_int8(uint32_t keys, int base, int m, uint8_t* slot,
                                        float* scales) {
  const int row = lane_row(m), offset = chunk_offset(0, m);
  uint8_t* const chunks = state() + offset;
  float* const row_scale = row_scales() + row;
  const float decay = interval_decay(base, m);
  const uint32_t one = unit_columns();
  uint32_t x[T::kSteps][4];
  float unit[2], largest[2], wanted[2];
  for (bool first = true;; first = false) {
    FoldOperand parts;  // in units
    uint32_t above[2];
    float start[4];
    {
      WeightedValues weighted;
      weighted_values(base, m, weighted);
      float factor[2];
      int8_units(weighted, decay, row_scale, first, wanted, unit, factor, above, start);
      fold_operand(weighted, factor, parts);
    }
    int8_sums(keys, one, chunks, parts, above, start, x, largest);
    if (!int8_retry(first, largest, unit, above, wanted)) break;
  }
  __half2 inverse[2];
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // As on the CPU: a scale has seventeen significant bits, so that q * scale is exact in fp32 and
    // the row so given has the same scale again. Zero below 2^-100; NaN if the row is not finite.
    const bool zero = largest[half] * unit[half] < 0x1p-100f;
    const float steps = min_nan(127.0f * reciprocal(largest[half]), 65504.0f);  // per unit
    const __half quanta = __float2half_rn(zero ? 0.0f : steps);
    const float full = unit[half] * reciprocal(__half2float(quanta));
    const float split = full * 129.0f;
    scale[half] = zero ? 0.0f : split - (split - full);
    inverse[half] = __half2half2(quanta);
  }
  __syncwarp();  // all lanes have read the old scales
  if (c() == 0) {
    *reinterpret_cast<float2*>(row_scale) = make_float2(scale[0], scale[1]);
    if (slot != nullptr) {
      scales[row] = scale[0];
      scales[row + 1] = scale[1];
    }
  }
  // 1024 + 128 + q: rounding to nearest even leaves the byte in the low bits.
  const __half2 bias = __half2half2(__float2half_rn(1152.0f));
#pragma unroll
  for (int i = 0; i < T::kSteps / 2; ++i) {
    uint32_t r[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t* s = &x[2 * i + word / 2][word % 2 * 2];
      r[word] = __byte_perm(as_bits(__hfma2(as_half2(s[0]), inverse[0], bias)),
                            as_bits(__hfma2(as_half2(s[1]), inverse[1], bias)), 0x6420);
    }
    const uint4 raw = make_uint4(r[0], r[1], r[2], r[3]);
    *reinterpret_cast<uint4*>(chunks + i * kInt8ChunkBytes) = raw;
    if (slot != nullptr) *reinterpret_cast<uint4*>(slot + offset + i * kInt8ChunkBytes) = raw;
  }
  __syncwarp();  // publishes the rows' new scales
}

}  // namespace replayssm::cuda
