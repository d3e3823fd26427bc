// Of StepBlock: the positions of one grid interval that a sub-window holds.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

template <typename T>
__device__ void StepBlock<T>::load_operands(uint32_t z[kOperandRegisters],
                                            const uint16_t* queries) const {
  const int lane = threadIdx.x % 32;
  const int column = lane % 8, matrix = lane / 8;
  if constexpr (T::kMamba) {
    const uint32_t row = shared_address(queries + column * T::kKeyStride + matrix * 8);
#pragma unroll
    for (int pair = 0; pair < T::kSteps / 2; ++pair) load_matrices(z + 4 * pair, row + pair * 64);
  } else {
    const int position = position_of(column);
    const uint16_t* key = s_.keys[parity(position)][slot_of(position)];
    const uint16_t* query = queries + column * T::kKeyStride;
    const uint32_t row = shared_address((matrix & 1 ? query : key) + matrix / 2 * 8);
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step) load_matrices(z + 4 * step, row + step * 32);
  }
}

// Dots of the columns with the keys of the interval's slots. Lane 4 g + c: column g, slots 2c,
// 2c+1 ([0]) and 2c+8, 2c+9 ([1]).
template <typename T>
__device__ void StepBlock<T>::scores(const uint32_t z[kOperandRegisters], float key[2][2],
                                     float query[2][2]) const {
  const int lane = threadIdx.x % 32;
  const int slot = lane / 16 * 8 + lane % 8;
  const uint32_t row = shared_address(&s_.keys[parity(base_)][slot][lane / 8 % 2 * 8]);
  float d[2][4] = {};
#pragma unroll
  for (int step = 0; step < T::kSteps; ++step) {
    uint32_t k[4];
    load_matrices(k, row + step * 32);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if constexpr (T::kMamba) {
        mma_bf16(d[j], z[2 * step], 0, z[2 * step + 1], 0, k[2 * j], k[2 * j + 1]);
      } else {
        mma_f16(d[j], z[4 * step], z[4 * step + 1], z[4 * step + 2], z[4 * step + 3], k[2 * j],
                k[2 * j + 1]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      key[j][e] = d[j][e];
      query[j][e] = d[j][T::kMamba ? e : 2 + e];
    }
  }
}

template <typename T>
__device__ uint4* StepBlock<T>::chunk(int i, int m, int half) const {
  return reinterpret_cast<uint4*>(s_.state + warp() * T::kTileBytes) +
         ((i * 2 + m) * 2 + half) * 32 + threadIdx.x % 32;
}

// S z of the warp's tile, before scales.
template <typename T>
__device__ void StepBlock<T>::products(const uint32_t z[kOperandRegisters], Products d) const {
  constexpr int kTilesN = T::kMamba ? 1 : 2;
  constexpr int kStride = T::kMamba ? 2 : 4;
#pragma unroll
  for (int m = 0; m < kMs; ++m) {
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) d[m][n][e] = 0;
    }
  }
