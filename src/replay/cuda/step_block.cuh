// The step's block: one kernel for GDN and Mamba-2, any window.
//
// A block computes kRows state rows of one batch row: one head, part of a head, or several heads of
// one key head. A warp owns 16 kMs of these rows from start to end. The window is processed in
// sub-windows of at most eight positions; the token at position p is column p mod 8 of every
// product.
//
//   load     the state tile by one bulk copy, ring rows by 16-byte copies
//   prepare  once per block, while the copies are in flight: normalise keys and queries, gates,
//            prefix sums, then the scores of the ring keys with their decays
//   segment  the positions of one grid interval: S z on the tensor cores, then (GDN) u of each
//            token by one product over all slots of the interval, then y
//   fold     a pending fold (written) before the first segment; a crossing fold (on chip only)
//            between two segments
//
// Every token's sums run over all slots of its interval, with exact zeros for the slots that it
// must not see. So its bits do not depend on the window that it came in. A window of one token has
// no sub-windows and no crossing and needs less memory; its token fills every column.
//
// In comments, lane 4 g + c has the mma coordinates g (row group) and c (column pair), see ptx.cuh.
#pragma once

#include "replay/cuda/step_traits.cuh"

namespace replayssm::cuda {

template <typename T>
class StepBlock {
 public:
  __device__ StepBlock(const StepParams& params, StepShared<T>& shared)
      : p_(params), a_(params.args), s_(shared) {
    // All seven words at once: one memory latency.
    const auto* row = reinterpret_cast<const int64_t*>(a_.rows + blockIdx.z);
    int64_t x[kRowWords];
#pragma unroll
    for (int i = 0; i < kRowWords; ++i) x[i] = load_64(row + i);
    set_row(x);
  }
  // kPersistent: the consumer group's item of this turn; phase: of its mbarrier.
  __device__ StepBlock(const StepParams& params, StepShared<T>& shared, ConsumersCommon& common,
                       uint8_t* states, uint32_t turn, uint32_t phase);
  // kPersistent: claims the block's next item for the group's turn `turn` and starts the copy of
  // its batch row. Called by one warp.
  __device__ static void fetch_item(const StepParams& params, StepShared<T>& shared,
                                    ConsumersCommon& common, uint32_t turn);
  // First thread of the warp that claims items and state buffers for its group.
  static constexpr uint32_t kFetchThread = T::kWarps / 2 * 32;
  __device__ static bool is_fetch_warp() { return thread() / 32 == kFetchThread / 32; }
  // kPersistent: true if a state arrived on the group's mbarrier.
  __device__ bool run_item();

  // Returns false if there was nothing to do.
  __device__ bool run() {
    const int grid = n_ & ~(kSlots - 1);
    pending_ = c_ < grid;
    // One test, after all loads: a branch between them would cost a second memory latency.
    if ((read_slot_ < 0) | ((start_ == end_) & !pending_)) {
      wait_for_kernels_ahead();
      return false;
    }
    base_ = grid;
    if constexpr (T::kSingle) {
      load_state();
      if (pending_) load_ring(c_, c_ + kSlots);
      // Rows of the current interval need the shared memory of the pending one: fold that first.
      if (pending_ && start_ > grid) {
        prepare_window(start_, start_, c_);
        fold(c_, true);
        __syncthreads();
        pending_ = false;
      }
      if (!pending_) load_ring(grid, start_);
      prepare_window(start_, end_, c_);
      if (pending_) fold(c_, true);
      if (start_ < end_) segment(start_, end_);
    } else {
      walk();
    }
    return true;
  }

  // After a sweep: writes the last interval's keys and gates to the ring (values are written by the
  // sweep). A launch of its own, since blocks of the sweep may still read the rows it overwrites.
  __device__ void run_tail() {
    if (read_slot_ < 0) return;
    base_ = end_ & ~(kSlots - 1);
    for (int from = max(start_, base_); from < end_; from += kColumns) {
      const int to = min(end_, from + kColumns);
      dependencies_wait();
      fetch(from, to, base_);
      prepare_operands(from, to, true);
      if constexpr (T::kKda) {
        kda_gates(from, to, true);
      } else {
        prepare_gates(from, to, true);
      }
      __syncthreads();
    }
  }

