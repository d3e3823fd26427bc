// The step: one kernel for GDN and Mamba-2, any window of at most kMaxTokens positions.
//
// A block takes some heads of one key head of one row of the batch; one thread owns one state row.
//
//   load      the state tile by one bulk copy; ring rows, q, k, v and gates meanwhile
//   prologue  norms, gates, prefix sums, and the dots of ring keys with the window's operands: once
//   a
//             block, into shared memory, while the state is on its way
//   products  S z for all window operands on the tensor cores, state rows as the A operand
//   rows      each thread runs its row's sums and forward substitution over the 16 slots of the
//   grid
//             interval, always all of them with exact zeros beyond the token: T = 1 and T = 16 have
//             the same bits
//   folds     a pending one (written) before, a crossing one (on chip) between two rounds of
//   products
//
// The checkpoint's private layout: [head][value][key], each row in 16-byte chunks, chunk i of row r
// stored at i ^ swizzle(r), so that a bulk copy lands free of bank conflicts.
#pragma once

#include "replay/cuda/mma.cuh"
#include "replay/step.h"

namespace replayssm::cuda {

inline constexpr int kSlots = 16;  // the grid interval of these kernels

// 16-byte chunk permutation of a state row: eight rows apart in four-chunk steps.
__host__ __device__ constexpr int swizzle(int row) { return ((row & 1) << 2) | ((row >> 1) & 3); }

template <Family kFamily_, DType kCheckpoint_, int kValueDim_, int kKeyDim_, int kHeads_,
          int kMaxTokens_>
struct StepTraits {
  static constexpr Family kFamily = kFamily_;
  static constexpr DType kCheckpoint = kCheckpoint_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kKeyDim = kKeyDim_;
  static constexpr int kMaxTokens = kMaxTokens_;
  // A head's rows may be split over blocks (kHeads <= 0: -kHeads blocks a head) or several heads
  // share one.
  static constexpr int kHeads = kHeads_ > 0 ? kHeads_ : 1;
  static constexpr int kRows = kHeads_ > 0 ? kHeads_* kValueDim_ : kValueDim_ / -kHeads_;
  static constexpr int kWarps = kRows / 32;
  static constexpr bool kMamba = kFamily == Family::kMamba2;
  static constexpr int kElementBytes = kCheckpoint == DType::kF32  ? 4
                                       : kCheckpoint == DType::kI8 ? 1
                                                                   : 2;
  static constexpr int kChunk = 16 / kElementBytes;  // elements of 16 bytes
  static constexpr int kRowChunks = kKeyDim / kChunk;
  // Operands: the window's keys then queries (Mamba-2: C only), padded to n-tiles of eight.
  static constexpr int kKeyOperands = kMamba ? 0 : kMaxTokens;
  static constexpr int kOperands = (kKeyOperands + kMaxTokens + 7) / 8 * 8;
  static constexpr int kTilesN = kOperands / 8;
  static constexpr int kOperandStride = kKeyDim + (kCheckpoint == DType::kF32 ? 16 : 32);
  static constexpr int kKeyStride = kKeyDim + 8;
  static constexpr int kProductStride = kOperands + 1;
};

// Shared memory of a block.
template <typename T>
struct alignas(128) StepShared {
  uint8_t state[T::kRows * T::kKeyDim * T::kElementBytes];
  uint16_t keys[2][kSlots][T::kKeyStride];  // ring dtype; [1]: the older interval, then the next
  uint16_t values[2][kSlots][T::kRows];
  uint16_t operands[T::kOperands][T::kOperandStride];  // fp16
  union {                                              // never needed at once
    uint16_t keys_across[T::kKeyDim][kSlots + 2];      // folds: keys, transposed
    float products[T::kWarps][32][T::kProductStride];  // S z, before scales
  };
  float weights_key[T::kHeads][T::kMaxTokens][kSlots];
  float weights_query[T::kHeads][T::kMaxTokens][kSlots];
  float log_decay[2][T::kHeads][kSlots];  // prefix sums of each interval
  float gates[2][T::kHeads][kSlots];      // Mamba-2: dt
  float beta[T::kHeads][T::kMaxTokens];
  float operand_scale[T::kOperands];
  float decay[T::kHeads][T::kMaxTokens];  // e^{G_t} from the interval's checkpoint
  float fold_weight[T::kHeads][kSlots];
  float scale[T::kRows];  // int8
  uint64_t barrier;
};

template <typename T>
class StepBlock {
 public:
  __device__ StepBlock(const StepArgs& args, const Problem& problem, StepShared<T>& shared)
      : a_(args), p_(problem), s_(shared), row_(args.rows[blockIdx.y]) {
    constexpr int kSplit = T::kValueDim * T::kHeads / T::kRows;
    head_ = blockIdx.x / kSplit * T::kHeads;
    row0_ = T::kHeads > 1 ? 0 : blockIdx.x % kSplit * T::kRows;
    key_head_ = head_ / (p_.n_heads / p_.n_key_heads);
    first_of_key_head_ = head_ % (p_.n_heads / p_.n_key_heads) == 0 && row0_ == 0;
  }

