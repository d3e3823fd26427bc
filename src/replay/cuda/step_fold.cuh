// Of StepBlock: the checkpoint brought forward by one interval.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

// e^{G_end - G_slot} (Mamba-2: times dt) of the lane's slots 2c, 2c+1, 2c+8, 2c+9.
template <typename T>
__device__ void StepBlock<T>::fold_weights(int p, int set, float weight[4], float& decay) const {
  const int h = head_of(set);
  const float2 end = s_.log_decay[h][p][kSlots - 1];
  decay = s_.gates[h][p][kSlots - 1].x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int slot = 2 * c() + i % 2 + i / 2 * 8;
    const float2 at = s_.log_decay[h][p][slot];
    weight[i] = expf((end.x - at.x) + (end.y - at.y));
    if constexpr (T::kMamba) weight[i] = __fmul_rn(weight[i], s_.gates[h][p][slot].y);
  }
}

// The weighted ring values as the sum of two 16-bit operands [rows x slots].
template <typename T>
__device__ void StepBlock<T>::fold_operand(int p, int m, const float weight[4], uint32_t top[4],
                                           uint32_t rest[4]) const {
  uint32_t x[4][kMs];
#pragma unroll
  for (int i = 0; i < 4; ++i) read_rows(s_.values[p][2 * c() + i % 2 + i / 2 * 8], x[i]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // a0: row g, slots 2c, 2c+1; a1: row g+8; a2, a3: slots + 8
    const int first = i / 2 * 2;
    const uint32_t pair = i % 2 == 0 ? low_halves(x[first][m], x[first + 1][m])
                                     : high_halves(x[first][m], x[first + 1][m]);
    const float2 two = T::kMamba ? unpack_bf16(pair) : unpack_half(pair);
    const float low = __fmul_rn(two.x, weight[first]);
    const float high = __fmul_rn(two.y, weight[first + 1]);
    top[i] = T::kMamba ? pack_bf16(low, high) : pack_half(low, high);
    const float2 rounded = T::kMamba ? unpack_bf16(top[i]) : unpack_half(top[i]);
    rest[i] = T::kMamba ? pack_bf16(low - rounded.x, high - rounded.y)
                        : pack_half(low - rounded.x, high - rounded.y);
  }
}

// d += the weighted rows for 16 keys. d[0..3]: the product over the step's first eight keys,
// d[4..7]: its second eight.
template <typename T>
__device__ void StepBlock<T>::fold_step(uint32_t keys, int step, const uint32_t top[4],
                                        const uint32_t rest[4], float d[8]) const {
  uint32_t k[4];
  load_matrices_transposed(k, keys + step * 32);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    if constexpr (T::kMamba) {
      mma_bf16(d + 4 * n, top[0], top[1], top[2], top[3], k[2 * n], k[2 * n + 1]);
      mma_bf16(d + 4 * n, rest[0], rest[1], rest[2], rest[3], k[2 * n], k[2 * n + 1]);
    } else {
      mma_f16(d + 4 * n, top[0], top[1], top[2], top[3], k[2 * n], k[2 * n + 1]);
      mma_f16(d + 4 * n, rest[0], rest[1], rest[2], rest[3], k[2 * n], k[2 * n + 1]);
    }
  }
}

template <typename T>
__device__ void StepBlock<T>::store_chunk(int i, int m, int half, uint4 raw, bool to_slot) const {
  *chunk(i, m, half) = raw;
  if (!to_slot) return;
  uint8_t* tile = static_cast<uint8_t*>(a_.checkpoint) +
                  (write_slot_ * a_.checkpoint_slot_stride +
                   int64_t{first_row_ + warp() * kTileRows} * T::kKeyDim) *
                      T::kElementBytes;
  reinterpret_cast<uint4*>(tile)[((i * 2 + m) * 2 + half) * 32 + threadIdx.x % 32] = raw;
}

