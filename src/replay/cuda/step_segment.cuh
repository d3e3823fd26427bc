// StepBlock::segment() and its parts: outputs of the positions of one grid interval that the
// current sub-window holds.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

// GDN: dot products of the window's keys and queries (mma rows) with the ring keys of the interval
// (mma columns), fp16 operands, fp32 sums. Result of lane 4 g + c: column g, slots 8 j + 2c and
// 8 j + 2c+1 in [j].
template <typename T>
__device__ void StepBlock<T>::scores(int base, float key[2 * kGroups][2],
                                     float query[2 * kGroups][2]) const {
  // ldmatrix: lane l gives the address of row l % 8 of matrix l / 8. Ring keys: matrices {slots
  // 0..7, 8..15} x {first, second eight key dims} of a group; columns: {keys, queries} likewise.
  const int lane = threadIdx.x % 32;
  const int column = T::kSingle ? 0 : lane % 8, matrix = lane / 8;
  uint32_t keys[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    keys[group] =
        shared_address(slot_key(base, group * 16 + lane / 16 * 8 + lane % 8) + matrix % 2 * 8);
  }
  float d[2 * kGroups][4] = {};
  const uint32_t columns =
      shared_address(matrix % 2 == 0 ? &s_.keys[key_row(position_of(column))][matrix / 2 * 8]
                                     : &s_.queries[column][matrix / 2 * 8]);
#pragma unroll
  for (int step = 0; step < T::kSteps; ++step) {
    uint32_t z[4];  // {keys, queries} over the step's first eight key dims, then its second eight
    load_matrices(z, columns + step * 32);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t k[4];
      load_matrices(k, keys[group] + step * 32);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        mma_f16(d[2 * group + j], z[0], z[1], z[2], z[3], k[2 * j], k[2 * j + 1]);
      }
    }
  }
  // Rows 0..7 of d are the keys' scores, rows 8..15 the queries'.
#pragma unroll
  for (int j = 0; j < 2 * kGroups; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      key[j][e] = d[j][e];
      query[j][e] = d[j][2 + e];
    }
  }
}