#pragma unroll
  for (int i = 0; i < T::kChunks; ++i) {
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      const uint4 low = *chunk(i, m, 0), high = *chunk(i, m, 1);
      const uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int sub = 0; sub < T::kChunkSteps; ++sub) {
        const uint32_t* zs = z + (i * T::kChunkSteps + sub) * kStride;
        const auto b0 = [&](int n) { return zs[n]; };
        const auto b1 = [&](int n) { return zs[kTilesN + n]; };
        if constexpr (T::kCheckpoint == DType::kF16) {
#pragma unroll
          for (int n = 0; n < kTilesN; ++n) {
            mma_f16(d[m][n], l[2 * sub], h[2 * sub], l[2 * sub + 1], h[2 * sub + 1], b0(n), b1(n));
          }
        } else if constexpr (T::kInt8) {
          // 0x64 above a byte is 1024 + byte in fp16; the bias is taken off the sums.
          const uint32_t a[4] = {
              __byte_perm(l[sub], 0x64646464u, 0x4140), __byte_perm(h[sub], 0x64646464u, 0x4140),
              __byte_perm(l[sub], 0x64646464u, 0x4342), __byte_perm(h[sub], 0x64646464u, 0x4342)};
#pragma unroll
          for (int n = 0; n < kTilesN; ++n) {
            mma_f16(d[m][n], a[0], a[1], a[2], a[3], b0(n), b1(n));
          }
        } else {
          float x[2][4];  // [half][key of the lane]
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if constexpr (T::kCheckpoint == DType::kF32) {
              x[0][e] = __uint_as_float(l[e]);
              x[1][e] = __uint_as_float(h[e]);
            } else {
              const float2 low2 = unpack_bf16(l[2 * sub + e / 2]);
              const float2 high2 = unpack_bf16(h[2 * sub + e / 2]);
              x[0][e] = e % 2 == 0 ? low2.x : low2.y;
              x[1][e] = e % 2 == 0 ? high2.x : high2.y;
            }
          }
          product_tf32(d[m], x, zs);
        }
      }
    }
  }
}

// 16 keys of fp32 or bf16: products of tf32; what fp32 has beyond its first 11 bits goes in a
// second one.
template <typename T>
__device__ void StepBlock<T>::product_tf32(float (*d)[4], const float x[2][4],
                                           const uint32_t* z) const {
  constexpr int kTilesN = T::kMamba ? 1 : 2;
  float rest[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      rest[half][e] = x[half][e] - __uint_as_float(__float_as_uint(x[half][e]) & 0xffffe000u);
    }
  }
#pragma unroll
  for (int n = 0; n < kTilesN; ++n) {
    const float2 first = unpack_half(z[n]), second = unpack_half(z[kTilesN + n]);
    mma_tf32(d[n], x[0][0], x[1][0], x[0][1], x[1][1], first.x, first.y);
    mma_tf32(d[n], x[0][2], x[1][2], x[0][3], x[1][3], second.x, second.y);
    if constexpr (T::kCheckpoint == DType::kF32) {
      mma_tf32(d[n], rest[0][0], rest[1][0], rest[0][1], rest[1][1], first.x, first.y);
      mma_tf32(d[n], rest[0][2], rest[1][2], rest[0][3], rest[1][3], second.x, second.y);
    }
  }
}

// The interval's ring values of the first n slots as operands [rows x slots], zero in the others.
template <typename T>
__device__ void StepBlock<T>::load_slots(int n, uint32_t u[kMs][4]) const {
  uint32_t x[4][kMs];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int slot = 2 * c() + i % 2 + i / 2 * 8;
    x[i][0] = x[i][1] = 0;
    if (slot < n) read_rows(s_.values[parity(base_)][slot], x[i]);
  }
#pragma unroll
  for (int m = 0; m < kMs; ++m) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      u[m][2 * j] = low_halves(x[2 * j][m], x[2 * j + 1][m]);
      u[m][2 * j + 1] = high_halves(x[2 * j][m], x[2 * j + 1][m]);
    }
  }
}

// GDN: u of the tokens in columns [first, last), one after another; all of them in the interval's
// first or second eight slots (kHalf). A token's u is its column of  constant + B u.  mine: u of
// the lane's own two columns.
template <typename T>
template <int kHalf>
__device__ void StepBlock<T>::substitute(int first, int last, const Products& constant, uint32_t b0,
                                         uint32_t b1, uint32_t u[kMs][4],
                                         uint32_t mine[2][kMs]) const {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    if (column < first || column >= last) continue;
    const bool own = c() == column / 2;
    int saturated = 0;
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      float d[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) d[e] = constant[m][0][e];
      mma_f16(d, u[m][0], u[m][1], u[m][2], u[m][3], b0, b1);
      const uint32_t raw = pack_half(d[column % 2], d[2 + column % 2]);
      const uint32_t x = saturate_half2(raw);
      if (own) {
        u[m][2 * kHalf] = __byte_perm(u[m][2 * kHalf], x, column % 2 == 0 ? 0x3254 : 0x5410);
        u[m][2 * kHalf + 1] =
            __byte_perm(u[m][2 * kHalf + 1], x, column % 2 == 0 ? 0x3276 : 0x7610);
        mine[column % 2][m] = x;
        saturated += ((raw ^ x) & 0xffffu) != 0;
        saturated += (raw ^ x) >> 16 != 0;
      }
    }
    if (saturated != 0) count_saturated(saturated);
  }
}

