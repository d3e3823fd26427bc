// The step's block: one kernel for GDN and Mamba-2, any window.
//
// A block takes kRows state rows (one head, part of one, or some of one key head) of one row of the
// batch; a warp owns a tile of 32 of them from start to end. The window is taken in sub-windows of
// at most eight positions; the token at position p stands in column p mod 8 of every product.
//
//   load     the state tile by one bulk copy, ring rows by 16-byte copies
//   prepare  once a block, while the copies fly: keys and queries normalised, gates, prefix sums
//   segment  the positions of one grid interval: scores of ring keys, S z on the tensor cores, then
//            (GDN) the u of each token by one product over all 16 slots of the interval, then y
//   fold     a pending one (written) before, a crossing one (on chip) between two segments
//
// Every token's sums run over all 16 slots of its interval, with exact zeros where it must not see:
// its bits do not depend on the window that it came in.
#pragma once

#include "replay/cuda/ptx.cuh"
#include "replay/cuda/tile.h"
#include "replay/step.h"

namespace replayssm::cuda {

inline constexpr int kSlots = 16;   // the grid interval of these kernels
inline constexpr int kColumns = 8;  // positions of a sub-window
inline constexpr float kLog2E = 1.44269504088896340736f;

template <Family kFamily_, DType kCheckpoint_, DType kActivation_, int kValueDim_, int kKeyDim_,
          int kRows_>
struct StepTraits {
  static constexpr Family kFamily = kFamily_;
  static constexpr DType kCheckpoint = kCheckpoint_;
  static constexpr DType kActivation = kActivation_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kKeyDim = kKeyDim_;
  static constexpr int kRows = kRows_;
  static constexpr bool kMamba = kFamily == Family::kMamba2;
  static constexpr bool kInt8 = kCheckpoint == DType::kI8;
  static constexpr bool kWide = wide_rows(kValueDim);
  static constexpr int kHeads = kRows > kValueDim ? kRows / kValueDim : 1;  // of a block
  static constexpr int kWarps = kRows / kTileRows;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kElementBytes = static_cast<int>(dtype_bytes(kCheckpoint));
  static constexpr int kChunkSteps = chunk_steps(kCheckpoint);
  static constexpr int kSteps = kKeyDim / kStepKeys;
  static constexpr int kChunks = kSteps / kChunkSteps;
  static constexpr int kTileBytes = kTileRows * kKeyDim * kElementBytes;
  // Eight elements of padding keep rows apart in the banks.
  static constexpr int kKeyStride = kKeyDim + 8;
  static constexpr int kValueStride = kRows + 8;
  // Heads end inside tiles: each half of a tile has weights of its own.
  static constexpr int kWeightSets = kWide ? 1 : 2;
  static_assert(kRows % kTileRows == 0 && kSteps % kChunkSteps == 0);
  static_assert(kRows % kValueDim == 0 || kValueDim % kRows == 0);
};

// Shared memory of a block. Buffers of an interval are chosen by the parity of base / 16.
template <typename T>
struct alignas(128) StepShared {
  uint8_t state[T::kRows * T::kKeyDim * T::kElementBytes];  // tiles, as stored
  uint16_t keys[2][kSlots][T::kKeyStride];                  // ring dtype
  uint16_t values[2][kSlots][T::kValueStride];
  uint16_t queries[kColumns][T::kKeyStride];                      // fp16, times a power of two
  uint16_t raw_queries[T::kMamba ? kColumns : 1][T::kKeyStride];  // bf16
  float2 log_decay[T::kHeads][2][kSlots];  // prefix sum of an interval: high and low part
  float2 gates[T::kHeads][2][kSlots];      // e^{prefix sum}; beta, Mamba-2: dt
  float query_scale[kColumns];
  float query_sum[kColumns], key_sum[kColumns];  // int8: sums of the operands
  uint64_t barrier;
};

template <typename T>
class StepBlock {
 public:
  __device__ StepBlock(const StepArgs& args, const Problem& problem, StepShared<T>& shared)
      : a_(args), p_(problem), s_(shared) {
    const Row& row = args.rows[blockIdx.y];
    read_slot_ = row.read_slot;
    if (read_slot_ < 0) return;
    write_slot_ = row.write_slot;
    ring_slot_ = row.ring_slot;
    n_ = static_cast<int>(row.n);
    c_ = static_cast<int>(row.c);
    start_ = static_cast<int>(row.start);
    end_ = start_ + row.n_tokens;
    token_ = row.token;
    first_row_ = blockIdx.x * T::kRows;
    const int head = first_row_ / T::kValueDim;
    const int heads_per_key = p_.n_heads / p_.n_key_heads;
    key_head_ = head / heads_per_key;
    first_of_key_head_ = first_row_ == key_head_ * heads_per_key * T::kValueDim;
    first_of_head_ = T::kHeads > 1 || first_row_ % T::kValueDim == 0;
  }

