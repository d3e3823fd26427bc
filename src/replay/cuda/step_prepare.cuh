// StepBlock's preparation of a sub-window: keys, queries and gates in the form that the products
// need.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

// Gates and prefix sums of the two intervals that fetch() has loaded. One warp per head, one lane
// per slot (kGroups rounds). Each slot's gate comes from one of three places: the ring (position
// before the window), the raw activations (in the sub-window), or shared memory (an earlier
// sub-window).
//
// Writes, for head h, parity p of the interval and the lane's slot:
//   log_decay    G, the sum of the interval's log decays up to this slot: high and low part
//   gates        x: e^G; y: beta (Mamba-2: dt)
//   fold_weight  e^{G_end - G} (Mamba-2: times dt)
//   log_alpha    GDN: the slot's own log decay
// and, if to_ring, the sub-window's gates to the ring. Published by prepare()'s barrier; an earlier
// sub-window's entries are read and written by the same lane, so they need none.
//
// Sums are in double and kept as two floats: the difference of two of them must not lose a weak
// decay beside a strong one.
template <typename T>
__device__ void StepBlock<T>::prepare_gates(int from, int to, bool to_ring) {
  if (gate_head() >= T::kHeads) return;
  const int h = gate_head();
  const int head = first_row_ / T::kValueDim + h;
  if constexpr (kConstantsLate) load_constants();
  const float rate = -expf(a_log_);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int position = fetched_.gate_position[i];
    const int slot = slot_of(position), p = parity(position);
    float gate = fetched_.gate[i], beta = 0;
    if (position >= from && position < to) {
      const float raw = gate + dt_bias_;
      const float soft = raw > 20.0f ? raw : log1pf(expf(raw));
      gate = T::kMamba ? soft : rate * soft;
      if constexpr (!T::kMamba) beta = p_.beta_scale / (1.0f + expf(-fetched_.beta[i]));
      if (to_ring && (T::kHeads > 1 || first_row_ % T::kValueDim == 0)) {
        *ring_gate(position, head) = gate;
      }
    } else if (position >= start_ && position < from) {  // an earlier sub-window
      const float2 kept = s_.gates[h][p][slot];
      gate = kept.y;
      if constexpr (!T::kMamba) gate = s_.log_alpha[h][p][slot];
      beta = kept.y;
    }
    // Inclusive scan over the slots of an interval; slots past the window hold gate 0.
    double sum = T::kMamba ? static_cast<double>(rate) * gate : static_cast<double>(gate);
#pragma unroll
    for (int step = 1; step < kSlots; step *= 2) {
      const double below = __shfl_up_sync(kFull, sum, step, kSlots);
      if (slot >= step) sum += below;
    }
    const double end = __shfl_sync(kFull, sum, kSlots - 1, kSlots);
    const float high = static_cast<float>(sum);
    const float weight = expf(static_cast<float>(end - sum));
    s_.fold_weight[h][p][slot] = T::kMamba ? weight * gate : weight;
    s_.log_decay[h][p][slot] = make_float2(high, static_cast<float>(sum - high));
    s_.gates[h][p][slot] = make_float2(expf(high), T::kMamba ? gate : beta);
    if constexpr (!T::kMamba) s_.log_alpha[h][p][slot] = gate;
  }
}

// x = the half-warp's vector widened to fp32, zero past its end. Returns the sum of the lane's
// squares.
template <typename T>
__device__ __forceinline__ float StepBlock<T>::unpack_vector(const uint32_t operand[kTurns][4],
                                                             float x[kTurns][8]) {
  const int lane = threadIdx.x % 16;
  float squares = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const bool valid = turn * 16 + lane < kPieces;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const uint32_t* raw = operand[turn];
      const float2 two = unpack_bf16(raw[e / 2]);
      const float value = e % 2 == 0 ? two.x : two.y;
      x[turn][e] = valid ? value : 0.0f;
      squares = fmaf(x[turn][e], x[turn][e], squares);
    }
  }
  return squares;
}