// S <- e^{G_end} S + sum_j w_j u_j k_j^T of the interval at `base`, all of whose rows stand in
// shared memory, rounded to the checkpoint's dtype; to the write slot if to_slot.
template <typename T>
__device__ void StepBlock<T>::fold(int base, bool to_slot) {
  const int p = parity(base);
  wait_state();
  const int lane = threadIdx.x % 32;
  // Matrices {slots 0..7, slots 8..15} of the step's first eight keys, then of its second.
  const uint32_t keys = shared_address(&s_.keys[p][lane / 8 % 2 * 8 + lane % 8][lane / 16 * 8]);
  uint32_t top[kMs][4], rest[kMs][4];
  float decay[kMs];
#pragma unroll
  for (int m = 0; m < kMs; ++m) {
    float weight[4];
    fold_weights(p, T::kWide ? 0 : m, weight, decay[m]);
    fold_operand(p, m, weight, top[m], rest[m]);
  }
  if constexpr (T::kInt8) {
#pragma unroll
    for (int m = 0; m < kMs; ++m) fold_int8(keys, m, top[m], rest[m], decay[m], to_slot);
    return;
  }
  int saturated = 0;
#pragma unroll 1
  for (int i = 0; i < T::kChunks; ++i) {
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      const uint4 low = *chunk(i, m, 0), high = *chunk(i, m, 1);
      const uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
      uint32_t folded[2][4];
#pragma unroll
      for (int sub = 0; sub < T::kChunkSteps; ++sub) {
        float d[8];  // {row g: keys 2c, 2c+1; row g+8}, then keys 2c+8, 2c+9
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (T::kCheckpoint == DType::kF32) {
            d[4 * n] = __uint_as_float(l[2 * n]);
            d[4 * n + 1] = __uint_as_float(l[2 * n + 1]);
            d[4 * n + 2] = __uint_as_float(h[2 * n]);
            d[4 * n + 3] = __uint_as_float(h[2 * n + 1]);
          } else {
            const bool half_float = T::kCheckpoint == DType::kF16;
            const float2 x = half_float ? unpack_half(l[2 * sub + n]) : unpack_bf16(l[2 * sub + n]);
            const float2 y = half_float ? unpack_half(h[2 * sub + n]) : unpack_bf16(h[2 * sub + n]);
            d[4 * n] = x.x;
            d[4 * n + 1] = x.y;
            d[4 * n + 2] = y.x;
            d[4 * n + 3] = y.y;
          }
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) d[e] = __fmul_rn(d[e], decay[m]);
        fold_step(keys, i * T::kChunkSteps + sub, top[m], rest[m], d);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float x = d[4 * n + 2 * half], y = d[4 * n + 2 * half + 1];
            if constexpr (T::kCheckpoint == DType::kF32) {
              folded[half][2 * n] = __float_as_uint(x);
              folded[half][2 * n + 1] = __float_as_uint(y);
            } else if constexpr (T::kCheckpoint == DType::kF16) {
              const uint32_t raw = pack_half(x, y), bits = saturate_half2(raw);
              if (raw != bits) {
                saturated += ((raw ^ bits) & 0xffffu) != 0;
                saturated += (raw ^ bits) >> 16 != 0;
              }
              folded[half][2 * sub + n] = bits;
            } else {
              folded[half][2 * sub + n] = pack_bf16(x, y);
            }
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_chunk(i, m, half,
                    make_uint4(folded[half][0], folded[half][1], folded[half][2], folded[half][3]),
                    to_slot);
      }
    }
  }
  if (to_slot && saturated != 0) count_saturated(saturated);
}

// int8 needs a row's largest value before it can round: a product's rows in registers.
template <typename T>
__device__ void StepBlock<T>::fold_int8(uint32_t keys, int m, const uint32_t top[4],
                                        const uint32_t rest[4], float decay, bool to_slot) {
  float d[T::kSteps][8];
  float largest[2] = {0, 0};
  const float scale[2] = {__fmul_rn(decay, row_scale_[m][0]), __fmul_rn(decay, row_scale_[m][1])};
#pragma unroll
  for (int i = 0; i < T::kChunks; ++i) {
    const uint4 low = *chunk(i, m, 0), high = *chunk(i, m, 1);
    const uint32_t x[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
#pragma unroll
    for (int sub = 0; sub < 4; ++sub) {
      float* s = d[4 * i + sub];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          // 2^23 + byte, as a float's bits.
          const uint32_t bits = __byte_perm(x[half][sub], 0x4b000000u, 0x7540 + e);
          s[e / 2 * 4 + half * 2 + e % 2] =
              __fmul_rn(__uint_as_float(bits) - 8388736.0f, scale[half]);
        }
      }
      fold_step(keys, 4 * i + sub, top, rest, s);
#pragma unroll
      for (int e = 0; e < 8; ++e) largest[e / 2 % 2] = fmaxf(largest[e / 2 % 2], fabsf(s[e]));
    }
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      largest[half] = fmaxf(largest[half], __shfl_xor_sync(kFull, largest[half], step));
    }
    row_scale_[m][half] = __fdiv_rn(largest[half], 127.0f);
    inverse[half] = largest[half] > 0 ? __fdiv_rn(127.0f, largest[half]) : 0.0f;
    if (to_slot && c() == 0) {
      a_.scale[write_slot_ * a_.scale_slot_stride + first_row_ + lane_row(m) + half] =
          row_scale_[m][half];
    }
  }
#pragma unroll
  for (int i = 0; i < T::kChunks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t r[4];
#pragma unroll
      for (int sub = 0; sub < 4; ++sub) {
        const float* s = d[4 * i + sub] + 2 * half;
        // 1.5 * 2^23 + 128 + q: rounding to nearest even leaves the byte in the low bits.
        uint32_t b[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          b[e] = __float_as_uint(__fmul_rn(s[e / 2 * 4 + e % 2], inverse[half]) + 12583040.0f);
        }
        r[sub] =
            __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
      }
      store_chunk(i, m, half, make_uint4(r[0], r[1], r[2], r[3]), to_slot);
    }
  }
}

}  // namespace replayssm::cuda
