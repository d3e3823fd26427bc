// StepBlock's parts for KDA, which has a decay per key channel. Decays enter the operands, not the
// sums: S (e^{G_t} z), k_j . (e^{G_t - G_j} z), and (e^{G_end - G_j} k_j) in folds. Every exponent
// is a sum of log decays over (j, t], taken in one order; none is a difference, so none overflows.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

// Raw gates of the sub-window into registers, four channels per thread and round.
template <typename T>
__device__ void StepBlock<T>::kda_fetch(int from, int to) {
  constexpr int kFours = T::kKeyDim / 4;
#pragma unroll
  for (int i = 0; i < kAlphas; ++i) {
    const int index = threadIdx.x + i * T::kThreads;
    const int position = from + index / kFours;
    if (position >= to) continue;
    fetched_.alpha[i] = *reinterpret_cast<const float4*>(
        static_cast<const float*>(a_.gate.data) + token_of(position) * a_.gate.token_stride +
        blockIdx.y * T::kKeyDim + index % kFours * 4);
  }
}

// Log decays of the sub-window into kda.alpha and the ring; betas into gates.
template <typename T>
__device__ void StepBlock<T>::kda_gates(int from, int to, bool to_ring) {
  constexpr int kFours = T::kKeyDim / 4;
  const int head = blockIdx.y;
  const float rate = expf(a_.a_log[head]);
#pragma unroll
  for (int i = 0; i < kAlphas; ++i) {
    const int index = threadIdx.x + i * T::kThreads;
    const int position = from + index / kFours;
    if (position >= to) continue;
    const int channel = index % kFours * 4;
    float x[4] = {fetched_.alpha[i].x, fetched_.alpha[i].y, fetched_.alpha[i].z,
                  fetched_.alpha[i].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float raw = x[e] + a_.dt_bias[head * T::kKeyDim + channel + e];
      if (p_.decay_gate == DecayGate::kSoftplus) {
        x[e] = -rate * (raw > 20.0f ? raw : log1pf(expf(raw)));
      } else {
        x[e] = p_.decay_lower_bound / (1.0f + expf(-(rate * raw)));
      }
    }
    const float4 four = make_float4(x[0], x[1], x[2], x[3]);
    *reinterpret_cast<float4*>(&s_.kda.alpha[position & (2 * kSlots - 1)][channel]) = four;
    if (to_ring && blockIdx.x == 0) {
      *reinterpret_cast<float4*>(ring_gate(position, head * T::kKeyDim + channel)) = four;
    }
  }
  for (int i = threadIdx.x; i < to - from; i += T::kThreads) {
    const int position = from + i;
    const float raw =
        static_cast<const float*>(a_.beta.data)[token_of(position) * a_.beta.token_stride + head];
    s_.gates[0][parity(position)][slot_of(position)] =
        make_float2(1.0f, p_.beta_scale / (1.0f + expf(-raw)));
  }
}

// kda.operands: e^{G_t} k_t and e^{G_t} q_t of the sub-window, one thread per channel.
template <typename T>
__device__ void StepBlock<T>::kda_operands(int from, int to) {
  for (int channel = threadIdx.x; channel < T::kKeyDim; channel += T::kThreads) {
    float sum = 0;
    for (int position = from & ~(kSlots - 1); position < to; ++position) {
      if (slot_of(position) == 0) sum = 0;
      const int row = position & (2 * kSlots - 1);
      sum += s_.kda.alpha[row][channel];
      if (position < from) continue;
      const int column = position & (kColumns - 1);
      const float decay = expf(sum);
      const float key = half_float(s_.keys[row][channel]);
      const float query = half_float(s_.queries[column][channel]);
      s_.kda.operands[0][column][channel] = half_bits(decay * key);
      s_.kda.operands[1][column][channel] = half_bits(decay * query);
    }
  }
}

// int8: sums of the operands over the keys, one half-warp per vector.
template <typename T>
__device__ void StepBlock<T>::kda_sums(int from, int to) {
  const int lane = threadIdx.x % 16;
  for (int i = threadIdx.x / 16; i < 2 * kColumns; i += kHalfWarps) {
    const int column = i / 2;
    float sum = 0;
    for (int channel = lane; channel < T::kKeyDim; channel += 16) {
      sum += half_float(s_.kda.operands[i % 2][column][channel]);
    }
    const uint32_t half_warp = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(half_warp, sum, step);
    if (lane == 0) (i % 2 == 0 ? s_.sums.key : s_.sums.query)[column] = sum;
  }
}

// kda.scores: k_j . (e^{G_t - G_j} k_t) and with q_t, of the sub-window's tokens t with the slots j
// of their intervals. Eight lanes per slot.
template <typename T>
__device__ void StepBlock<T>::kda_scores(int from, int to) {
  constexpr int kLanes = 8, kChannels = T::kKeyDim / kLanes;
  const int first = threadIdx.x % kLanes * kChannels;
  for (int base = from & ~(kSlots - 1); base < to; base += kSlots) {
    for (int slot = threadIdx.x / kLanes; slot < kSlots; slot += T::kThreads / kLanes) {
      float key[kChannels], sum[kChannels];
      const int own = base + slot;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        key[i] = half_float(s_.keys[own & (2 * kSlots - 1)][first + i]);
        sum[i] = 0;
      }
      const int last = min(base + kSlots, to);
      for (int position = base; position < last; ++position) {
        const int row = position & (2 * kSlots - 1), column = position & (kColumns - 1);
        if (position > own) {
#pragma unroll
          for (int i = 0; i < kChannels; ++i) sum[i] += s_.kda.alpha[row][first + i];
        }
        if (position < from) continue;
        float dots[2] = {};
#pragma unroll
        for (int i = 0; i < kChannels; ++i) {
          const float x = key[i] * exp_fast(sum[i]);
          dots[0] = fmaf(x, half_float(s_.keys[row][first + i]), dots[0]);
          dots[1] = fmaf(x, half_float(s_.queries[column][first + i]), dots[1]);
        }
#pragma unroll
        for (int step = 1; step < kLanes; step *= 2) {
          dots[0] += __shfl_xor_sync(kFull, dots[0], step);
          dots[1] += __shfl_xor_sync(kFull, dots[1], step);
        }
        if (first == 0) {
          s_.kda.scores[0][column][slot] = dots[0];
          s_.kda.scores[1][column][slot] = dots[1];
        }
      }
    }
  }
}

// kda.fold_keys: the interval's keys with their decay to its end, as a sum of two fp16; kda.decay:
// the decay of the whole interval. Barriers before (earlier readers) and after (publishes).
template <typename T>
__device__ void StepBlock<T>::kda_fold_keys(int base) {
  __syncthreads();
  for (int channel = threadIdx.x; channel < T::kKeyDim; channel += T::kThreads) {
    float sum = 0;
    for (int slot = kSlots - 1; slot >= 0; --slot) {
      const int row = interval_row(base) + slot;
      const float key = expf(sum) * half_float(s_.keys[row][channel]);
      const uint16_t top = half_bits(key);
      s_.kda.fold_keys[0][slot][channel] = top;
      s_.kda.fold_keys[1][slot][channel] = half_bits(key - half_float(top));
      sum += s_.kda.alpha[row][channel];
    }
    s_.kda.decay[channel] = expf(sum);
  }
  __syncthreads();
}

}  // namespace replayssm::cuda