// Writes a scaled vector in fp16 to its shared key row (and the ring) or its query column;
// Mamba-2's queries also in bf16, for the scores. int8: returns the sum of the lane's rounded
// elements.
template <typename T>
__device__ __forceinline__ float StepBlock<T>::store_vector(const float x[kTurns][8], bool key,
                                                            bool exists, int position, int column,
                                                            bool to_ring) const {
  const int lane = threadIdx.x % 16;
  float sum = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int piece = turn * 16 + lane;
    if (piece >= kPieces || !exists) continue;
    uint32_t r[4], raw[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float low = x[turn][2 * e], high = x[turn][2 * e + 1];
      r[e] = pack_half(low, high);
      raw[e] = pack_bf16(low, high);
      if constexpr (T::kInt8) {
        const float2 rounded = unpack_half(r[e]);
        sum += rounded.x + rounded.y;
      }
    }
    const uint4 bits = make_uint4(r[0], r[1], r[2], r[3]);
    if (key) {
      write_key(position, piece, bits, to_ring);
    } else {
      *reinterpret_cast<uint4*>(&s_.queries[column][piece * 8]) = bits;
      if constexpr (T::kMamba) {
        *reinterpret_cast<uint4*>(&s_.raw_queries[column][piece * 8]) =
            make_uint4(raw[0], raw[1], raw[2], raw[3]);
      }
    }
  }
  return sum;
}

// Keys and queries of the sub-window, one half-warp per vector of kKeyDim elements:
//   key    GDN, KDA: L2-normalised, rounded to fp16 as the ring holds it; Mamba-2: bf16 as it came.
//          To shared row key_row(position) and, if to_ring, to the ring
//   query  scaled by the power of two that brings it into fp16's range, fp16, to column position
//          mod 8; the rest of its factor (norm, key_dim^-1/2) goes to query_scale in fp32
// Published by prepare()'s barrier.
template <typename T>
__device__ void StepBlock<T>::prepare_operands(int from, int to, bool to_ring) {
  const int lane = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int position = vector_position(i, from);
    // The shuffles below need the whole warp, so it continues if either of its vectors exists.
    if (!T::kSingle && position - threadIdx.x / 16 % 2 >= to) continue;
    if (kFirstWarpOnly && (warp() > 0 || position >= to)) continue;
    const bool exists = position < to;
    const bool key = is_key(i);
    if constexpr (T::kMamba) {
      if (key) {
        if (!exists) continue;
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
          const int piece = turn * 16 + lane;
          const uint32_t* raw = fetched_.operand[i][turn];
          if (piece >= kPieces) continue;
          write_key(position, piece, make_uint4(raw[0], raw[1], raw[2], raw[3]), to_ring);
        }
        continue;
      }
    }
    const int column = T::kSingle ? 0 : position & (kColumns - 1);
    float x[kTurns][8];
    float squares = unpack_vector(fetched_.operand[i], x);
    const uint32_t mask = !(T::kSingle && T::kMamba) ? kFull
                          : threadIdx.x % 32 < 16    ? 0x0000ffffu
                                                     : 0xffff0000u;
#pragma unroll
    for (int step = 8; step > 0; step /= 2) squares += __shfl_xor_sync(mask, squares, step);
    const float inverse = rsqrtf(squares + 1e-6f);
    // 2^-e for the norm's power of two 2^e: the scaled elements are below two.
    const float power = exponent_of_two(inverse);
    const float factor = inverse_of_two(power) *
                         (T::kMamba ? 1.0f : inverse * rsqrtf(static_cast<float>(T::kKeyDim)));
    const float multiply = key ? inverse : power;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
      for (int e = 0; e < 8; ++e) x[turn][e] *= multiply;
    }
    [[maybe_unused]] float sum = store_vector(x, key, exists, position, column, to_ring);
    if constexpr (T::kInt8) {
#pragma unroll
      for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
      if (lane == 0 && exists) (key ? s_.sums.key : s_.sums.query)[column] = sum;
    }
    if (!key && lane == 0 && exists) s_.query_scale[column] = factor;
  }
}

}  // namespace replayssm::cuda
