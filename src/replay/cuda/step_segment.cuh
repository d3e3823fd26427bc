// Of StepBlock: the positions of one grid interval that a sub-window holds.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

// GDN: dots of the columns with the keys of the interval's slots. Lane 4 g + c: column g, slots
// 8 j + 2c and 8 j + 2c+1 in [j].
template <typename T>
__device__ void StepBlock<T>::scores(int base, float key[2 * kGroups][2],
                                     float query[2 * kGroups][2]) const {
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
    uint32_t z[4];  // {keys, queries} of the step's first eight keys, then its second
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
#pragma unroll
  for (int j = 0; j < 2 * kGroups; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      key[j][e] = d[j][e];
      query[j][e] = d[j][2 + e];
    }
  }
}

// Mamba-2: of queries alone. Lane 4 g + c: slot 8 j + g, columns 2c and 2c+1 in [j].
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

// S z of the warp's tile, before scales.
template <typename T>
__device__ void StepBlock<T>::products(Products d) const {
  constexpr int kTilesN = T::kMamba ? 1 : 2;
  const int lane = threadIdx.x % 32;
  const int column = T::kSingle ? 0 : lane % 8, matrix = lane / 8;
  // z: of one step {k b0, k b1, q b0, q b1}; Mamba-2: of two steps {q b0, q b1}.
  uint32_t columns;
  if constexpr (T::kMamba) {
    columns = shared_address(&s_.queries[column][matrix * 8]);
  } else if constexpr (T::kKda) {
    columns = shared_address(&s_.kda.operands[matrix / 2][column][matrix % 2 * 8]);
  } else {
    columns = shared_address(matrix < 2 ? &s_.keys[key_row(position_of(column))][matrix % 2 * 8]
                                        : &s_.queries[column][matrix % 2 * 8]);
  }
  // What the sums start from. int8's operands are 1152 above their values.
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
  // fp32: sums of what tf32 leaves out, chains of their own.
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
      const float(*sums)[4] = step == 0 ? start : d[m];
      if constexpr (T::kCheckpoint == DType::kF16) {
        a[m] = *chunk(step, m);
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) {
          mma_f16(d[m][n], a[m].x, a[m].y, a[m].z, a[m].w, b[2 * n], b[2 * n + 1], sums[n]);
        }
      } else if constexpr (T::kInt8) {
        if (step % 2 == 0) a[m] = *chunk(step / 2, m);
        const uint32_t first = step % 2 == 0 ? a[m].x : a[m].z;
        const uint32_t second = step % 2 == 0 ? a[m].y : a[m].w;
        // 0x64 above a byte is 1024 + byte in fp16.
        const uint32_t x[4] = {
            __byte_perm(first, 0x64646464u, 0x4140), __byte_perm(first, 0x64646464u, 0x4342),
            __byte_perm(second, 0x64646464u, 0x4140), __byte_perm(second, 0x64646464u, 0x4342)};
#pragma unroll
        for (int n = 0; n < kTilesN; ++n) {
          mma_f16(d[m][n], x[0], x[1], x[2], x[3], b[2 * n], b[2 * n + 1], sums[n]);
        }
      } else {
        if (step == 0) {
#pragma unroll
          for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) d[m][n][e] = 0;
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
            if (pair == 0) a[m] = *chunk(step, m);
            const float2 low = unpack_bf16(pair == 0 ? a[m].x : a[m].z);
            const float2 high = unpack_bf16(pair == 0 ? a[m].y : a[m].w);
            x[0] = low.x;
            x[1] = high.x;
            x[2] = low.y;
            x[3] = high.y;
          }
          product_tf32(d[m], low[m], x, b[pair], T::kMamba ? 0 : b[2 + pair]);
        }
      }
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

// Eight keys of fp32 or bf16 by products of tf32; what fp32 has beyond its first 11 bits goes to
// `low`. key, query: the columns' fp16 pair (Mamba-2: `key` is the only one).
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

// The interval's ring values of the first n slots as operands [rows x slots], zero in the others.
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

// The u of the token in a slot: its column of  constant + B u. kOdd: an odd slot; holds: whether
// the lane holds the slot, and in which eight.
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

// GDN: u of the tokens at [from, to), one after another.
template <typename T>
__device__ void StepBlock<T>::substitute(int from, int to, const Products& constant,
                                         const uint4 weights[kGroups], SlotValues u,
                                         uint32_t mine[2][kMs]) const {
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

// The lane's own ring values of the window: counts those that reached fp16's largest. True if one
// in the warp's tile is infinite or NaN.
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

// y <- y + w u by token, each over no slots but those it may see: zero weights do not keep an
// infinity or NaN of a later draft away. Rare, so slow.
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
      uint32_t seen[kGroups][4];
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

template <typename T>
__device__ float StepBlock<T>::value_of(int j, int m, int half) const {
  const float2 two = unpack_bf16(value_[j][m]);
  return half == 0 ? two.x : two.y;
}

template <typename T>
__device__ void StepBlock<T>::write_output(int position, const float y[kMs][2]) const {
  uint32_t bits[kMs];
#pragma unroll
  for (int m = 0; m < kMs; ++m) bits[m] = pack_bf16(y[m][0], y[m][1]);
  write_rows(
      static_cast<uint16_t*>(a_.out.data) + token_of(position) * a_.out.token_stride + first_row_,
      bits);
}

// Scores with their decay, of the interval at `base` and one of the block's heads, as operands
// [slots x columns]. GDN and KDA: of u, of y; Mamba-2: of y, and what 16 bits lost of it.
template <typename T>
__device__ void StepBlock<T>::weigh(int base, int head, uint4 weights[kGroups]) const {
  if constexpr (T::kMamba) {
    weigh_mamba(base, head, weights);
  } else {
    weigh_delta(base, head, weights);
  }
}

template <typename T>
__device__ void StepBlock<T>::weigh_mamba(int base, int head, uint4 weights[kGroups]) const {
  float score[2 * kGroups][2];
  scores(base, score);
  const int p = parity(base);
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

// Positions [from, to) of the interval at base_.
template <typename T>
__device__ void StepBlock<T>::segment(int from, int to) {
  const int p = parity(base_);
  uint4 weights[T::kWeightSets][kGroups];
  if constexpr (!T::kShare) weights_of_warp(weights);
  wait_state();
  Products d;
  products(d);
  if constexpr (T::kTeam) {
    if (to == end_) give_state();
  }
  if constexpr (T::kShare) {
    // Only now: the products of other warps hide the work of those that weigh.
    if (!weights_stand_) sync();
    weights_stand_ = true;
    weights_of_warp(weights);
  }

  // The lane's columns: what the checkpoint gives.
  constexpr int kQuery = T::kMamba ? 0 : 1;
  int position[2];
  bool valid[2];
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

  SlotValues u;
  uint32_t mine[2][kMs] = {};
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
#pragma unroll
  for (int j = 0; j < T::kOwnColumns; ++j) {
    if (!valid[j]) continue;
    if constexpr (T::kMamba || !T::kSingle) {
      write_rows(s_.values[interval_row(base_) + slot_of(position[j])], mine[j]);
    }
    if (T::kSweep && position[j] < (end_ & ~(kSlots - 1))) continue;
    write_rows(
        reinterpret_cast<uint16_t*>(ring_values() + ring_row(position[j]) * p_.value_row_bytes),
        mine[j]);
  }
  __syncwarp();
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