  __device__ void run() {
    if (read_slot_ < 0) return;
    const int grid = n_ & ~(kSlots - 1);
    const bool pending = c_ < grid;
    if (start_ == end_ && !pending) return;
    load_state();
    base_ = grid;
    if (pending) {
      load_ring(c_, c_ + kSlots);
      // The window's next interval would need the older one's buffers: fold first, on its own.
      if (end_ > grid + kSlots) {
        prepare(start_, start_, c_);
        copies_wait();
        __syncthreads();
        fold(c_, true);
        __syncthreads();
        load_ring(grid, min(start_, grid + kSlots));
        step(false);
        return;
      }
    }
    load_ring(grid, min(start_, grid + kSlots));
    step(pending);
  }

 private:
  static constexpr uint32_t kFull = 0xffffffffu;
  static constexpr int kMs = 2;  // products of 16 rows in a tile

  __device__ int warp() const { return threadIdx.x / 32; }
  __device__ int g() const { return threadIdx.x % 32 / 4; }
  __device__ int c() const { return threadIdx.x % 4; }
  __device__ static int parity(int position) { return position / kSlots & 1; }
  __device__ static int slot_of(int position) { return position & (kSlots - 1); }
  __device__ int position_of(int column) const {
    return sub_window_ + ((column - sub_window_) & (kColumns - 1));
  }
  // The block's head that half m of the warp's tile belongs to.
  __device__ int head_of(int m) const {
    if constexpr (T::kHeads == 1) return 0;
    return (warp() * kTileRows + (T::kWide ? 0 : 16 * m)) / T::kValueDim;
  }
  // The first row of a lane in product m, within the block; a lane has two rows there, and if
  // kWide, those of m = 1 follow those of m = 0.
  __device__ int lane_row(int m) const {
    return warp() * kTileRows + tile_row(T::kWide, g(), m, 0);
  }

  __device__ void step(bool pending) {
    int stop = min(end_, start_ + kColumns);
    if (!pending && start_ > base_ + kSlots) load_ring(base_ + kSlots, start_);
    prepare(start_, stop, pending ? c_ : base_ + kSlots);
    copies_wait();
    __syncthreads();
    if (pending) fold(c_, true);
    for (int from = start_; from < end_;) {
      if (from == stop) {
        __syncthreads();
        stop = min(end_, from + kColumns);
        prepare(from, stop, base_ + kSlots);
        __syncthreads();
      }
      if (from >= base_ + kSlots) {
        fold(base_, false);
        base_ += kSlots;
      }
      const int to = min(stop, base_ + kSlots);
      segment(from, to);
      from = to;
    }
  }

  // ---- loads

  __device__ void load_state() {
    uint8_t* tile = s_.state + warp() * T::kTileBytes;
    if (c_ == 0) {
      for (int i = threadIdx.x % 32; i < T::kTileBytes / 16; i += 32) {
        reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
      }
    } else if (threadIdx.x == 0) {
      barrier_init(&s_.barrier, 1);
      barrier_fence();
      barrier_expect(&s_.barrier, sizeof(s_.state));
      bulk_copy(s_.state,
                static_cast<const uint8_t*>(a_.checkpoint) +
                    (read_slot_ * a_.checkpoint_slot_stride + int64_t{first_row_} * T::kKeyDim) *
                        T::kElementBytes,
                sizeof(s_.state), &s_.barrier);
    }
    if constexpr (T::kInt8) {
      const float* scale = a_.scale + read_slot_ * a_.scale_slot_stride + first_row_;
#pragma unroll
      for (int m = 0; m < kMs; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          row_scale_[m][half] = c_ == 0 ? 0.0f : scale[lane_row(m) + half];
        }
      }
    }
  }