  __device__ void run() {
    if (row_.read_slot < 0) return;
    const int64_t grid = row_.n / kSlots * kSlots;
    const bool fold_pending = row_.c < grid;
    if (row_.n_tokens == 0 && !fold_pending) return;
    const int64_t end = row_.start + row_.n_tokens;
    const int first_tokens =  // tokens of the first interval
        static_cast<int>(max(int64_t{0}, min(end, grid + kSlots) - row_.start));

    load_state();
    base_ = grid;
    load_rows(0, grid, min(row_.start, grid + kSlots));
    if (fold_pending) load_rows(1, row_.c, row_.c + kSlots);
    load_operands();
    place_keys(0, first_tokens, 0);
    interval_gates(0, grid, first_tokens, 0);
    if (fold_pending) interval_gates(1, row_.c, 0, 0);
    __syncthreads();
    wait_state();
    if (fold_pending) {
      fold(1, true);
      if (row_.n_tokens == 0) return;
    }
    if (first_tokens > 0) {
      dots(0, 0, first_tokens);
      products();
      __syncthreads();
      rows(0, 0, first_tokens);
    }
    if (end <= grid + kSlots) return;

    __syncthreads();
    fold(0, false);
    base_ = grid + kSlots;
    load_rows(1, base_, row_.start);
    place_keys(1, row_.n_tokens - first_tokens, first_tokens);
    interval_gates(1, base_, row_.n_tokens - first_tokens, first_tokens);
    __syncthreads();
    dots(1, first_tokens, row_.n_tokens);
    products();
    __syncthreads();
    rows(1, first_tokens, row_.n_tokens);
  }

 private:
  static constexpr uint32_t kFull = 0xffffffffu;

  __device__ int thread() const { return threadIdx.x; }
  __device__ int warp() const { return threadIdx.x / 32; }
  __device__ int lane() const { return threadIdx.x % 32; }
  __device__ int head_of(int local_row) const {
    return T::kHeads == 1 ? 0 : local_row / T::kValueDim;
  }
  // The value index of a block's row, over all heads: [n_heads, value_dim].
  __device__ int value_index(int local_row) const {
    return head_ * T::kValueDim + row0_ + local_row;
  }

  // ---- loads

  __device__ int64_t state_offset(int slot) const {
    return slot * a_.checkpoint_slot_stride + (int64_t{head_} * T::kValueDim + row0_) * T::kKeyDim;
  }

  __device__ void load_state() {
    if (thread() == 0) {
      barrier_init(&s_.barrier, 1);
      barrier_fence();
    }
    if (row_.c == 0) {
      for (int i = thread(); i < static_cast<int>(sizeof(s_.state)) / 16; i += T::kRows) {
        reinterpret_cast<uint4*>(s_.state)[i] = make_uint4(0, 0, 0, 0);
      }
      s_.scale[thread()] = 0;
      return;
    }
    if (thread() == 0) {
      barrier_expect(&s_.barrier, sizeof(s_.state));
      bulk_copy(s_.state,
                static_cast<const uint8_t*>(a_.checkpoint) +
                    state_offset(row_.read_slot) * T::kElementBytes,
                sizeof(s_.state), &s_.barrier);
    }
    if constexpr (T::kCheckpoint == DType::kI8) {
      s_.scale[thread()] = a_.scale[row_.read_slot * a_.scale_slot_stride + value_index(thread())];
    }
  }

  __device__ void wait_state() {
    if (row_.c != 0) barrier_wait(&s_.barrier, 0);
  }

  __device__ int64_t ring_row(const Ring& ring, int64_t t) const {
    return row_.ring_slot * ring.slot_stride + t % p_.grid.ring_rows * ring.row_stride;
  }