 private:
  static constexpr uint32_t kFull = 0xffffffffu;
  static constexpr int kMs = T::kMs, kSlots = T::kSlots, kGroups = T::kGroups;

  __device__ void set_row(const int64_t x[kRowWords]) {
    static_assert(sizeof(Row) == 8 * kRowWords && offsetof(Row, c) == 8 &&
                  offsetof(Row, start) == 16 && offsetof(Row, n_tokens) == 24 &&
                  offsetof(Row, token) == 32 && offsetof(Row, read_slot) == 40 &&
                  offsetof(Row, ring_slot) == 48);
    n_ = static_cast<int>(x[0]);
    c_ = static_cast<int>(x[1]);
    start_ = static_cast<int>(x[2]);
    end_ = start_ + static_cast<int>(x[3]);
    token_ = x[4];
    read_slot_ = static_cast<int>(x[5]);
    write_slot_ = static_cast<int>(x[5] >> 32);
    ring_slot_ = static_cast<int>(x[6]);
    first_row_ = key_head() * p_.rows_per_key_head + row_block() * T::kRows;
    if constexpr (!kConstantsLate) load_constants();
  }

  // Index within the block (kPersistent: within the consumer group).
  __device__ static uint32_t thread() {
    if constexpr (T::kPersistent) {
      return threadIdx.x % T::kThreads;
    } else {
      return threadIdx.x;
    }
  }
  __device__ static int warp() { return thread() / 32; }
  __device__ uint32_t row_block() const {
    if constexpr (T::kPersistent) {
      return consumer_.item.row_block;
    } else {
      return blockIdx.x;
    }
  }
  __device__ uint32_t key_head() const {
    if constexpr (T::kPersistent) {
      return consumer_.item.key_head;
    } else {
      return blockIdx.y;
    }
  }
  __device__ static void sync() {
    if constexpr (T::kPersistent) {
      named_barrier_sync(1 + threadIdx.x / T::kThreads, T::kThreads);
    } else {
      __syncthreads();
    }
  }
  __device__ static int g() { return threadIdx.x % 32 / 4; }
  __device__ static int c() { return threadIdx.x % 4; }
  __device__ static int parity(int position) { return position / kSlots & 1; }
  __device__ static int slot_of(int position) { return position & (kSlots - 1); }
  __device__ int position_of(int column) const {
    return T::kSingle ? start_ : sub_window_ + ((column - sub_window_) & (kColumns - 1));
  }
  // Shared row of a position's key; kSingle: only for positions of the interval at base_.
  __device__ int key_row(int position) const {
    if constexpr (T::kSingle) return pending_ ? kSlots : slot_of(position);
    return position & (2 * kSlots - 1);
  }
  // First shared row of the interval at `base`.
  __device__ static int interval_row(int base) { return T::kSingle ? 0 : base & (2 * kSlots - 1); }
  __device__ const uint16_t* slot_key(int base, int slot) const {
    return s_.keys[T::kSingle && slot == 0 ? key_row(base) : interval_row(base) + slot];
  }
  __device__ static int product_of(int m) { return warp() * kMs + m; }
  // Head, within the block, of the warp's product m.
  __device__ static int head_of(int m) {
    return T::kHeads == 1 ? 0 : 16 * product_of(m) / T::kValueDim;
  }
  __device__ static constexpr int set_of(int m) { return T::kWeightSets == 1 ? 0 : m; }
  // First row, within the block, of this lane in product m. A lane has two neighbouring rows per
  // product; in a tile of two products the second product's rows follow the first's.
  __device__ static int lane_row(int m) {
    const int product = product_of(m);
    return product / T::kTileProducts * T::kTileRows +
           tile_row(T::kTileProducts, g(), product % T::kTileProducts, 0);
  }
  // Byte offset of this lane's 16-byte chunk i of product m: the same in shared memory and in the
  // stored tile (tile.h).
  __device__ static int chunk_offset(int i, int m) {
    constexpr int kProducts = T::kTileProducts;
    const int product = warp() * kMs;  // kMs == 1: may be a tile's second
    return (product / kProducts + m / kProducts) * T::kTileBytes +
           ((i * kProducts + (kMs == 1 ? product : m) % kProducts) * 32 + threadIdx.x % 32) * 16;
  }
  __device__ uint4* chunk(int i, int m) const {
    return reinterpret_cast<uint4*>(state() + chunk_offset(i, m));
  }