// Mamba-2: scores of the queries (C) alone; the ring keys are the mma rows, which halves the number
// of products. Result of lane 4 g + c: slot 8 j + g, columns 2c and 2c+1 in [j]; weigh_mamba()
// transposes.
template <typename T>
__device__ void StepBlock<T>::scores(int base, float query[2 * kGroups][2]) const {
  const int lane = threadIdx.x % 32;
  const int column = T::kSingle ? 0 : lane % 8, matrix = lane / 8;
  const uint32_t columns = shared_address(&s_.raw_queries[column][matrix * 8]);
  uint32_t keys[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    keys[group] = shared_address(slot_key(base, group * 16 + lane % 16) + matrix / 2 * 8);
  }
  float d[kGroups][4] = {};
#pragma unroll
  for (int pair = 0; pair < T::kSteps / 2; ++pair) {
    uint32_t z[4];
    load_matrices(z, columns + pair * 64);
#pragma unroll
    for (int sub = 0; sub < 2; ++sub) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        uint32_t k[4];
        load_matrices(k, keys[group] + (2 * pair + sub) * 32);
        mma_bf16(d[group], k[0], k[1], k[2], k[3], z[2 * sub], z[2 * sub + 1]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 2 * kGroups; ++j) {
    query[j][0] = d[j / 2][j % 2 * 2];
    query[j][1] = d[j / 2][j % 2 * 2 + 1];
  }
}

// ldmatrix address of the lane's row of the operands z of step 0. One load gives {k b0, k b1, q b0,
// q b1} of one step; Mamba-2: {q b0, q b1} of two steps.
template <typename T>
__device__ __forceinline__ uint32_t StepBlock<T>::operand_columns() const {
  const int lane = threadIdx.x % 32;
  const int column = T::kSingle ? 0 : lane % 8, matrix = lane / 8;
  if constexpr (T::kMamba) {
    return shared_address(&s_.queries[column][matrix * 8]);
  } else if constexpr (T::kKda) {
    return shared_address(&s_.kda.operands[matrix / 2][column][matrix % 2 * 8]);
  } else {
    return shared_address(matrix < 2 ? &s_.keys[key_row(position_of(column))][matrix % 2 * 8]
                                     : &s_.queries[column][matrix % 2 * 8]);
  }
}

// d = sums + one step (16 keys) of S z for product m. a: the lane's state chunk, kept from step to
// step where a chunk holds two steps. b: the step's operands. low: see product_tf32().
//
//   fp16  the stored chunk is the A operand
//   int8  each byte becomes the fp16 number 1024 + byte: 0x64 is put above it
//   fp32, bf16  by TF32, in two halves of eight keys
template <typename T>
__device__ __forceinline__ void StepBlock<T>::product_step(int step, int m, uint4& a,
                                                           const uint32_t* b,
                                                           const float (*sums)[4], float (*d)[4],
                                                           float (*low)[4]) const {
  constexpr int kTilesN = T::kMamba ? 1 : 2;
  if constexpr (T::kCheckpoint == DType::kF16) {
    a = *chunk(step, m);
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
      mma_f16(d[n], a.x, a.y, a.z, a.w, b[2 * n], b[2 * n + 1], sums[n]);
    }
  } else if constexpr (T::kInt8) {
    if (step % 2 == 0) a = *chunk(step / 2, m);
    const uint32_t first = step % 2 == 0 ? a.x : a.z;
    const uint32_t second = step % 2 == 0 ? a.y : a.w;
    const uint32_t x[4] = {
        __byte_perm(first, 0x64646464u, 0x4140), __byte_perm(first, 0x64646464u, 0x4342),
        __byte_perm(second, 0x64646464u, 0x4140), __byte_perm(second, 0x64646464u, 0x4342)};
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
      mma_f16(d[n], x[0], x[1], x[2], x[3], b[2 * n], b[2 * n + 1], sums[n]);
    }
  } else {
    if (step == 0) {
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) d[n][e] = 0;
      }
    }
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      float x[4];
      if constexpr (T::kCheckpoint == DType::kF32) {
        const float4 four = *reinterpret_cast<const float4*>(chunk(2 * step + pair, m));
        x[0] = four.x;
        x[1] = four.y;
        x[2] = four.z;
        x[3] = four.w;
      } else {
        if (pair == 0) a = *chunk(step, m);
        const float2 first = unpack_bf16(pair == 0 ? a.x : a.z);
        const float2 second = unpack_bf16(pair == 0 ? a.y : a.w);
        x[0] = first.x;
        x[1] = second.x;
        x[2] = first.y;
        x[3] = second.y;
      }
      product_tf32(d, low, x, b[pair], T::kMamba ? 0 : b[2 + pair]);
    }
  }
}

// d = S z for the warp's rows and the sub-window's columns, z the keys and queries (Mamba-2: C),
// before row and column scales.
template <typename T>
__device__ void StepBlock<T>::products(Products d) const {
  constexpr int kTilesN = T::kMamba ? 1 : 2;
  const uint32_t columns = operand_columns();
  // Initial sums. A stored int8 byte is q + 128 and enters as 1024 + 128 + q, so the sums start at
  // -1152 times the column's sum.
  float start[kTilesN][4] = {};
  if constexpr (T::kInt8) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int own = T::kSingle ? 0 : 2 * c() + e % 2;
      start[T::kMamba ? 0 : 1][e] = -1152.0f * s_.sums.query[own];
      if constexpr (!T::kMamba) start[0][e] = -1152.0f * s_.sums.key[own];
    }
  }
  uint32_t z[4];
  uint4 a[kMs];
  // fp32: sums of the bits that TF32 drops, in accumulators of their own: shorter chains.
  float low[kMs][kTilesN][4] = {};
#pragma unroll
  for (int step = 0; step < T::kSteps; ++step) {
    if constexpr (T::kMamba) {
      if (step % 2 == 0) load_matrices(z, columns + step * 32);
    } else {
      load_matrices(z, columns + step * 32);
    }
    const uint32_t* b = T::kMamba ? z + step % 2 * 2 : z;
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      product_step(step, m, a[m], b, step == 0 ? start : d[m], d[m], low[m]);
    }
  }
  if constexpr (T::kCheckpoint == DType::kF32) {
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) d[m][n][e] += low[m][n][e];
      }
    }
  }
}