  // Ring rows [from, to) into slots 0.. of an interval; the other slots become zeros.
  __device__ void load_rows(int interval, int64_t from, int64_t to) {
    const int n = static_cast<int>(to - from);
    constexpr int kKeyPieces = T::kKeyDim / 8;
    for (int i = thread(); i < kSlots * kKeyPieces; i += T::kRows) {
      const int slot = i / kKeyPieces, piece = i % kKeyPieces * 8;
      const bool valid = slot < n;
      const uint16_t* source = static_cast<const uint16_t*>(a_.ring_key.data);
      if (valid) {
        source += ring_row(a_.ring_key, from + slot) + key_head_ * T::kKeyDim + piece;
      }
      copy_16(&s_.keys[interval][slot][piece], source, valid);
    }
    constexpr int kValuePieces = T::kRows / 8;
    for (int i = thread(); i < kSlots * kValuePieces; i += T::kRows) {
      const int slot = i / kValuePieces, piece = i % kValuePieces * 8;
      const bool valid = slot < n;
      const uint16_t* source = static_cast<const uint16_t*>(a_.ring_value.data);
      if (valid) source += ring_row(a_.ring_value, from + slot) + value_index(piece);
      copy_16(&s_.values[interval][slot][piece], source, valid);
    }
  }

  // The window's keys and queries as fp16 operands, one warp a vector. A key is L2-normalised and
  // rounded as the ring holds it; a query stays as it came, times a power of two that fits fp16,
  // its factor kept in fp32.
  __device__ void load_operands() {
    constexpr int kLaneElements = T::kKeyDim / 32;
    for (int i = warp(); i < T::kOperands; i += T::kWarps) {
      const bool is_key = i < T::kKeyOperands;
      const int t = is_key ? i : i - T::kKeyOperands;
      float x[kLaneElements] = {};
      if (t < row_.n_tokens && t < T::kMaxTokens) {
        const Tokens& from = is_key ? a_.key : a_.query;
        const auto* source = static_cast<const __nv_bfloat16*>(from.data) +
                             (row_.token + t) * from.token_stride + key_head_ * T::kKeyDim;
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) {
          x[e] = __bfloat162float(source[lane() * kLaneElements + e]);
        }
      }
      float factor = 1.0f;
      float sum = 0, largest = 0;
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) {
        sum = fmaf(x[e], x[e], sum);
        largest = fmaxf(largest, fabsf(x[e]));
      }
      if (!T::kMamba) {
        const float norm = sqrtf(warp_sum(sum) + 1e-6f);
        factor = (is_key ? 1.0f : rsqrtf(static_cast<float>(T::kKeyDim))) / norm;
      }
      if (is_key) {
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) x[e] *= factor;
        factor = 1.0f;
      } else {
        largest = warp_max(largest);
        const int exponent = largest > 0 && largest < INFINITY ? ilogbf(largest) : 0;
        const float power = ldexpf(1.0f, -exponent);
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) x[e] *= power;
        factor *= ldexpf(1.0f, exponent);
      }
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) {
        s_.operands[i][lane() * kLaneElements + e] =
            __half_as_ushort(__float2half_rn(saturate_half(x[e])));
      }
      if (lane() == 0) s_.operand_scale[i] = factor;
    }
  }

  // Puts the keys of window tokens [first, first + n) behind an interval's ring rows, and into the
  // ring.
  __device__ void place_keys(int interval, int n, int first) {
    copies_wait();  // their zeros may fall on the same slots
    __syncthreads();
    const int slot0 = static_cast<int>(max(row_.start, base_) - base_);
    for (int i = thread(); i < n * T::kKeyDim; i += T::kRows) {
      const int t = first + i / T::kKeyDim, k = i % T::kKeyDim;
      uint16_t key;
      if constexpr (T::kMamba) {
        key = static_cast<const uint16_t*>(
            a_.key.data)[(row_.token + t) * a_.key.token_stride + key_head_ * T::kKeyDim + k];
      } else {
        key = s_.operands[t][k];
      }
      s_.keys[interval][slot0 + i / T::kKeyDim][k] = key;
      if (first_of_key_head_) {
        static_cast<uint16_t*>(
            a_.ring_key.data)[ring_row(a_.ring_key, row_.start + t) + key_head_ * T::kKeyDim + k] =
            key;
      }
    }
  }

  // Gates of an interval, one warp a head, one lane a slot: ring rows, then window tokens
  // [first, first + n). Prefix sums by a fixed tree over the slots.
  __device__ void interval_gates(int interval, int64_t base, int n, int first) {
    for (int h = warp(); h < T::kHeads; h += T::kWarps) {
      const int head = head_ + h;
      const int slot = lane();
      const int64_t position = base + slot;
      const int64_t window_start = row_.start + first;
      float gate = 0;
      if (slot < kSlots) {
        if (position < row_.start) {
          gate =
              static_cast<const float*>(a_.ring_gate.data)[ring_row(a_.ring_gate, position) + head];
        } else if (position >= window_start && position < window_start + n) {
          const int t = static_cast<int>(position - row_.start);
          const float raw = static_cast<const float*>(
                                a_.gate.data)[(row_.token + t) * a_.gate.token_stride + head] +
                            a_.dt_bias[head];
          const float soft = raw > 20.0f ? raw : log1pf(expf(raw));
          gate = T::kMamba ? soft : -expf(a_.a_log[head]) * soft;
          if (row0_ == 0) {
            static_cast<float*>(a_.ring_gate.data)[ring_row(a_.ring_gate, position) + head] = gate;
          }
          if constexpr (!T::kMamba) {
            const float b = static_cast<const float*>(
                a_.beta.data)[(row_.token + t) * a_.beta.token_stride + head];
            s_.beta[h][t] = p_.beta_scale / (1.0f + expf(-b));
          }
        }
      }
      float sum = T::kMamba ? -expf(a_.a_log[head]) * gate : gate;
#pragma unroll
      for (int step = 1; step < kSlots; step *= 2) {
        const float below = __shfl_up_sync(kFull, sum, step);
        if (lane() >= step) sum += below;
      }
      if (slot < kSlots) {
        s_.log_decay[interval][h][slot] = sum;
        s_.gates[interval][h][slot] = gate;
      }
    }
  }

  // ---- dots of ring keys and operands, with their decay

  // weights[t][slot] = e^{G_t - G_slot} (k_slot . z_t), zero where the token must not see the slot.
  __device__ void dots(int interval, int first, int last) {
    // [16 operands] x [8 slots] tiles; the operands as A rows, ring keys as B columns.
    constexpr int kTilesM = (T::kOperands + 15) / 16;
    for (int tile = warp(); tile < kTilesM * 2; tile += T::kWarps) {
      const int m = tile / 2 * 16, slot0 = tile % 2 * 8;
      const int g = lane() / 4, c = lane() % 4;
      float d[4] = {};
#pragma unroll
      for (int k = 0; k < T::kKeyDim; k += 16) {
        uint32_t a[4], b[2];
        const bool low = m + g < T::kOperands, high = m + g + 8 < T::kOperands;
        const int row_low = low ? m + g : 0, row_high = high ? m + g + 8 : 0;
        a[0] = low ? *reinterpret_cast<const uint32_t*>(&s_.operands[row_low][k + 2 * c]) : 0;
        a[1] = high ? *reinterpret_cast<const uint32_t*>(&s_.operands[row_high][k + 2 * c]) : 0;
        a[2] = low ? *reinterpret_cast<const uint32_t*>(&s_.operands[row_low][k + 2 * c + 8]) : 0;
        a[3] = high ? *reinterpret_cast<const uint32_t*>(&s_.operands[row_high][k + 2 * c + 8]) : 0;
        b[0] = *reinterpret_cast<const uint32_t*>(&s_.keys[interval][slot0 + g][k + 2 * c]);
        b[1] = *reinterpret_cast<const uint32_t*>(&s_.keys[interval][slot0 + g][k + 2 * c + 8]);
        if constexpr (T::kMamba) {
          mma_bf16(d, bf16_operand(a), b);
        } else {
          mma_f16(d, a, b);
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int operand = m + g + (e >= 2 ? 8 : 0);
        const int slot = slot0 + 2 * c + (e & 1);
        if (operand >= T::kOperands) continue;
        const bool is_key = operand < T::kKeyOperands;
        const int t = is_key ? operand : operand - T::kKeyOperands;
        if (t < first || t >= last) continue;
        const int own = static_cast<int>(row_.start + t - base_);  // the token's own slot
        const bool sees = is_key ? slot < own : slot <= own;
        const float dot = d[e] * s_.operand_scale[operand];
#pragma unroll
        for (int h = 0; h < T::kHeads; ++h) {
          const float* g_sum = s_.log_decay[interval][h];
          float w = 0;
          if (sees) {
            w = expf(g_sum[own] - g_sum[slot]) * dot;
            if (T::kMamba) w *= s_.gates[interval][h][slot];
          }
          (is_key ? s_.weights_key : s_.weights_query)[h][t][slot] = w;
          if (slot == 0 && !is_key) s_.decay[h][t] = expf(g_sum[own]);
        }
      }
    }
  }

  // Mamba-2's keys are bf16: the query operand, exact in bf16, is converted back.
  struct Fragment {
    uint32_t r[4];
    __device__ operator const uint32_t*() const { return r; }
  };
  __device__ Fragment bf16_operand(const uint32_t a[4]) const {
    Fragment out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&a[i]));
      out.r[i] = pack_bf16(x.x, x.y);
    }
    return out;
  }

  // ---- S z on the tensor cores

  __device__ const uint8_t* state_chunk(int row, int chunk) const {
    return s_.state + (row * T::kRowChunks + (chunk ^ swizzle(row))) * 16;
  }
  __device__ uint8_t* state_chunk(int row, int chunk) {
    return s_.state + (row * T::kRowChunks + (chunk ^ swizzle(row))) * 16;
  }

  // products[row][operand], two 16-row tiles a warp. The order of keys inside a product is free as
  // long as both operands share it: a lane takes 16 contiguous bytes of a state row.
  __device__ void products() {
    const int g = lane() / 4, c = lane() % 4;
    float d[2][T::kTilesN][4] = {};
#pragma unroll
    for (int i = 0; i < T::kRowChunks / 4; ++i) {
      const int chunk = 4 * i + c;
      uint32_t z[T::kTilesN][T::kChunk / 2];  // fp16 pairs of operand g, the lane's keys
#pragma unroll
      for (int n = 0; n < T::kTilesN; ++n) {
        const auto* source =
            reinterpret_cast<const uint32_t*>(&s_.operands[8 * n + g][chunk * T::kChunk]);
#pragma unroll
        for (int e = 0; e < T::kChunk / 2; ++e) z[n][e] = source[e];
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int row = warp() * 32 + m * 16 + g;
        const uint4 low = *reinterpret_cast<const uint4*>(state_chunk(row, chunk));
        const uint4 high = *reinterpret_cast<const uint4*>(state_chunk(row + 8, chunk));
        product_chunk(d[m], low, high, z);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < T::kTilesN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s_.products[warp()][m * 16 + g + (e >= 2 ? 8 : 0)][8 * n + 2 * c + (e & 1)] = d[m][n][e];
        }
      }
    }
    __syncwarp();
  }

  __device__ void product_chunk(float d[T::kTilesN][4], uint4 low, uint4 high,
                                const uint32_t z[T::kTilesN][T::kChunk / 2]) {
    const uint32_t l[4] = {low.x, low.y, low.z, low.w};
    const uint32_t h[4] = {high.x, high.y, high.z, high.w};
    if constexpr (T::kCheckpoint == DType::kF32) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t x[4] = {l[2 * step], h[2 * step], l[2 * step + 1], h[2 * step + 1]};
        uint32_t top[4], rest[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          top[e] = x[e] & 0xffffe000u;
          rest[e] = __float_as_uint(__uint_as_float(x[e]) - __uint_as_float(top[e])) & 0xffffe000u;
        }
#pragma unroll
        for (int n = 0; n < T::kTilesN; ++n) {
          const float2 zf = __half22float2(*reinterpret_cast<const __half2*>(&z[n][step]));
          const uint32_t b[2] = {__float_as_uint(zf.x), __float_as_uint(zf.y)};
          mma_tf32(d[n], top, b);
          mma_tf32(d[n], rest, b);
        }
      }
    } else if constexpr (T::kCheckpoint == DType::kF16) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t a[4] = {l[2 * step], h[2 * step], l[2 * step + 1], h[2 * step + 1]};