template <typename T>
__device__ float StepBlock<T>::value_of(int j, int m, int half) const {
  if constexpr (T::kActivation == DType::kBF16) {
    const float2 two = unpack_bf16(value_[j][m]);
    return half == 0 ? two.x : two.y;
  } else {
    const int position = position_of(2 * c() + j);
    if (position >= end_) return 0;
    const int64_t token = token_ + position - start_;
    return static_cast<const float*>(
        a_.value.data)[token * a_.value.token_stride + first_row_ + lane_row(m) + half];
  }
}

template <typename T>
__device__ void StepBlock<T>::write_output(int position, const float y[kMs][2]) const {
  const int64_t at = (token_ + position - start_) * a_.out.token_stride + first_row_;
  if constexpr (T::kActivation == DType::kBF16) {
    const uint32_t bits[kMs] = {pack_bf16(y[0][0], y[0][1]), pack_bf16(y[1][0], y[1][1])};
    write_rows(static_cast<uint16_t*>(a_.out.data) + at, bits);
  } else {
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        static_cast<float*>(a_.out.data)[at + lane_row(m) + half] = y[m][half];
      }
    }
  }
}

// Positions [from, to) of the interval at base_.
template <typename T>
__device__ void StepBlock<T>::segment(int from, int to) {
  const int p = parity(base_);
  uint32_t z[kOperandRegisters];
  float key_score[2][2], query_score[2][2];
  if constexpr (T::kMamba) {
    load_operands(z, s_.raw_queries[0]);
    scores(z, key_score, query_score);
    load_operands(z, s_.queries[0]);
  } else {
    load_operands(z, s_.queries[0]);
    scores(z, key_score, query_score);
  }

  // Scores with their decay, as operands [slots x columns].
  uint32_t key_weight[2], query_weight[T::kWeightSets][2], query_rest[T::kWeightSets][2];
  {
    const int position = position_of(g());
    const int own = slot_of(position);
    const float factor = s_.query_scale[g()];
#pragma unroll
    for (int set = 0; set < T::kWeightSets; ++set) {
      const int h = head_of(set);
      const float2 own_decay = s_.log_decay[h][p][own];
      const float beta = s_.gates[h][p][own].y;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float wk[2], wq[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int slot = 2 * c() + e + 8 * j;
          const float2 decay = s_.log_decay[h][p][slot];
          const float difference = (own_decay.x - decay.x) + (own_decay.y - decay.y);
          float w = exp2f(__fmul_rn(difference, kLog2E));
          if constexpr (T::kMamba) w = __fmul_rn(w, s_.gates[h][p][slot].y);
          wk[e] = slot < own ? -__fmul_rn(__fmul_rn(beta, w), key_score[j][e]) : 0.0f;
          wq[e] = slot <= own ? __fmul_rn(__fmul_rn(w, factor), query_score[j][e]) : 0.0f;
        }
        if constexpr (T::kMamba) {
          query_weight[set][j] = pack_bf16(wq[0], wq[1]);
          const float2 top = unpack_bf16(query_weight[set][j]);
          query_rest[set][j] = pack_bf16(wq[0] - top.x, wq[1] - top.y);
        } else {
          key_weight[j] = pack_half(wk[0], wk[1]);
          query_weight[set][j] = pack_half(wq[0], wq[1]);
        }
      }
    }
  }

  wait_state();
  Products d;
  products(z, d);

  // The lane's two columns: what the checkpoint gives.
  constexpr int kQuery = T::kMamba ? 0 : 1;
  const int position[2] = {position_of(2 * c()), position_of(2 * c() + 1)};
  const bool valid[2] = {position[0] >= from && position[0] < to,
                         position[1] >= from && position[1] < to};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int column = 2 * c() + j;
    const float scale = s_.query_scale[column];
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      const int h = head_of(T::kWide ? 0 : m);
      const float2 gate = s_.gates[h][p][slot_of(position[j])];  // decay, beta
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& query = d[m][kQuery][2 * half + j];
        float decay = gate.x;
        if constexpr (T::kInt8) {
          query = fmaf(-1152.0f, s_.query_sum[column], query);
          decay = __fmul_rn(decay, row_scale_[m][half]);
        }
        const float v = value_of(j, m, half);
        if constexpr (T::kMamba) {
          const float skip =
              a_.skip[(first_row_ + warp() * kTileRows + (T::kWide ? 0 : 16 * m)) / T::kValueDim];
          query = fmaf(__fmul_rn(decay, scale), query, __fmul_rn(skip, v));
        } else {
          float& key = d[m][0][2 * half + j];
          if constexpr (T::kInt8) key = fmaf(-1152.0f, s_.key_sum[column], key);
          key = __fmul_rn(gate.y, fmaf(-decay, key, v));
          query = __fmul_rn(__fmul_rn(decay, scale), query);
        }
      }
    }
  }

  uint16_t* ring = static_cast<uint16_t*>(a_.ring_value.data) +
                   ring_slot_ * a_.ring_value.slot_stride + first_row_;
  uint32_t u[kMs][4];
  uint32_t mine[2][kMs] = {};
  if constexpr (T::kMamba) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if constexpr (T::kActivation == DType::kBF16) {
        mine[j][0] = value_[j][0];
        mine[j][1] = value_[j][1];
      } else if (valid[j]) {
#pragma unroll
        for (int m = 0; m < kMs; ++m) {
          mine[j][m] = pack_bf16(value_of(j, m, 0), value_of(j, m, 1));
        }
      }
    }
  } else {
    load_slots(from - base_, u);
    // The two blocks of eight slots that the positions may lie in.
    const int slot0 = from - base_, slot1 = to - base_;
    if (slot0 < 8) {
      substitute<0>(slot0, min(slot1, 8), d, key_weight[0], key_weight[1], u, mine);
    }
    if (slot1 > 8) {
      substitute<1>(max(slot0, 8) - 8, slot1 - 8, d, key_weight[0], key_weight[1], u, mine);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (!valid[j]) continue;
    write_rows(s_.values[p][slot_of(position[j])], mine[j]);
    write_rows(ring + ring_row(position[j]) * a_.ring_value.row_stride, mine[j]);
  }
  __syncwarp();
  if constexpr (T::kMamba) load_slots(to - base_, u);

#pragma unroll
  for (int m = 0; m < kMs; ++m) {
    const int set = T::kWide ? 0 : m;
    float* y = d[m][kQuery];
    if constexpr (T::kMamba) {
      mma_bf16(y, u[m][0], u[m][1], u[m][2], u[m][3], query_weight[set][0], query_weight[set][1]);
      mma_bf16(y, u[m][0], u[m][1], u[m][2], u[m][3], query_rest[set][0], query_rest[set][1]);
    } else {
      mma_f16(y, u[m][0], u[m][1], u[m][2], u[m][3], query_weight[set][0], query_weight[set][1]);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (!valid[j]) continue;
    const float y[kMs][2] = {{d[0][kQuery][j], d[0][kQuery][2 + j]},
                             {d[1][kQuery][j], d[1][kQuery][2 + j]}};
    write_output(position[j], y);
  }
}

}  // namespace replayssm::cuda