// d += eight keys of an fp32 or bf16 state by TF32 products. TF32 keeps 11 significant bits; of an
// fp32 state the rest goes to `low` by a second product, so 22 bits are kept. key, query: the
// columns' fp16 pairs (Mamba-2: only `key`).
template <typename T>
__device__ void StepBlock<T>::product_tf32(float (*d)[4], float (*low)[4], const float x[4],
                                           uint32_t key, uint32_t query) const {
  constexpr int kTilesN = T::kMamba ? 1 : 2;
  float rest[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    rest[e] = x[e] - __uint_as_float(__float_as_uint(x[e]) & 0xffffe000u);
  }
#pragma unroll
  for (int n = 0; n < kTilesN; ++n) {
    const float2 b = unpack_half(n == 0 ? key : query);
    mma_tf32(d[n], x[0], x[1], x[2], x[3], b.x, b.y);
    if constexpr (T::kCheckpoint == DType::kF32) {
      mma_tf32(low[n], rest[0], rest[1], rest[2], rest[3], b.x, b.y);
    }
  }
}

// The interval's first n ring values as A operands [rows x slots]. The other slots are exact zeros:
// their memory is not read, since it may hold NaN.
template <typename T>
__device__ void StepBlock<T>::load_slots(int n, SlotValues u) const {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t x[4][kMs];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = group * 16 + 2 * c() + i % 2 + i / 2 * 8;
#pragma unroll
      for (int m = 0; m < kMs; ++m) x[i][m] = 0;
      if (slot < n) read_rows(s_.values[interval_row(base_) + slot], x[i]);
    }
    // A word of a ring row holds the lane's two state rows; a word of the operand holds two slots
    // of one row. So the words of two slots are exchanged by halves.
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        u[m][group][2 * j] = low_halves(x[2 * j][m], x[2 * j + 1][m]);
        u[m][group][2 * j + 1] = high_halves(x[2 * j][m], x[2 * j + 1][m]);
      }
    }
  }
}

// u of one token: its column of  constant + u weights  over all slots, the slots not yet computed
// being zero. The result goes into the operand `u`, for the tokens after it. The token's column and
// its slot in the operand belong to the same lane, so nothing moves between lanes. kOdd: its slot
// is odd; holds[i]: this lane holds the slot, in eight i.
template <typename T>
template <int kOdd>
__device__ void StepBlock<T>::substitute_one(const bool holds[2 * kGroups],
                                             const Products& constant, const uint4 weights[kGroups],
                                             SlotValues u, uint32_t mine[kMs]) const {
  bool own = false;
#pragma unroll
  for (int eight = 0; eight < 2 * kGroups; ++eight) own |= holds[eight];
#pragma unroll
  for (int m = 0; m < kMs; ++m) {
    constexpr int kColumn = T::kSingle ? 0 : kOdd;
    float d[4] = {constant[m][0][0], constant[m][0][1], constant[m][0][2], constant[m][0][3]};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint32_t* a = u[m][group];
      mma_f16(d, a[0], a[1], a[2], a[3], weights[group].x, weights[group].y);
    }
    // Rounded to the ring's dtype before it enters any sum (saturating, rows g and g+8).
    const uint32_t x = pack_half_finite(d[kColumn], d[2 + kColumn]);
    constexpr uint32_t kLow = kOdd ? 0x5410 : 0x3254, kHigh = kOdd ? 0x7610 : 0x3276;
#pragma unroll
    for (int eight = 0; eight < 2 * kGroups; ++eight) {
      uint32_t* a = u[m][eight / 2] + eight % 2 * 2;
      if (holds[eight]) {
        a[0] = __byte_perm(a[0], x, kLow);
        a[1] = __byte_perm(a[1], x, kHigh);
      }
    }
    if (T::kSingle || own) mine[m] = x;
  }
}

// GDN: u of the tokens at [from, to), one after another: u_t depends on u_j for all j < t.
template <typename T>
__device__ void StepBlock<T>::substitute(int from, int to, const Products& constant,
                                         const uint4 weights[kGroups], SlotValues u,
                                         uint32_t mine[2][kMs]) const {
  // A register of the operand holds an even slot and the odd one after it, so tokens are taken in
  // pairs: the lane that holds a pair is found once.
  bool holds[2 * kGroups];
  const auto look = [&](int slot) {
    const bool own = c() == slot % 8 / 2;
#pragma unroll
    for (int eight = 0; eight < 2 * kGroups; ++eight) holds[eight] = own && slot / 8 == eight;
  };
  if constexpr (T::kSingle) {
    look(slot_of(from));
    if (from % 2 == 0) {
      substitute_one<0>(holds, constant, weights, u, mine[0]);
    } else {
      substitute_one<1>(holds, constant, weights, u, mine[0]);
    }
  } else {
#pragma unroll 1
    for (int even = from & ~1; even < to; even += 2) {
      look(slot_of(even));
      if (even >= from) substitute_one<0>(holds, constant, weights, u, mine[0]);
      if (even + 1 < to) substitute_one<1>(holds, constant, weights, u, mine[1]);
    }
  }
}