#pragma unroll
        for (int n = 0; n < T::kTilesN; ++n) mma_f16(d[n], a, &z[n][2 * step]);
      }
    } else {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t a[4];
        widen_int8(l[step], a[0], a[2]);
        widen_int8(h[step], a[1], a[3]);
#pragma unroll
        for (int n = 0; n < T::kTilesN; ++n) mma_f16(d[n], a, &z[n][2 * step]);
      }
    }
  }

  // Four bytes, stored biased by 128, to two pairs of fp16: 0x64 above a byte is 1024 + byte.
  __device__ static void widen_int8(uint32_t bytes, uint32_t& low, uint32_t& high) {
    const uint32_t a = __byte_perm(bytes, 0x64646464u, 0x4140);
    const uint32_t b = __byte_perm(bytes, 0x64646464u, 0x4342);
    const __half2 bias = __float2half2_rn(1152.0f);
    const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&a), bias);
    const __half2 y = __hsub2(*reinterpret_cast<const __half2*>(&b), bias);
    low = *reinterpret_cast<const uint32_t*>(&x);
    high = *reinterpret_cast<const uint32_t*>(&y);
  }

  // ---- the window's tokens, one thread a row

  __device__ static float ring_float(uint16_t bits) {
    if constexpr (T::kMamba) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
    return __half2float(__ushort_as_half(bits));
  }

  __device__ void rows(int interval, int first, int last) {
    const int local = thread();
    const int h = head_of(local);
    const float* product = s_.products[warp()][lane()];
    const float scale = T::kCheckpoint == DType::kI8 ? s_.scale[local] : 1.0f;
    float u[kSlots];
#pragma unroll
    for (int j = 0; j < kSlots; ++j) u[j] = ring_float(s_.values[interval][j][local]);
    const auto* value = static_cast<const __nv_bfloat16*>(a_.value.data);
    auto* out = static_cast<__nv_bfloat16*>(a_.out.data);
    for (int t = first; t < last; ++t) {
      const int own = static_cast<int>(row_.start + t - base_);
      const int64_t token = row_.token + t;
      const float v = __bfloat162float(value[token * a_.value.token_stride + value_index(local)]);
      const float decay = s_.decay[h][t];
      const float4* wq = reinterpret_cast<const float4*>(s_.weights_query[h][t]);
      const int query = T::kKeyOperands + t;
      float ring_value;
      if constexpr (T::kMamba) {
        ring_value = v;
      } else {
        const float4* wk = reinterpret_cast<const float4*>(s_.weights_key[h][t]);
        const float read = decay * (product[t] * scale) + slot_sum(wk, u);
        ring_value = s_.beta[h][t] * (v - read);
        count_saturated(ring_value);
        ring_value = __half2float(__float2half_rn(saturate_half(ring_value)));
      }
#pragma unroll
      for (int j = 0; j < kSlots; ++j) u[j] = j == own ? ring_value : u[j];
      float y = decay * (product[query] * (scale * s_.operand_scale[query])) + slot_sum(wq, u);
      if constexpr (T::kMamba) y = fmaf(a_.skip[head_ + h], v, y);
      out[token * a_.out.token_stride + value_index(local)] = __float2bfloat16_rn(y);
      const uint16_t bits = T::kMamba ? __bfloat16_as_ushort(__float2bfloat16_rn(ring_value))
                                      : __half_as_ushort(__float2half_rn(ring_value));
      s_.values[interval][own][local] = bits;
      static_cast<uint16_t*>(
          a_.ring_value.data)[ring_row(a_.ring_value, row_.start + t) + value_index(local)] = bits;
    }
  }

  __device__ void count_saturated(float x) {
    if (fabsf(x) > 65504.0f && a_.n_saturated != nullptr) {
      atomicAdd(reinterpret_cast<unsigned long long*>(a_.n_saturated), 1ull);
    }
  }

  // sum_j w_j u_j over all slots, in four partial sums.
  __device__ static float slot_sum(const float4* w, const float u[kSlots]) {
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < kSlots / 4; ++j) {
      const float4 x = w[j];
      sum[0] = fmaf(x.x, u[4 * j], sum[0]);
      sum[1] = fmaf(x.y, u[4 * j + 1], sum[1]);
      sum[2] = fmaf(x.z, u[4 * j + 2], sum[2]);
      sum[3] = fmaf(x.w, u[4 * j + 3], sum[3]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  // ---- folds

  // S <- e^{G_end} S + sum_j w_j u_j k_j^T, rounded to the checkpoint's dtype in shared memory, and
  // to the write slot if `to_slot`.
  __device__ void fold(int interval, bool to_slot) {
    for (int k = thread(); k < T::kKeyDim; k += T::kRows) {
#pragma unroll
      for (int j = 0; j < kSlots; ++j) s_.keys_across[k][j] = s_.keys[interval][j][k];
    }
    for (int i = thread(); i < T::kHeads * kSlots; i += T::kRows) {
      const int h = i / kSlots, j = i % kSlots;
      const float* g_sum = s_.log_decay[interval][h];
      float w = expf(g_sum[kSlots - 1] - g_sum[j]);
      if (T::kMamba) w *= s_.gates[interval][h][j];
      s_.fold_weight[h][j] = w;
    }
    __syncthreads();
    const int g = lane() / 4, c = lane() % 4;
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
      const int row_low = warp() * 32 + m * 16 + g, row_high = row_low + 8;
      uint32_t top[4], rest[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = (e & 1) ? row_high : row_low;
        const int slot = 2 * c + (e >= 2 ? 8 : 0);
        const float* w = s_.fold_weight[head_of(row)];
        const float x = w[slot] * ring_float(s_.values[interval][slot][row]);
        const float y = w[slot + 1] * ring_float(s_.values[interval][slot + 1][row]);
        split(x, y, top[e], rest[e]);
      }
      const float decay_low = expf(s_.log_decay[interval][head_of(row_low)][kSlots - 1]);
      const float decay_high = expf(s_.log_decay[interval][head_of(row_high)][kSlots - 1]);
      if constexpr (T::kCheckpoint == DType::kI8) {
        fold_int8(row_low, row_high, top, rest, decay_low, decay_high, to_slot);
      } else {
#pragma unroll 2
        for (int i = 0; i < T::kRowChunks / 4; ++i) {
          float low[T::kChunk], high[T::kChunk];
          fold_chunk(4 * i + c, 4 * i, row_low, row_high, top, rest, decay_low, decay_high, low,
                     high);
          store_chunk(row_low, 4 * i + c, low, to_slot);
          store_chunk(row_high, 4 * i + c, high, to_slot);
        }
      }
    }
    __syncthreads();
  }

  // x and y as the sum of two 16-bit numbers each.
  __device__ static void split(float x, float y, uint32_t& top, uint32_t& rest) {
    if constexpr (T::kMamba) {
      top = pack_bf16(x, y);
      const float2 t = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&top));
      rest = pack_bf16(x - t.x, y - t.y);
    } else {
      top = pack_half(x, y);
      const float2 t = __half22float2(*reinterpret_cast<const __half2*>(&top));
      rest = pack_half(x - t.x, y - t.y);
    }
  }

  // The folded values of one 16-byte chunk of two rows, fp32.
  __device__ void fold_chunk(int chunk, int chunk0, int row_low, int row_high,
                             const uint32_t top[4], const uint32_t rest[4], float decay_low,
                             float decay_high, float low[T::kChunk], float high[T::kChunk]) {
    const int g = lane() / 4, c = lane() % 4;
    float old_low[T::kChunk], old_high[T::kChunk];
    read_chunk(row_low, chunk, old_low);
    read_chunk(row_high, chunk, old_high);
#pragma unroll
    for (int e = 0; e < T::kChunk / 2; ++e) {
      float d[4] = {decay_low * old_low[2 * e], decay_low * old_low[2 * e + 1],
                    decay_high * old_high[2 * e], decay_high * old_high[2 * e + 1]};
      // Column g of this tile is key (chunk0 + g / 2) * kChunk + 2 e + (g & 1).
      const int key = (chunk0 + g / 2) * T::kChunk + 2 * e + (g & 1);
      const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(&s_.keys_across[key][2 * c]),
                             *reinterpret_cast<const uint32_t*>(&s_.keys_across[key][2 * c + 8])};
      if constexpr (T::kMamba) {
        mma_bf16(d, top, b);
        mma_bf16(d, rest, b);
      } else {
        mma_f16(d, top, b);
        mma_f16(d, rest, b);
      }
      low[2 * e] = d[0];
      low[2 * e + 1] = d[1];
      high[2 * e] = d[2];
      high[2 * e + 1] = d[3];
    }
  }

  // int8 needs a row's largest value before it can round: all chunks of the two rows in registers.
  __device__ void fold_int8(int row_low, int row_high, const uint32_t top[4],
                            const uint32_t rest[4], float decay_low, float decay_high,
                            bool to_slot) {
    constexpr int kTurns = T::kRowChunks / 4;
    float low[kTurns][T::kChunk], high[kTurns][T::kChunk];
    float largest_low = 0, largest_high = 0;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      fold_chunk(4 * i + lane() % 4, 4 * i, row_low, row_high, top, rest, decay_low, decay_high,
                 low[i], high[i]);
#pragma unroll
      for (int e = 0; e < T::kChunk; ++e) {
        largest_low = fmaxf(largest_low, fabsf(low[i][e]));
        largest_high = fmaxf(largest_high, fabsf(high[i][e]));
      }
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      largest_low = fmaxf(largest_low, __shfl_xor_sync(kFull, largest_low, step));
      largest_high = fmaxf(largest_high, __shfl_xor_sync(kFull, largest_high, step));
    }
    __syncwarp();
    write_scale(row_low, largest_low / 127.0f, to_slot);
    write_scale(row_high, largest_high / 127.0f, to_slot);
    const float inverse_low = largest_low > 0 ? 127.0f / largest_low : 0.0f;
    const float inverse_high = largest_high > 0 ? 127.0f / largest_high : 0.0f;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