  // End of the sub-window that starts at `from`. A sweep's sub-windows end at multiples of eight,
  // so only a step's can cross a grid point.
  __device__ int stop_of(int from) const {
    return min(end_, (T::kSweep ? from & ~(kColumns - 1) : from) + kColumns);
  }
  // The window, sub-window by sub-window. Every stage is inlined here once or twice: more code
  // would not fit the instruction cache.
  //
  // pending_    a fold to the write slot is due; it runs after the first preparation
  // alone       the window reaches past base_ + B, so it needs the shared memory of the pending
  //             interval: that fold runs first, and the window's ring rows are loaded after it
  // from, stop  the positions of the prepared sub-window that have no output yet
  // other       base of the second interval whose gates are prepared
  // fetched     a sweep has already issued the loads of the next sub-window
  __device__ void walk() {
    bool alone = pending_ && end_ > base_ + kSlots;
    int from = start_, stop = start_, other = pending_ ? c_ : base_ + kSlots;
    bool prepared = false, fetched = false;
    do {
      if (!prepared || (from == stop && from < end_)) {
        if (prepared) sync();  // all warps have read the previous sub-window's shared memory
        stop = alone ? from : stop_of(from);
        if (!prepared) {
          fetch_first(from, stop, other, alone);
        } else if (!fetched) {
          fetch(from, stop, other);
        }
        prepare(from, stop);
        prepared = true;
        fetched = T::kSweep && !alone && stop < end_;
        if (fetched) fetch(stop, stop_of(stop), ((stop - 1) & ~(kSlots - 1)) + kSlots);
      }
      if (pending_) {
        fold(c_, true);
        pending_ = false;
        other = base_ + kSlots;
        if (alone) {
          alone = false;
          sync();  // all warps have read the pending interval's rows
          load_window_ring();
          continue;
        }
      } else if (from >= base_ + kSlots) {
        fold(base_, false);
        base_ += kSlots;
        other += kSlots;
      }
      if (from < end_) {
        const int to = min(stop, base_ + kSlots);
        segment(from, to);
        from = to;
      }
      // A sweep that ends at a grid point also folds there.
    } while (from < end_ || (T::kSweep && from == base_ + kSlots));
    if constexpr (T::kPersistent) {
      if (consumer_.own >= 0) release_state();
    }
  }

  // ---- loads

  // Loads the first sub-window's inputs before the state: the state's long copy would delay them.
  // With `early`, what the previous kernel does not write is loaded before that kernel has ended.
  __device__ void fetch_first(int from, int to, int other, bool alone) {
    const bool early = !T::kPersistent && !T::kSweep && p_.early;
    if (early) load_first(alone);
    dependencies_wait();
    fetch(from, to, other);
    if (!early) load_first(alone);
  }
  __device__ void load_first(bool alone) {
    if (pending_) load_ring(c_, c_ + kSlots);
    if (!alone) load_window_ring();
    load_state();
  }

  // Head constants are loaded with the row: later, each would cost a memory latency. GDN's int8
  // single-token kernel loads them late because it has no registers to keep them in.
  static constexpr bool kConstantsLate = T::kInt8 && T::kSingle && !T::kMamba;
  __device__ void load_constants() {
    const int first_head = first_row_ / T::kValueDim;
    if (!T::kKda && gate_head() < T::kHeads) {
      a_log_ = a_.a_log[first_head + gate_head()];
      dt_bias_ = a_.dt_bias[first_head + gate_head()];
    }
    if constexpr (T::kMamba) {
#pragma unroll
      for (int set = 0; set < T::kWeightSets; ++set) {
        skip_[set] = a_.skip[first_head + head_of(set)];
      }
    }
  }

  __device__ uint8_t* state() const {
    if constexpr (T::kPersistent) {
      return consumer_.state;
    } else {
      return s_.state;
    }
  }
  // Each lane clears its own chunks, which no other lane reads: no barrier needed.
  __device__ void zero_state() const {
    constexpr uint32_t kZero = T::kInt8 ? 0x80808080u : 0;
#pragma unroll 1
    for (int i = 0; i < T::kChunks; ++i) {
#pragma unroll
      for (int m = 0; m < kMs; ++m) *chunk(i, m) = make_uint4(kZero, kZero, kZero, kZero);
    }
  }
  __device__ void copy_state(uint8_t* to) const {
    barrier_expect(&s_.barrier, T::kStateBytes);
    bulk_copy(to,
              static_cast<const uint8_t*>(a_.checkpoint) +
                  (read_slot_ * a_.checkpoint_slot_stride + int64_t{first_row_} * T::kKeyDim) *
                      T::kElementBytes,
              T::kStateBytes, &s_.barrier);
  }