// Checks the lane's new ring values: counts those that saturated at fp16's largest number. Returns
// true in the whole warp if one of its values is infinite or NaN.
template <typename T>
__device__ bool StepBlock<T>::watch(const bool valid[2], const uint32_t mine[2][kMs]) const {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < T::kOwnColumns; ++j) {
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      const uint32_t own = valid[j] ? mine[j][m] : 0;
      largest = T::kMamba ? larger_bf16(largest, own) : larger(largest, own);
    }
  }
  const bool bad = T::kMamba ? bf16_is_bad(largest) : half_is_bad(largest);
  if constexpr (!T::kMamba) {
    if (bad || n_largest(largest) != 0) {
      int n = 0;
      for (int j = 0; j < T::kOwnColumns; ++j) {
        for (int m = 0; m < kMs; ++m) n += valid[j] ? n_largest(mine[j][m]) : 0;
      }
      count_saturated(n);
    }
  }
  return __any_sync(kFull, bad);
}

// y += weights u, token by token, with the slots that the token must not see masked in the operand.
// Needed when a ring value is infinite or NaN: 0 * NaN is NaN, so a zero weight does not protect a
// token from a later draft. Rare, so not fast.
template <typename T>
__device__ void StepBlock<T>::outputs_apart(int from, int to,
                                            const uint4 weights[T::kWeightSets][kGroups],
                                            const SlotValues u, Products d) const {
  constexpr int kQuery = T::kMamba ? 0 : 1;
#pragma unroll 1
  for (int position = from; position < to; ++position) {
    const int own = position - base_;
    const int column = T::kSingle ? 0 : position & (kColumns - 1);
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      uint32_t seen[kGroups][4];  // u with the slots after `own` cleared
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) {
        const int slot = 2 * c() + i / 2 * 8;
        const uint32_t both = u[m][i / 4][i % 4];
        seen[i / 4][i % 4] = slot + 1 <= own ? both : slot <= own ? both & 0xffffu : 0;
      }
      float y[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) y[e] = d[m][kQuery][e];
      add_outputs(y, seen, weights[set_of(m)]);
      if (c() != column / 2 && !T::kSingle) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e % 2 == column % 2) d[m][kQuery][e] = y[e];
      }
    }
  }
}

// y += weights u for one product. Mamba-2's weights come in two bf16 parts.
template <typename T>
__device__ void StepBlock<T>::add_outputs(float y[4], const uint32_t u[kGroups][4],
                                          const uint4 weights[kGroups]) const {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t* a = u[group];
    const uint4 w = weights[group];
    if constexpr (T::kMamba) {
      mma_bf16(y, a[0], a[1], a[2], a[3], w.x, w.y);
      mma_bf16(y, a[0], a[1], a[2], a[3], w.z, w.w);
    } else {
      mma_f16(y, a[0], a[1], a[2], a[3], w.z, w.w);
    }
  }
}

// v (Mamba-2: x) of the lane's column j, product m, row `half`.
template <typename T>
__device__ float StepBlock<T>::value_of(int j, int m, int half) const {
  const float2 two = unpack_bf16(value_[j][m]);
  return half == 0 ? two.x : two.y;
}

// y of one token: the lane's rows, rounded to bf16.
template <typename T>
__device__ void StepBlock<T>::write_output(int position, const float y[kMs][2]) const {
  uint32_t bits[kMs];
#pragma unroll
  for (int m = 0; m < kMs; ++m) bits[m] = pack_bf16(y[m][0], y[m][1]);
  write_rows(
      static_cast<uint16_t*>(a_.out.data) + token_of(position) * a_.out.token_stride + first_row_,
      bits);
}

// Scores times decay, of the interval at `base` and one head of the block, as B operands [slots x
// columns]. x, y: weights of u (GDN, KDA) or of y (Mamba-2); z, w: weights of y, or the part of
// Mamba-2's that 16 bits lost. A slot that the column's token must not see gets an exact zero.
template <typename T>
__device__ void StepBlock<T>::weigh(int base, int head, uint4 weights[kGroups]) const {
  if constexpr (T::kMamba) {
    weigh_mamba(base, head, weights);
  } else {
    weigh_delta(base, head, weights);
  }
}

