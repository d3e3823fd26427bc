// Of StepBlock: the checkpoint brought forward by one interval.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

// The weighted ring values of the interval at `base`: rows g (even i) and g+8 (odd) of product m,
// slots 2c, 2c+1 (i < 2) and 2c+8, 2c+9. KDA's weights are in the keys.
template <typename T>
__device__ void StepBlock<T>::weighted_values(int base, int m, float2 weighted[4]) const {
  float weight[4];
  uint32_t x[4][kMs];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int slot = 2 * c() + i % 2 + i / 2 * 8;
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
    weighted[i] = T::kMamba ? unpack_bf16(pair) : unpack_half(pair);
    if constexpr (!T::kKda) {
      weighted[i].x *= weight[first];
      weighted[i].y *= weight[first + 1];
    }
  }
}

// As a sum of 16-bit operands [rows x slots]; factor: of the lane's two rows.
template <typename T>
__device__ void StepBlock<T>::fold_operand(const float2 weighted[4], const float factor[2],
                                           FoldOperand parts) const {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low = weighted[i].x * factor[i % 2], high = weighted[i].y * factor[i % 2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      parts[part][i] = T::kMamba ? pack_bf16(low, high) : pack_half(low, high);
      const float2 taken = T::kMamba ? unpack_bf16(parts[part][i]) : unpack_half(parts[part][i]);
      low -= taken.x;
      high -= taken.y;
    }
  }
}

// d += the weighted rows for 16 keys. d[0..3]: the product over the step's first eight keys,
// d[4..7]: its second eight.
template <typename T>
__device__ void StepBlock<T>::fold_step(uint32_t keys, int step, const FoldOperand parts,
                                        float d[8]) const {
  uint32_t k[4];
  load_matrices_transposed(k, keys + step * 32);
  if constexpr (T::kKda) {
    uint32_t lost[4];
    load_matrices_transposed(lost, keys + step * 32 + kSlots * T::kKeyStride * 2);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t* a = parts[0];
      mma_f16(d + 4 * n, a[0], a[1], a[2], a[3], k[2 * n], k[2 * n + 1]);
      mma_f16(d + 4 * n, a[0], a[1], a[2], a[3], lost[2 * n], lost[2 * n + 1]);
    }
  } else {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      // The smaller parts of three have sums of their own: each product cuts off what it adds to.
      float small[4] = {};
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint32_t* a = parts[part];
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

// The decays of the lane's keys of a step: 2c, 2c+1, 2c+8, 2c+9.
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

// Of fold: products [first, first + kGroup), to be rounded one by one. slot: the stored tiles.
template <typename T>
template <int kGroup>
__device__ void StepBlock<T>::fold_group(uint32_t keys, int first, const FoldOperand parts[],
                                         const float decay[], uint8_t* slot) const {
#pragma unroll 2
  for (int step = 0; step < T::kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int m = first + i;
      // {row g: keys 2c, 2c+1; row g+8}, then keys 2c+8, 2c+9
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
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const float2 two =
              T::kCheckpoint == DType::kF16 ? unpack_half(r[word]) : unpack_bf16(r[word]);
          old[2 * word] = two.x;
          old[2 * word + 1] = two.y;
        }
      }
      // The tensor cores cut their sums off; the old state, kept for thousands of folds, is added
      // with rounding.
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
        if constexpr (T::kCheckpoint == DType::kF16) {
          if (slot == nullptr && !T::kSweep) continue;
          if (n_largest(larger(larger(r[0], r[1]), larger(r[2], r[3]))) != 0) {
            count_saturated(n_largest(r[0]) + n_largest(r[1]) + n_largest(r[2]) + n_largest(r[3]));
          }
        }
      }
    }
  }
}

// S <- e^{G_end} S + sum_j w_j u_j k_j^T of the interval at `base`, all of whose rows stand in
// shared memory, rounded to the checkpoint's dtype. A step writes it to the write slot if it was
// pending; a sweep, if it is the last grid point's.
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
  // int8's products take one copy of the code: four would not fit the instruction cache.
  constexpr int kGroup = T::kInt8 || kMs % 2 == 1 ? 1 : 2;
#pragma unroll(T::kInt8 ? 1 : kMs)
  for (int first = 0; first < kMs; first += kGroup) {
    FoldOperand parts[kGroup];
    float decay[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      // KDA's is a decay a key channel, kept elsewhere.
      decay[i] = T::kKda ? 1.0f : s_.gates[head_of(set_of(first + i))][parity(base)][kSlots - 1].x;
      if constexpr (!T::kInt8) {
        float2 weighted[4];
        const float one[2] = {1, 1};
        weighted_values(base, first + i, weighted);
        fold_operand(weighted, one, parts[i]);
      }
    }
    if constexpr (T::kInt8) {
      fold_int8(keys, base, first, decay[0], slot);
    } else {
      fold_group<kGroup>(keys, first, parts, decay, slot);
    }
  }
}