  // kPersistent: acquires a free state buffer and starts the copy into it; -1 if none is free.
  // Called by one thread.
  __device__ int acquire_state() const;
  // kPersistent: waits for a free buffer, once the inputs are ready.
  __device__ void acquire_state_late() const;
  __device__ void wait_consumer_state();
  // kPersistent: this warp no longer needs the state buffer.
  __device__ void release_state();

  __device__ void load_state() {
    if constexpr (T::kPersistent) {
      if (thread() == kFetchThread) s_.consumer.first_state = s_.consumer.state = acquire_state();
    } else if (c_ == 0) {
      zero_state();
    } else if (thread() == 0) {
      barrier_init(&s_.barrier, 1);
      barrier_fence();
      copy_state(s_.state);
    }
    if constexpr (T::kInt8) {
      const float* scale = a_.scale + read_slot_ * a_.scale_slot_stride + first_row_;
#pragma unroll
      for (int row = thread(); row < T::kRows; row += T::kThreads) {
        if (c_ == 0) {
          row_scales()[row] = 0;
        } else {
          copy_4(shared_address(row_scales() + row), scale + row);
        }
      }
    }
  }

  // int8: fp32 scales of the block's rows.
  __device__ float* row_scales() const { return reinterpret_cast<float*>(s_.row_scale); }

  // The state is in shared memory. Only after the block's first barrier, which publishes the
  // mbarrier.
  __device__ void wait_state() {
    if constexpr (T::kPersistent) {
      wait_consumer_state();
    } else if (c_ != 0) {
      barrier_wait(&s_.barrier, 0);
    }
  }

  __device__ uint32_t ring_row(int position) const {
    return remainder_of(static_cast<uint32_t>(position), p_.ring_rows, p_.ring_reciprocal);
  }

  __device__ uint8_t* ring_keys() const {
    return reinterpret_cast<uint8_t*>(static_cast<uint16_t*>(a_.ring_key.data) +
                                      ring_slot_ * a_.ring_key.slot_stride +
                                      key_head() * T::kKeyDim);
  }
  __device__ uint8_t* ring_values() const {
    return reinterpret_cast<uint8_t*>(static_cast<uint16_t*>(a_.ring_value.data) +
                                      ring_slot_ * a_.ring_value.slot_stride + first_row_);
  }

  // Loads the ring rows before the window, of its interval and of the next.
  __device__ void load_window_ring() {
    load_ring(base_, min(start_, base_ + kSlots));
    if (start_ > base_ + kSlots) load_ring(base_ + kSlots, start_);
  }
  // Loads the ring rows of positions [base, to) of the interval at `base`.
  __device__ void load_ring(int base, int to) {
    const int n = to - base;
    const uint32_t first = ring_row(base);
    copy_rows<T::kKeyDim / 8>(&s_.keys[interval_row(base)][0], T::kKeyStride, ring_keys(),
                              p_.key_row_bytes, first, n);
    copy_rows<T::kRows / 8>(&s_.values[interval_row(base)][0], T::kValueStride, ring_values(),
                            p_.value_row_bytes, first, n);
    if constexpr (T::kKda) {
      copy_rows<T::kKeyDim / 4>(
          reinterpret_cast<uint16_t*>(s_.kda.alpha[interval_row(base)]), 2 * T::kKeyDim,
          static_cast<const uint8_t*>(a_.ring_gate.data) +
              (ring_slot_ * a_.ring_gate.slot_stride + key_head() * T::kKeyDim) * 4,
          p_.gate_row_bytes, first, n);
    }
  }