// w_j = dt_j e^{a_t - a_j} (B_j . C_t) for j <= t. The difference of two prefix sums is taken in
// high and low parts (prepare_gates()).
template <typename T>
__device__ void StepBlock<T>::weigh_mamba(int base, int head, uint4 weights[kGroups]) const {
  float score[2 * kGroups][2];
  scores(base, score);
  const int p = parity(base);
  // own: the column's token as a slot of this interval. For a token of another interval it is
  // outside [0, kSlots); segment() does not use such a column.
  float2 own_decay[2];
  float factor[2];
  int own[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int column = 2 * c() + e;
    own[e] = position_of(column) - base;
    own_decay[e] = s_.log_decay[head][p][slot_of(own[e])];
    factor[e] = s_.query_scale[T::kSingle ? 0 : column];
  }
  uint32_t first[2 * kGroups], second[2 * kGroups];
#pragma unroll
  for (int j = 0; j < 2 * kGroups; ++j) {
    const int slot = 8 * j + g();
    const float2 decay = s_.log_decay[head][p][slot];
    const float dt = s_.gates[head][p][slot].y;
    float w[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      w[e] = exp_fast((own_decay[e].x - decay.x) + (own_decay[e].y - decay.y)) * dt;
      w[e] = slot <= own[e] ? w[e] * factor[e] * score[j][e] : 0.0f;
    }
    // [slots x columns] as computed is transposed to the operand; the second part keeps what bf16
    // lost of the first.
    const uint32_t bits = pack_bf16(w[0], w[1]);
    const float2 top = unpack_bf16(bits);
    first[j] = transposed(bits);
    second[j] = transposed(pack_bf16(w[0] - top.x, w[1] - top.y));
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    weights[group] = make_uint4(first[2 * group], first[2 * group + 1], second[2 * group],
                                second[2 * group + 1]);
  }
}

// GDN: of u  -beta_t e^{G_t - G_j} (k_j . k_t) for j < t; of y  e^{G_t - G_j} (k_j . q_t) for j <=
// t. KDA's scores already hold their decay.
template <typename T>
__device__ void StepBlock<T>::weigh_delta(int base, int head, uint4 weights[kGroups]) const {
  float key_score[2 * kGroups][2], query_score[2 * kGroups][2];
  if constexpr (!T::kKda) scores(base, key_score, query_score);
  const int p = parity(base);
  const int own = position_of(g()) - base;
  const float factor = s_.query_scale[T::kSingle ? 0 : g()];
  const float2 own_decay = s_.log_decay[head][p][slot_of(own)];
  const float beta = -s_.gates[head][p][slot_of(own)].y;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t first[2], second[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float wk[2], wq[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int slot = group * 16 + 2 * c() + e + 8 * j;
        if constexpr (T::kKda) {
          wk[e] = slot < own ? beta * s_.kda.scores[0][g()][slot] : 0.0f;
          wq[e] = slot <= own ? factor * s_.kda.scores[1][g()][slot] : 0.0f;
          continue;
        }
        const float2 decay = s_.log_decay[head][p][slot];
        const float w = exp_fast((own_decay.x - decay.x) + (own_decay.y - decay.y));
        wk[e] = slot < own ? beta * w * key_score[2 * group + j][e] : 0.0f;
        wq[e] = slot <= own ? w * factor * query_score[2 * group + j][e] : 0.0f;
      }
      first[j] = pack_half(wk[0], wk[1]);
      second[j] = pack_half(wq[0], wq[1]);
    }
    weights[group] = make_uint4(first[0], first[1], second[0], second[1]);
  }
}