// int8 needs a row's largest value before it can round: a product's rows in registers, as fp16 in a
// unit of the row's own: the old scale with its decay, so that the old bytes are whole numbers, or
// more where new values are far larger.
template <typename T>
__device__ void StepBlock<T>::fold_int8(uint32_t keys, int base, int m, float decay,
                                        uint8_t* slot) {
  float* const row_scale = &s_.row_scale[lane_row(m)];
  float unit[2], keep[2];  // keep: units of the old bytes
  bool plain = true;
  FoldOperand parts;  // in units: below 129
  {
    float2 weighted[4];
    weighted_values(base, m, weighted);
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float old = decay * row_scale[half];
      float most = 0;
#pragma unroll
      for (int i = half; i < 4; i += 2) {
        most = fmaxf(most, fmaxf(fabsf(weighted[i].x), fabsf(weighted[i].y)));
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        most = fmaxf(most, __shfl_xor_sync(kFull, most, step));
      }
      unit[half] = fmaxf(old, fmaxf(most * 0x1p-7f, 0x1p-110f));
      factor[half] = reciprocal(unit[half]);
      keep[half] = unit[half] == old ? 1.0f : old * factor[half];
      plain &= unit[half] == old;
    }
    fold_operand(weighted, factor, parts);
  }
  plain = __all_sync(kFull, plain);
  // Columns of the unit matrix: a product with it brings bytes, read as the fp16 numbers
  // 1024 + byte, into fp32 sums.
  const uint32_t one = 2 * c() == g() ? 0x3c00u : 2 * c() + 1 == g() ? 0x3c000000u : 0;
  uint32_t x[T::kSteps][4];  // {row g, row g+8} of the step's first eight keys, of its second
  float largest[2];
  for (bool first = true;; first = false) {
    uint32_t top[2] = {0, 0};
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) {
      const uint4 raw = *chunk(step / 2, m);
      const uint32_t first = step % 2 == 0 ? raw.x : raw.z;
      const uint32_t second = step % 2 == 0 ? raw.y : raw.w;
      float d[8];
      unit_product(d, __byte_perm(first, 0x64646464u, 0x4140),
                   __byte_perm(first, 0x64646464u, 0x4342), one, -1152.0f);
      unit_product(d + 4, __byte_perm(second, 0x64646464u, 0x4140),
                   __byte_perm(second, 0x64646464u, 0x4342), one, -1152.0f);
      if (!plain) {
#pragma unroll
        for (int e = 0; e < 8; ++e) d[e] *= keep[e / 2 % 2];
      }
      if constexpr (T::kKda) {
        float keys_decay[4];
        fold_decay(step, 1.0f, keys_decay);
#pragma unroll
        for (int e = 0; e < 8; ++e) d[e] *= keys_decay[e / 4 * 2 + e % 2];
      }
      fold_step(keys, step, parts, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[step][i] = pack_half(d[2 * i], d[2 * i + 1]);
        top[i % 2] = larger(top[i % 2], x[step][i]);
      }
    }
    bool again = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        top[half] = larger(top[half], __shfl_xor_sync(kFull, top[half], step));
      }
      const float2 two = unpack_half(top[half]);
      largest[half] = max_nan(two.x, two.y);
      // Mamba-2's keys may be of any size: as often as it takes. The others' are below one, and
      // fp16 operands take one step.
      const bool up = T::kMamba && largest[half] == INFINITY && unit[half] < 0x1p100f;
      const bool down = largest[half] < 0x1p-8f && unit[half] > 0x1p-100f && (T::kMamba || first);
      if (up || down) {
        again = true;
        constexpr float kStep = T::kMamba ? 0x1p12f : 0x1p8f;
        const float back = up ? 1.0f / kStep : kStep;
        unit[half] *= up ? kStep : 1.0f / kStep;
        keep[half] *= back;
#pragma unroll
        for (int i = half; i < 4; i += 2) {
          const float2 pair = T::kMamba ? unpack_bf16(parts[0][i]) : unpack_half(parts[0][i]);
          parts[0][i] = T::kMamba ? pack_bf16(pair.x * back, pair.y * back)
                                  : pack_half(pair.x * back, pair.y * back);
        }
      }
    }
    if (!__any_sync(kFull, again)) break;
    plain = false;
  }
  __half2 inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // As the CPU's: to seventeen bits, so that q * scale is exact in fp32 and the scale of the row
    // so given is the same again; zero below 2^-100; NaN where the row is not finite.
    const bool zero = largest[half] * unit[half] < 0x1p-100f;
    const float steps = fminf(127.0f * reciprocal(largest[half]), 65504.0f);  // of a unit
    const __half quanta = __float2half_rn(zero ? 0.0f : largest[half] > 0 ? steps : largest[half]);
    const float full = unit[half] * reciprocal(__half2float(quanta));
    const float split = full * 129.0f;
    const float step = zero ? 0.0f : split - (split - full);
    inverse[half] = __half2half2(quanta);
    if (c() == 0) row_scale[half] = step;
    if (slot != nullptr && c() == 0) {
      a_.scale[write_slot_ * a_.scale_slot_stride + first_row_ + lane_row(m) + half] = step;
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
    *chunk(i, m) = raw;
    if (slot != nullptr) *reinterpret_cast<uint4*>(slot + chunk_offset(i, m)) = raw;
  }
  __syncwarp();  // the rows' new scales
}

}  // namespace replayssm::cuda