  // Starts 16-byte copies of n rows of kPieces pieces from ring row `first` on, round the ring's
  // end. kThreads / kPieces rows at a time; the address advances by a constant, with no division
  // per row.
  template <int kPieces>
  __device__ void copy_rows(uint16_t* to, int stride, const uint8_t* from, uint32_t row_bytes,
                            uint32_t first, int n) const {
    constexpr int kAtOnce = T::kThreads / kPieces;
    const int own = thread() / kPieces, piece = thread() % kPieces;
    if (T::kThreads % kPieces != 0 && own >= kAtOnce) return;
    const uint32_t target = shared_address(to) + own * stride * 2 + piece * 16;
    uint32_t at = (first + own) * row_bytes + piece * 16;
    const int left = n - own, to_end = static_cast<int>(p_.ring_rows - first) - own;
#pragma unroll
    for (int i = 0; i < kSlots; i += kAtOnce, at += kAtOnce * row_bytes) {
      if (i >= left) continue;
      copy_16(target + i * stride * 2, from + (i >= to_end ? at - p_.ring_rows * row_bytes : at));
    }
  }

  // ---- prepare: what all warps share of the sub-window [from, to)

  // other_base: base of the interval, beside that of from - 1, whose gates are prepared.

  __device__ void prepare_window(int from, int to, int other_base) {
    dependencies_wait();
    fetch(from, to, other_base);
    prepare(from, to);
  }

  __device__ void prepare(int from, int to) {
    sub_window_ = from;
#pragma unroll
    for (int j = 0; j < T::kOwnColumns; ++j) {
#pragma unroll
      for (int m = 0; m < kMs; ++m) value_[j][m] = fetched_.value[j][m];
    }
    prepare_operands(from, to, !T::kSweep);
    if constexpr (T::kKda) {
      kda_gates(from, to, !T::kSweep);
    } else {
      prepare_gates(from, to, !T::kSweep);
    }
    // Publishes keys, queries and gates (prepare_*) and the ring rows and scales (async copies).
    copies_wait();
    sync();
    if constexpr (T::kPersistent) {
      if (from == start_) acquire_state_late();
    }
    if constexpr (T::kKda) {
      kda_operands(from, to);
      kda_scores(from, to);
      sync();  // operands and scores
      if constexpr (T::kInt8) {
        kda_sums(from, to);
        sync();  // sums
      }
    }
    if constexpr (T::kShare) {
      share_weights(from, to);
      weights_ready_ = false;
    }
  }