// Scales the state products of the lane's columns: the parts of y and u that come from the
// checkpoint. Query accumulators become  e^{G_t} (S q_t)  (Mamba-2: plus D x_t); key accumulators
// become  beta_t (v_t - e^{G_t} S k_t),  which is u_t without the ring's part.
template <typename T>
__device__ __forceinline__ void StepBlock<T>::apply_gates(int from, int to, Products d,
                                                          int position[2], bool valid[2]) const {
  constexpr int kQuery = T::kMamba ? 0 : 1;
  const int p = parity(base_);
#pragma unroll
  for (int j = 0; j < T::kOwnColumns; ++j) {
    position[j] = position_of(2 * c() + j);
    valid[j] = T::kSingle ? c() == 0 : position[j] >= from && position[j] < to;
    const float scale = s_.query_scale[T::kSingle ? 0 : 2 * c() + j];
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      const float2 gate = s_.gates[head_of(set_of(m))][p][slot_of(position[j])];
      const float scaled = gate.x * scale;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& query = d[m][kQuery][2 * half + j];
        float row = 1.0f;
        if constexpr (T::kInt8) row = row_scales()[lane_row(m) + half];
        const float v = value_of(j, m, half);
        if constexpr (T::kMamba) {
          query = fmaf(scaled * row, query, skip_[set_of(m)] * v);
        } else {
          float& key = d[m][0][2 * half + j];
          key = gate.y * fmaf(-gate.x * row, key, v);
          query *= scaled * row;
        }
      }
    }
  }
}

// Writes the lane's new ring values to the shared rows of the interval (for folds and later
// sub-windows; read by this warp only) and to the ring.
template <typename T>
__device__ __forceinline__ void StepBlock<T>::store_values(const int position[2],
                                                           const bool valid[2],
                                                           const uint32_t mine[2][kMs]) const {
#pragma unroll
  for (int j = 0; j < T::kOwnColumns; ++j) {
    if (!valid[j]) continue;
    if constexpr (T::kMamba || !T::kSingle) {
      write_rows(s_.values[interval_row(base_) + slot_of(position[j])], mine[j]);
    }
    // A sweep leaves only the last interval's rows in the ring.
    if (T::kSweep && position[j] < (end_ & ~(kSlots - 1))) continue;
    write_rows(
        reinterpret_cast<uint16_t*>(ring_values() + ring_row(position[j]) * p_.value_row_bytes),
        mine[j]);
  }
}

// y, u and the ring values of positions [from, to), all in the interval at base_. Order:
//   1. weights (unless shared) while the state's copy is in flight
//   2. wait for the state; products S z
//   3. kShare: barrier, then the shared weights. The barrier is here and not earlier so that other
//      warps' products hide the work of the warps that computed the weights
//   4. the checkpoint's part of y and u; GDN and KDA: u of each token in turn
//   5. new ring values to shared memory and the ring; y = the checkpoint's part + weights u
template <typename T>
__device__ void StepBlock<T>::segment(int from, int to) {
  uint4 weights[T::kWeightSets][kGroups];
  if constexpr (!T::kShare) weights_of_warp(weights);
  wait_state();
  Products d;
  products(d);
  if constexpr (T::kPersistent) {
    if (to == end_) release_state();  // nothing reads the state after the window's last products
  }
  if constexpr (T::kShare) {
    if (!weights_ready_) sync();
    weights_ready_ = true;
    weights_of_warp(weights);
  }

  constexpr int kQuery = T::kMamba ? 0 : 1;
  int position[2];
  bool valid[2];
  apply_gates(from, to, d, position, valid);

  SlotValues u;
  uint32_t mine[2][kMs] = {};  // the lane's new ring values
  if constexpr (T::kMamba) {
#pragma unroll
    for (int j = 0; j < T::kOwnColumns; ++j) {
#pragma unroll
      for (int m = 0; m < kMs; ++m) {
        mine[j][m] = value_[j][m];
      }
    }
  } else {
    load_slots(from - base_, u);
    substitute(from, to, d, weights[0], u, mine);
  }
  store_values(position, valid, mine);
  __syncwarp();  // publishes the shared rows within the warp
  // GDN and KDA have u complete in registers; Mamba-2 loads x of the window with the ring's.
  if constexpr (T::kMamba) load_slots(to - base_, u);

  if (watch(valid, mine)) {
    outputs_apart(from, to, weights, u, d);
  } else {
#pragma unroll
    for (int m = 0; m < kMs; ++m) add_outputs(d[m][kQuery], u[m], weights[set_of(m)]);
  }
#pragma unroll
  for (int j = 0; j < T::kOwnColumns; ++j) {
    if (!valid[j]) continue;
    float y[kMs][2];
#pragma unroll
    for (int m = 0; m < kMs; ++m) {
      y[m][0] = d[m][kQuery][j];
      y[m][1] = d[m][kQuery][2 + j];
    }
    write_output(position[j], y);
  }
}

}  // namespace replayssm::cuda