#pragma unroll
      for (int e = 0; e < T::kChunk; ++e) {
        low[i][e] *= inverse_low;
        high[i][e] *= inverse_high;
      }
      store_chunk(row_low, 4 * i + lane() % 4, low[i], to_slot);
      store_chunk(row_high, 4 * i + lane() % 4, high[i], to_slot);
    }
  }

  __device__ void write_scale(int row, float scale, bool to_slot) {
    if (lane() % 4 != 0) return;
    s_.scale[row] = scale;
    if (to_slot) a_.scale[row_.write_slot * a_.scale_slot_stride + value_index(row)] = scale;
  }

  __device__ void read_chunk(int row, int chunk, float x[T::kChunk]) const {
    const uint4 raw = *reinterpret_cast<const uint4*>(state_chunk(row, chunk));
    const uint32_t r[4] = {raw.x, raw.y, raw.z, raw.w};
    if constexpr (T::kCheckpoint == DType::kF32) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = __uint_as_float(r[e]);
    } else if constexpr (T::kCheckpoint == DType::kF16) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&r[e]));
        x[2 * e] = f.x;
        x[2 * e + 1] = f.y;
      }
    } else {
      const float scale = s_.scale[row];
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        x[e] = scale * static_cast<float>(static_cast<int>(r[e / 4] >> (8 * (e % 4)) & 0xff) - 128);
      }
    }
  }

  __device__ void store_chunk(int row, int chunk, const float x[T::kChunk], bool to_slot) {
    uint32_t r[4];
    if constexpr (T::kCheckpoint == DType::kF32) {
#pragma unroll
      for (int e = 0; e < 4; ++e) r[e] = __float_as_uint(x[e]);
    } else if constexpr (T::kCheckpoint == DType::kF16) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (to_slot) {
          count_saturated(x[2 * e]);
          count_saturated(x[2 * e + 1]);
        }
        r[e] = pack_half(saturate_half(x[2 * e]), saturate_half(x[2 * e + 1]));
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        r[e] = 0;
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
          const int q = __float2int_rn(fminf(fmaxf(x[4 * e + byte], -127.0f), 127.0f)) + 128;
          r[e] |= static_cast<uint32_t>(q) << (8 * byte);
        }
      }
    }
    const uint4 raw = make_uint4(r[0], r[1], r[2], r[3]);
    *reinterpret_cast<uint4*>(state_chunk(row, chunk)) = raw;
    if (!to_slot) return;
    uint8_t* slot =
        static_cast<uint8_t*>(a_.checkpoint) + state_offset(row_.write_slot) * T::kElementBytes;
    *reinterpret_cast<uint4*>(slot + (row * T::kRowChunks + (chunk ^ swizzle(row))) * 16) = raw;
  }

  const StepArgs& a_;
  const Problem& p_;
  StepShared<T>& s_;
  const Row row_;
  int head_, row0_, key_head_;
  bool first_of_key_head_;
  int64_t base_ = 0;  // the grid point of the interval in work
};

template <typename T>
__global__ void __launch_bounds__(T::kRows)
    step_kernel(const __grid_constant__ StepArgs args, const __grid_constant__ Problem problem) {
  extern __shared__ __align__(128) uint8_t memory[];
  StepBlock<T>(args, problem, *reinterpret_cast<StepShared<T>*>(memory)).run();
}

}  // namespace replayssm::cuda