  // kShare: weights of the intervals that hold positions [from, to), one warp per interval and
  // head. Published by the barrier in segment().
  __device__ void share_weights(int from, int to) const {
    const int n = from == to ? 0 : parity(from) == parity(to - 1) ? 1 : 2;
    for (int i = warp(); i < n * T::kHeads; i += T::kWarps) {
      const int position = i < T::kHeads ? from : to - 1;
      const int head = i % T::kHeads;
      uint4 weights[kGroups];
      weigh(position & ~(kSlots - 1), head, weights);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        s_.weights[head][T::kSingle ? 0 : parity(position)][group][threadIdx.x % 32] =
            weights[group];
      }
    }
  }
  // Weights of the warp's heads in the interval at base_: shared, or computed by the warp itself.
  __device__ void weights_of_warp(uint4 weights[T::kWeightSets][kGroups]) const {
#pragma unroll
    for (int set = 0; set < T::kWeightSets; ++set) {
      const int head = head_of(set);
      if constexpr (T::kShare) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          weights[set][group] =
              s_.weights[head][T::kSingle ? 0 : parity(base_)][group][threadIdx.x % 32];
        }
      } else {
        weigh(base_, head, weights[set]);
      }
    }
  }

  // A half-warp prepares one key or query vector at a time, eight elements per lane and turn.
  static constexpr int kPieces = T::kKeyDim / 8;      // 16-byte pieces of a vector
  static constexpr int kTurns = (kPieces + 15) / 16;  // of a half-warp over a vector
  static constexpr int kHalfWarps = T::kThreads / 16;
  static constexpr int kVectors =  // per half-warp and sub-window
      (2 * (T::kSingle ? 1 : kColumns) + kHalfWarps - 1) / kHalfWarps;
  // Vector i of the half-warp: a key or a query. Both half-warps of a warp have the same kind at
  // the same time, so there is no divergence, and all warps have equally many of each kind. A
  // window of one token has one key and one query; Mamba-2's warps other than the first then skip
  // to the gates.
  static constexpr bool kFirstWarpOnly = T::kSingle && T::kMamba;
  __device__ static bool is_key(int i) {
    return T::kSingle ? threadIdx.x / 16 % 2 == 0 : (warp() + i) % 2 == 0;
  }
  __device__ static int vector_position(int i, int from) {
    return T::kSingle ? from + (threadIdx.x / 16 + i * kHalfWarps) / 2
                      : from + (warp() + i * T::kWarps) / 2 * 2 + threadIdx.x / 16 % 2;
  }

  static constexpr int kAlphas =
      T::kKda ? (kColumns * T::kKeyDim / 4 + T::kThreads - 1) / T::kThreads : 1;

  // A thread's share of a sub-window's raw activations, in registers between fetch() and prepare().
  struct Fetched {
    uint32_t operand[kVectors][kTurns][4];  // vector i: eight bf16 per turn
    uint32_t value[T::kOwnColumns][kMs];    // v: the lane's columns, two bf16 (its two rows)
    // If the warp prepares a head: one slot per lane and entry, of two intervals.
    int gate_position[kGroups];
    float gate[kGroups], beta[kGroups];
    float4 alpha[kAlphas];  // KDA: raw gates, four channels each
  };

  __device__ int64_t token_of(int position) const { return token_ + (position - start_); }
  __device__ float* ring_gate(int position, int head) const {
    return reinterpret_cast<float*>(static_cast<uint8_t*>(a_.ring_gate.data) +
                                    ring_slot_ * a_.ring_gate.slot_stride * 4 +
                                    ring_row(position) * p_.gate_row_bytes) +
           head;
  }
  // Head, within the block, whose gates this warp prepares: the last warps, since the first have
  // vectors to prepare.
  __device__ static int gate_head() { return T::kWarps - 1 - warp(); }

  // Loads the sub-window [from, to) into registers. Gates: of the interval of from - 1 (at first,
  // of base_) and of the one at other_base; ring gates before the window, raw gates inside it.
  __device__ void fetch(int from, int to, int other_base) {
    const int lane = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int position = vector_position(i, from);
      if (position >= to || (kFirstWarpOnly && warp() > 0)) continue;
      const Tokens& tokens = is_key(i) ? a_.key : a_.query;
      const int64_t at = token_of(position) * tokens.token_stride + key_head() * T::kKeyDim;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int piece = turn * 16 + lane;
        if (piece >= kPieces) continue;
        const uint4 x = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(tokens.data) +
                                                        at + piece * 8);
        fetched_.operand[i][turn][0] = x.x;
        fetched_.operand[i][turn][1] = x.y;
        fetched_.operand[i][turn][2] = x.z;
        fetched_.operand[i][turn][3] = x.w;
      }
    }