  // After the block's first barrier.
  __device__ void wait_state() {
    if (c_ != 0) barrier_wait(&s_.barrier, 0);
  }

  __device__ int ring_row(int position) const {
    return static_cast<int>(static_cast<uint32_t>(position) %
                            static_cast<uint32_t>(p_.grid.ring_rows));
  }

  // The ring rows of positions [from, to) of one interval.
  __device__ void load_ring(int from, int to) {
    const int p = parity(from);
    const int slot0 = slot_of(from), n = to - from;
    const int first = ring_row(from);
    constexpr int kKeyPieces = T::kKeyDim / 8, kValuePieces = T::kRows / 8;
    const auto* key = static_cast<const uint16_t*>(a_.ring_key.data) +
                      ring_slot_ * a_.ring_key.slot_stride + key_head_ * T::kKeyDim;
    for (int i = threadIdx.x; i < n * kKeyPieces; i += T::kThreads) {
      const int slot = i / kKeyPieces, piece = i % kKeyPieces * 8;
      int r = first + slot;
      if (r >= p_.grid.ring_rows) r -= p_.grid.ring_rows;
      copy_16(shared_address(&s_.keys[p][slot0 + slot][piece]),
              key + r * a_.ring_key.row_stride + piece);
    }
    const auto* value = static_cast<const uint16_t*>(a_.ring_value.data) +
                        ring_slot_ * a_.ring_value.slot_stride + first_row_;
    for (int i = threadIdx.x; i < n * kValuePieces; i += T::kThreads) {
      const int slot = i / kValuePieces, piece = i % kValuePieces * 8;
      int r = first + slot;
      if (r >= p_.grid.ring_rows) r -= p_.grid.ring_rows;
      copy_16(shared_address(&s_.values[p][slot0 + slot][piece]),
              value + r * a_.ring_value.row_stride + piece);
    }
  }

  // ---- prepare: what all warps share of the sub-window [from, to)

  __device__ void prepare(int from, int to, int other_base) {
    sub_window_ = from;
    load_values(to);
    prepare_gates(to, other_base);
    prepare_operands(from, to);
  }