#pragma unroll
    for (int j = 0; j < T::kOwnColumns; ++j) {
      const int position = T::kSingle ? start_ : from + ((2 * c() + j - from) & (kColumns - 1));
      if (position < to) {
        read_rows(static_cast<const uint16_t*>(a_.value.data) +
                      token_of(position) * a_.value.token_stride + first_row_,
                  fetched_.value[j]);
      }
    }
    if constexpr (T::kKda) {
      kda_fetch(from, to);
    } else if (gate_head() < T::kHeads) {
      const int head = first_row_ / T::kValueDim + gate_head();
      const int base = from == start_ ? base_ : (from - 1) & ~(kSlots - 1);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int lane = i * 32 + threadIdx.x % 32;
        const int position = (lane < kSlots ? base : other_base) + lane % kSlots;
        fetched_.gate_position[i] = position;
        fetched_.gate[i] = fetched_.beta[i] = 0;
        if (position < start_) {
          fetched_.gate[i] = *ring_gate(position, head);
        } else if (position >= from && position < to) {
          fetched_.gate[i] = static_cast<const float*>(
              a_.gate.data)[token_of(position) * a_.gate.token_stride + head];
          if constexpr (!T::kMamba) {
            fetched_.beta[i] = static_cast<const float*>(
                a_.beta.data)[token_of(position) * a_.beta.token_stride + head];
          }
        }
      }
    }
  }

  // Reads the lane's two rows per product from a row of 16-bit elements.
  __device__ void read_rows(const uint16_t* rows, uint32_t x[kMs]) const {
    if constexpr (T::kTileProducts == 2 && kMs > 1) {
#pragma unroll
      for (int m = 0; m < kMs; m += 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(rows + lane_row(m));
        x[m] = two.x;
        x[m + 1] = two.y;
      }
    } else {
#pragma unroll
      for (int m = 0; m < kMs; ++m) x[m] = *reinterpret_cast<const uint32_t*>(rows + lane_row(m));
    }
  }
  __device__ void write_rows(uint16_t* rows, const uint32_t x[kMs]) const {
    if constexpr (T::kTileProducts == 2 && kMs > 1) {
#pragma unroll
      for (int m = 0; m < kMs; m += 2) {
        *reinterpret_cast<uint2*>(rows + lane_row(m)) = make_uint2(x[m], x[m + 1]);
      }
    } else {
#pragma unroll
      for (int m = 0; m < kMs; ++m) *reinterpret_cast<uint32_t*>(rows + lane_row(m)) = x[m];
    }
  }

  // Writes a 16-byte piece of a key to its shared row and to the ring. Only the first row block of
  // a key head writes the ring.
  __device__ void write_key(int position, int piece, uint4 bits, bool to_ring) const {
    *reinterpret_cast<uint4*>(&s_.keys[key_row(position)][piece * 8]) = bits;
    if (to_ring && row_block() == 0) {
      *reinterpret_cast<uint4*>(ring_keys() +
                                (ring_row(position) * p_.key_row_bytes + piece * 16)) = bits;
    }
  }

  // The largest power of two <= x, for x > 0.
  __device__ static float exponent_of_two(float x) {
    return __uint_as_float(__float_as_uint(x) & 0x7f800000u);
  }

  // 1 / x for such a power; infinity for 0.
  __device__ static float inverse_of_two(float x) {
    return x > 0 ? __uint_as_float(0x7f000000u - __float_as_uint(x)) : INFINITY;
  }

  // ---- step_prepare.cuh

  __device__ void prepare_gates(int from, int to, bool to_ring);
  __device__ static float unpack_vector(const uint32_t operand[kTurns][4], float x[kTurns][8]);
  __device__ float store_vector(const float x[kTurns][8], bool key, bool exists, int position,
                                int column, bool to_ring) const;
  __device__ void prepare_operands(int from, int to, bool to_ring);

  // ---- step_kda.cuh

  __device__ void kda_fetch(int from, int to);
  __device__ void kda_gates(int from, int to, bool to_ring);
  __device__ void kda_operands(int from, int to);
  __device__ void kda_sums(int from, int to);
  __device__ void kda_scores(int from, int to);
  __device__ void kda_fold_keys(int base);
  __device__ static float half_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  __device__ static uint16_t half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }

  // ---- step_segment.cuh

  // mma accumulators [rows x columns] by product: {S k, S q}; Mamba-2: {S C}.
  using Products = float[kMs][T::kMamba ? 1 : 2][4];

  __device__ void scores(int base, float key[2 * kGroups][2], float query[2 * kGroups][2]) const;
  __device__ void scores(int base, float query[2 * kGroups][2]) const;
  __device__ void weigh(int base, int head, uint4 weights[kGroups]) const;
  __device__ void weigh_mamba(int base, int head, uint4 weights[kGroups]) const;
  __device__ void weigh_delta(int base, int head, uint4 weights[kGroups]) const;
  __device__ void apply_gates(int from, int to, Products d, int position[2], bool valid[2]) const;
  __device__ void store_values(const int position[2], const bool valid[2],
                               const uint32_t mine[2][kMs]) const;
  __device__ void segment(int from, int to);
  __device__ uint32_t operand_columns() const;
  __device__ void product_step(int step, int m, uint4& a, const uint32_t* b, const float (*sums)[4],
                               float (*d)[4], float (*low)[4]) const;
  __device__ void products(Products d) const;
  __device__ void product_tf32(float (*d)[4], float (*low)[4], const float x[4], uint32_t key,
                               uint32_t query) const;
  // The interval's ring values as mma A operands [rows x slots], by product and group of 16 slots.
  using SlotValues = uint32_t[kMs][kGroups][4];
  __device__ void load_slots(int n, SlotValues u) const;
  __device__ void substitute(int from, int to, const Products& constant,
                             const uint4 weights[kGroups], SlotValues u,
                             uint32_t mine[2][kMs]) const;
  template <int kOdd>
  __device__ void substitute_one(const bool holds[2 * kGroups], const Products& constant,
                                 const uint4 weights[kGroups], SlotValues u,
                                 uint32_t mine[kMs]) const;
  __device__ bool watch(const bool valid[2], const uint32_t mine[2][kMs]) const;
  __device__ void outputs_apart(int from, int to, const uint4 weights[T::kWeightSets][kGroups],
                                const SlotValues u, Products d) const;
  __device__ void add_outputs(float y[4], const uint32_t u[kGroups][4],
                              const uint4 weights[kGroups]) const;
  __device__ float value_of(int j, int m, int half) const;
  __device__ void write_output(int position, const float y[kMs][2]) const;

  // ---- step_fold.cuh

  __device__ void fold(int base, bool pending);
  // Number of 16-bit parts that a weighted ring value is split into. int8 rounds away what a second
  // part would hold; an fp32 checkpoint of bf16 values needs a third.
  static constexpr int kParts = T::kKda || T::kInt8                          ? 1
                                : T::kMamba && T::kCheckpoint == DType::kF32 ? 3
                                                                             : 2;
  using FoldOperand = uint32_t[kGroups][kParts][4];
  using WeightedValues = float2[kGroups][4];

  __device__ void weighted_values(int base, int m, WeightedValues weighted) const;
  __device__ void fold_operand(const WeightedValues weighted, const float factor[2],
                               FoldOperand parts) const;
  __device__ void fold_step(uint32_t keys, int step, const FoldOperand parts, float d[8]) const;
  __device__ void fold_decay(int step, float decay, float x[4]) const;
  template <int kGroup>
  __device__ void fold_group(uint32_t keys, int first, const FoldOperand parts[],
                             const float decay[], uint8_t* slot) const;
  __device__ float interval_decay(int base, int m) const;
  // The lane's columns of the unit matrix as a B operand: a product with it widens fp16 numbers, or
  // bytes made into fp16 numbers, into fp32 accumulators.
  __device__ static uint32_t unit_columns() {
    return 2 * c() == g() ? 0x3c00u : 2 * c() + 1 == g() ? 0x3c000000u : 0;
  }

  // Parts of fold_int8().
  static constexpr int kInt8ChunkBytes =
      512 * T::kTileProducts;  // from chunk to chunk of a product
  __device__ void int8_units(const WeightedValues weighted, float decay, const float* row_scale,
                             bool first, float wanted[2], float unit[2], float factor[2],
                             uint32_t above[2], float start[4]) const;
  __device__ void int8_sums(uint32_t keys, uint32_t one, const uint8_t* chunks,
                            const FoldOperand parts, const uint32_t above[2], const float start[4],
                            uint32_t x[T::kSteps][4], float largest[2]) const;
  __device__ bool int8_retry(bool first, const float largest[2], const float unit[2],
                             const uint32_t above[2], float wanted[2]) const;
  __device__ void fold_int8(uint32_t keys, int base, int m, uint8_t* slot, float* scales);

  __device__ void count_saturated(int n) const {
    if (a_.n_saturated != nullptr && n > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(a_.n_saturated),
                static_cast<unsigned long long>(n));
    }
  }
  const StepParams& p_;
  const StepArgs& a_;
  StepShared<T>& s_;
  [[no_unique_address]] std::conditional_t<T::kPersistent, OwnConsumer, Absent<7>> consumer_;
  // The batch row (grid.h), the same in all threads of a block.
  int read_slot_, write_slot_, ring_slot_;
  int n_, c_, start_, end_;     // positions: committed, checkpoint, the window [start_, end_)
  int64_t token_;               // packed index of the token at start_
  int first_row_;               // the block's first state row, counted over all heads
  float a_log_, dt_bias_;       // of the head whose gates the warp prepares
  float skip_[T::kWeightSets];  // Mamba-2: D of the warp's heads
  bool pending_ = false;        // shared memory holds S at c_ = g(n) - B: a fold is due
  int base_ = 0;                // grid point of the current interval (else S is at base_)
  int sub_window_ = 0;          // first position of the prepared sub-window
  bool weights_ready_ = false;  // kShare: published since the last share_weights()
  Fetched fetched_;             // the next sub-window's activations
  uint32_t value_[T::kOwnColumns][kMs];  // v of the prepared sub-window
};

}  // namespace replayssm::cuda