  // v of the lane's two columns, two bf16 a register.
  __device__ void load_values(int to) {
    if constexpr (T::kActivation == DType::kBF16) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int position = position_of(2 * c() + j);
        if (position >= to) continue;
        const uint16_t* v = static_cast<const uint16_t*>(a_.value.data) +
                            (token_ + position - start_) * a_.value.token_stride + first_row_;
        read_rows(v, value_[j]);
      }
    }
  }

  // The lane's rows of 16-bit elements.
  __device__ void read_rows(const uint16_t* rows, uint32_t x[kMs]) const {
    if constexpr (T::kWide) {
      const uint2 two = *reinterpret_cast<const uint2*>(rows + lane_row(0));
      x[0] = two.x;
      x[1] = two.y;
    } else {
#pragma unroll
      for (int m = 0; m < kMs; ++m) x[m] = *reinterpret_cast<const uint32_t*>(rows + lane_row(m));
    }
  }
  __device__ void write_rows(uint16_t* rows, const uint32_t x[kMs]) const {
    if constexpr (T::kWide) {
      *reinterpret_cast<uint2*>(rows + lane_row(0)) = make_uint2(x[0], x[1]);
    } else {
#pragma unroll
      for (int m = 0; m < kMs; ++m) *reinterpret_cast<uint32_t*>(rows + lane_row(m)) = x[m];
    }
  }

  // Gates of the interval at base_ (lanes 0 to 15) and of another one, a warp a head. Prefix sums
  // in double: the difference of two must not lose a weak decay beside a strong one.
  __device__ void prepare_gates(int to, int other_base) {
    for (int h = T::kWarps - 1 - warp(); h < T::kHeads; h += T::kWarps) {
      const int head = first_row_ / T::kValueDim + h;
      const int slot = threadIdx.x % kSlots;
      const int base = threadIdx.x % 32 < kSlots ? base_ : other_base;
      const int position = base + slot;
      const float rate = -expf(a_.a_log[head]);
      float gate = 0, beta = 0;
      if (position < start_) {
        gate = static_cast<const float*>(
            a_.ring_gate.data)[ring_slot_ * a_.ring_gate.slot_stride +
                               ring_row(position) * a_.ring_gate.row_stride + head];
      } else if (position < to) {
        const int64_t token = token_ + position - start_;
        const float raw =
            static_cast<const float*>(a_.gate.data)[token * a_.gate.token_stride + head] +
            a_.dt_bias[head];
        const float soft = raw > 20.0f ? raw : log1pf(expf(raw));
        gate = T::kMamba ? soft : __fmul_rn(rate, soft);
        if constexpr (!T::kMamba) {
          const float b =
              static_cast<const float*>(a_.beta.data)[token * a_.beta.token_stride + head];
          beta = p_.beta_scale / (1.0f + expf(-b));
        }
        if (first_of_head_ && position >= sub_window_) {
          static_cast<float*>(
              a_.ring_gate.data)[ring_slot_ * a_.ring_gate.slot_stride +
                                 ring_row(position) * a_.ring_gate.row_stride + head] = gate;
        }
      }
      double sum = T::kMamba ? static_cast<double>(rate) * gate : static_cast<double>(gate);
#pragma unroll
      for (int step = 1; step < kSlots; step *= 2) {
        const double below = __shfl_up_sync(kFull, sum, step, kSlots);
        if (slot >= step) sum += below;
      }
      const float high = static_cast<float>(sum);
      const int p = parity(base);
      s_.log_decay[h][p][slot] = make_float2(high, static_cast<float>(sum - high));
      s_.gates[h][p][slot] = make_float2(expf(high), T::kMamba ? gate : beta);
    }
  }

  // Eight activations.
  __device__ static void read_activations(const Tokens& from, int64_t token, int64_t column,
                                          float x[8]) {
    const int64_t at = token * from.token_stride + column;
    if constexpr (T::kActivation == DType::kBF16) {
      const uint4 raw =
          *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(from.data) + at);
      const uint32_t r[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack_bf16(r[i]);
        x[2 * i] = two.x;
        x[2 * i + 1] = two.y;
      }
    } else {
      const float* source = static_cast<const float*>(from.data) + at;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = source[i];
    }
  }

  // Keys into their slots and the ring, queries into their columns: half a warp a vector. GDN's
  // keys are normalised and rounded as the ring holds them. A query stays as it came but for a
  // power of two that brings it into fp16's range; its factor is kept in fp32.
  __device__ void prepare_operands(int from, int to) {
    const int lane = threadIdx.x % 16;
    constexpr int kPieces = T::kKeyDim / 8;
    constexpr int kTurns = (kPieces + 15) / 16;
    for (int i = threadIdx.x / 16; i < 2 * (to - from); i += T::kThreads / 16) {
      const bool is_key = i % 2 == 0;
      const int position = from + i / 2;
      const int64_t token = token_ + position - start_;
      const int column = position & (kColumns - 1);
      float x[kTurns][8];
      float squares = 0;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int piece = turn * 16 + lane;
        if (piece < kPieces) {
          read_activations(is_key ? a_.key : a_.query, token, key_head_ * T::kKeyDim + piece * 8,
                           x[turn]);
        } else {
#pragma unroll
          for (int e = 0; e < 8; ++e) x[turn][e] = 0;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) squares = fmaf(x[turn][e], x[turn][e], squares);
      }
      const uint32_t half_warp = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        squares += __shfl_xor_sync(half_warp, squares, step);
      }
      float factor = 1.0f;
      if (!(T::kMamba && is_key)) {
        const float inverse = rsqrtf(squares + 1e-6f);
        // 2^-e with 2^e the norm's power of two: the operand's elements are below two.
        const float power = exponent_of_two(inverse);
        if (T::kMamba) {
          factor = 1.0f / power;
        } else {
          factor = is_key ? inverse : inverse * rsqrtf(static_cast<float>(T::kKeyDim)) / power;
        }
        const float multiply = is_key ? inverse : power;
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
          for (int e = 0; e < 8; ++e) x[turn][e] = __fmul_rn(x[turn][e], multiply);
        }
      }
      float sum = 0;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int piece = turn * 16 + lane;
        if (piece >= kPieces) continue;
        uint32_t r[4], raw[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float low = x[turn][2 * e], high = x[turn][2 * e + 1];
          r[e] = T::kMamba && is_key ? pack_bf16(low, high) : pack_half(low, high);
          if constexpr (T::kMamba) {
            raw[e] = pack_bf16(low, high);
          }
          if constexpr (T::kInt8) {
            const float2 rounded = unpack_half(r[e]);
            sum += rounded.x + rounded.y;
          }
        }
        const uint4 bits = make_uint4(r[0], r[1], r[2], r[3]);
        if (is_key) {
          *reinterpret_cast<uint4*>(&s_.keys[parity(position)][slot_of(position)][piece * 8]) =
              bits;
          if (first_of_key_head_) {
            *reinterpret_cast<uint4*>(static_cast<uint16_t*>(a_.ring_key.data) +
                                      ring_slot_ * a_.ring_key.slot_stride +
                                      ring_row(position) * a_.ring_key.row_stride +
                                      key_head_ * T::kKeyDim + piece * 8) = bits;
          }
        } else {
          *reinterpret_cast<uint4*>(&s_.queries[column][piece * 8]) = bits;
          if constexpr (T::kMamba) {
            *reinterpret_cast<uint4*>(&s_.raw_queries[column][piece * 8]) =
                make_uint4(raw[0], raw[1], raw[2], raw[3]);
          }
        }
      }
      if constexpr (T::kInt8) {
#pragma unroll
        for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(half_warp, sum, step);
        if (lane == 0) (is_key ? s_.key_sum : s_.query_sum)[column] = sum;
      }
      if (!is_key && lane == 0) s_.query_scale[column] = factor;
    }
  }

  // The power of two of x > 0, its mantissa dropped.
  __device__ static float exponent_of_two(float x) {
    return __uint_as_float(__float_as_uint(x) & 0x7f800000u);
  }

  // ---- step_segment.cuh

  using Products = float[kMs][T::kMamba ? 1 : 2][4];

  // Columns of the window as operands: of each step of 16 keys {k b0, q b0, k b1, q b1}; Mamba-2:
  // of each pair of steps {q b0, q b1, q b0, q b1}.
  static constexpr int kOperandRegisters = T::kMamba ? 2 * T::kSteps : 4 * T::kSteps;

  __device__ void segment(int from, int to);
  __device__ void load_operands(uint32_t z[kOperandRegisters], const uint16_t* queries) const;
  __device__ void scores(const uint32_t z[kOperandRegisters], float key[2][2],
                         float query[2][2]) const;
  __device__ void products(const uint32_t z[kOperandRegisters], Products d) const;
  __device__ void product_tf32(float (*d)[4], const float x[2][4], const uint32_t* z) const;
  __device__ void load_slots(int n, uint32_t u[kMs][4]) const;
  template <int kHalf>
  __device__ void substitute(int first, int last, const Products& constant, uint32_t b0,
                             uint32_t b1, uint32_t u[kMs][4], uint32_t mine[2][kMs]) const;
  __device__ float value_of(int j, int m, int half) const;
  __device__ void write_output(int position, const float y[kMs][2]) const;

  // ---- step_fold.cuh

  __device__ void fold(int base, bool to_slot);
  __device__ void fold_weights(int p, int set, float weight[4], float& decay) const;
  __device__ void fold_operand(int p, int m, const float weight[4], uint32_t top[4],
                               uint32_t rest[4]) const;
  __device__ void fold_step(uint32_t keys, int step, const uint32_t top[4], const uint32_t rest[4],
                            float d[8]) const;
  __device__ void fold_int8(uint32_t keys, int m, const uint32_t top[4], const uint32_t rest[4],
                            float decay, bool to_slot);
  __device__ uint4* chunk(int i, int m, int half) const;
  __device__ void store_chunk(int i, int m, int half, uint4 raw, bool to_slot) const;

  __device__ void count_saturated(int n) const {
    if (a_.n_saturated != nullptr && n > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(a_.n_saturated),
                static_cast<unsigned long long>(n));
    }
  }

  const StepArgs& a_;
  const Problem& p_;
  StepShared<T>& s_;
  int read_slot_, write_slot_, ring_slot_;
  int n_, c_, start_, end_;  // positions
  int64_t token_;
  int first_row_, key_head_;
  bool first_of_key_head_, first_of_head_;
  int base_ = 0;        // the grid point of the interval in work
  int sub_window_ = 0;  // first position of the sub-window
  uint32_t value_[2][kMs];
  float row_scale_[kMs][2];  // int8
};

}  // namespace replayssm::cuda
