// The step's block: one kernel for GDN and Mamba-2, any window.
//
// A block takes kRows state rows (one head, part of one, or some of one key head) of one row of the
// batch; a warp owns 16 kMs of them from start to end. The window is taken in sub-windows of
// at most eight positions; the token at position p stands in column p mod 8 of every product.
//
//   load     the state tile by one bulk copy, ring rows by 16-byte copies
//   prepare  once a block, while the copies fly: keys and queries normalised, gates, prefix sums,
//            then scores of ring keys with their decay
//   segment  the positions of one grid interval: S z on the tensor cores, then (GDN) the u of each
//            token by one product over all slots of the interval, then y
//   fold     a pending one (written) before, a crossing one (on chip) between two segments
//
// Every token's sums run over all slots of its interval, with exact zeros where it must not see:
// its bits do not depend on the window that it came in. Windows of one token need no sub-windows
// and no crossing, so less memory; the token then stands in every column.
#pragma once

#include "replay/cuda/step_traits.cuh"

namespace replayssm::cuda {

template <typename T>
class StepBlock {
 public:
  __device__ StepBlock(const StepParams& params, StepShared<T>& shared)
      : p_(params), a_(params.args), s_(shared) {
    // All at once: one latency.
    const auto* row = reinterpret_cast<const int64_t*>(a_.rows + blockIdx.z);
    int64_t x[kRowWords];
#pragma unroll
    for (int i = 0; i < kRowWords; ++i) x[i] = load_64(row + i);
    set_row(x);
  }
  // kTeam: the team's part `turn`; phase: of its barrier.
  __device__ StepBlock(const StepParams& params, StepShared<T>& shared, TeamsCommon& common,
                       uint8_t* states, uint32_t turn, uint32_t phase);
  // kTeam: the next of the multiprocessor's parts, for the team's `turn`; its row comes
  // meanwhile. By one warp.
  __device__ static void take_part(const StepParams& params, StepShared<T>& shared,
                                   TeamsCommon& common, uint32_t turn);
  // The first thread of the warp that takes parts and states for its team.
  static constexpr uint32_t kTaker = T::kWarps / 2 * 32;
  __device__ static bool is_takers_warp() { return thread() / 32 == kTaker / 32; }
  // kTeam: true if a state came by the team's barrier.
  __device__ bool run_part();

  // False if there was nothing to do.
  __device__ bool run() {
    const int grid = n_ & ~(kSlots - 1);
    pending_ = c_ < grid;
    // One test, after all loads: a branch between them would cost a second latency.
    if ((read_slot_ < 0) | ((start_ == end_) & !pending_)) return false;
    base_ = grid;
    if constexpr (T::kSingle) {
      load_state();
      if (pending_) load_ring(c_, c_ + kSlots);
      // A row of the interval in work needs the older one's memory: fold first, on its own.
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

  // After a sweep: what its last interval leaves in the ring beside the blocks' own values. On its
  // own, since blocks of the sweep may still read the rows that it replaces.
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
    first_row_ = key_head() * p_.rows_per_key_head + part() * T::kRows;
    if constexpr (!kConstantsLate) load_constants();
  }

  // Of the block, or the team.
  __device__ static uint32_t thread() {
    if constexpr (T::kTeam) {
      return threadIdx.x % T::kThreads;
    } else {
      return threadIdx.x;
    }
  }
  __device__ static int warp() { return thread() / 32; }
  __device__ uint32_t part() const {
    if constexpr (T::kTeam) {
      return team_.part.part;
    } else {
      return blockIdx.x;
    }
  }
  __device__ uint32_t key_head() const {
    if constexpr (T::kTeam) {
      return team_.part.key_head;
    } else {
      return blockIdx.y;
    }
  }
  __device__ static void sync() {
    if constexpr (T::kTeam) {
      team_sync(1 + threadIdx.x / T::kThreads, T::kThreads);
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
  // Where a position's key stands; kSingle: positions of the interval at base_.
  __device__ int key_row(int position) const {
    if constexpr (T::kSingle) return pending_ ? kSlots : slot_of(position);
    return position & (2 * kSlots - 1);
  }
  // Where the rows of the interval at `base` stand.
  __device__ static int interval_row(int base) { return T::kSingle ? 0 : base & (2 * kSlots - 1); }
  __device__ const uint16_t* slot_key(int base, int slot) const {
    return s_.keys[T::kSingle && slot == 0 ? key_row(base) : interval_row(base) + slot];
  }
  __device__ static int product_of(int m) { return warp() * kMs + m; }
  // The block's head that product m of the warp belongs to.
  __device__ static int head_of(int m) {
    return T::kHeads == 1 ? 0 : 16 * product_of(m) / T::kValueDim;
  }
  __device__ static constexpr int set_of(int m) { return T::kWeightSets == 1 ? 0 : m; }
  // The first row of a lane in product m, within the block; a lane has two rows there, and those of
  // a tile's second product follow those of the first.
  __device__ static int lane_row(int m) {
    const int product = product_of(m);
    return product / T::kTileProducts * T::kTileRows +
           tile_row(T::kTileProducts, g(), product % T::kTileProducts, 0);
  }
  // The lane's 16 bytes i of product m; the same place in a stored tile.
  __device__ static int chunk_offset(int i, int m) {
    constexpr int kProducts = T::kTileProducts;
    const int product = warp() * kMs;  // kMs == 1: may be a tile's second
    return (product / kProducts + m / kProducts) * T::kTileBytes +
           ((i * kProducts + (kMs == 1 ? product : m) % kProducts) * 32 + threadIdx.x % 32) * 16;
  }
  __device__ uint4* chunk(int i, int m) const {
    return reinterpret_cast<uint4*>(state() + chunk_offset(i, m));
  }

  // The window, sub-window by sub-window. A sweep's end at multiples of eight, so that only a
  // step's can cross a grid point.
  __device__ int stop_of(int from) const {
    return min(end_, (T::kSweep ? from & ~(kColumns - 1) : from) + kColumns);
  }
  // Each part stands here once or twice: more code would not fit the instruction cache.
  __device__ void walk() {
    // A window beyond the next grid point needs the memory of the pending interval: that is folded
    // before the window is prepared.
    bool alone = pending_ && end_ > base_ + kSlots;
    int from = start_, stop = start_, other = pending_ ? c_ : base_ + kSlots;
    bool prepared = false, fetched = false;
    do {
      if (!prepared || (from == stop && from < end_)) {
        if (prepared) sync();
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
          sync();
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
      // A sweep that ends at a grid point leaves its checkpoint.
    } while (from < end_ || (T::kSweep && from == base_ + kSlots));
    if constexpr (T::kTeam) {
      if (team_.own >= 0) give_state();
    }
  }

  // ---- loads

  // The first sub-window's inputs before the state, whose copy would hold them up; but what may be
  // fetched before the kernel before this one ends does not wait for that.
  __device__ void fetch_first(int from, int to, int other, bool alone) {
    const bool early = !T::kTeam && !T::kSweep && p_.early;
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

  // The heads' constants come with the row: each would cost a latency later on. GDN's int8 kernel
  // of single tokens has no registers to keep them in.
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
    if constexpr (T::kTeam) {
      return team_.state;
    } else {
      return s_.state;
    }
  }
  // Zero, of the lane's own chunks: no other reads them.
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

  // kTeam: takes a free state and starts its copy; -1 if none is free. By one thread.
  __device__ int take_state() const;
  // kTeam: now that it is needed.
  __device__ void take_state_at_last() const;
  __device__ void wait_team_state();
  // kTeam: the part is done with its state.
  __device__ void give_state();

  __device__ void load_state() {
    if constexpr (T::kTeam) {
      if (thread() == kTaker) s_.team.first_state = s_.team.state = take_state();
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

  // int8: scales of the block's rows.
  __device__ float* row_scales() const { return reinterpret_cast<float*>(s_.row_scale); }

  // After the block's first barrier.
  __device__ void wait_state() {
    if constexpr (T::kTeam) {
      wait_team_state();
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

  // The ring rows before the window, of its interval and the next.
  __device__ void load_window_ring() {
    load_ring(base_, min(start_, base_ + kSlots));
    if (start_ > base_ + kSlots) load_ring(base_ + kSlots, start_);
  }
  // The ring rows of positions [base, to) of the interval at `base`.
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
    copies_wait();
    sync();
    if constexpr (T::kTeam) {
      if (from == start_) take_state_at_last();
    }
    if constexpr (T::kKda) {
      kda_operands(from, to);
      kda_scores(from, to);
      sync();
      if constexpr (T::kInt8) {
        kda_sums(from, to);
        sync();
      }
    }
    if constexpr (T::kShare) {
      share_weights(from, to);
      weights_stand_ = false;
    }
  }

  // The weights of the intervals that hold positions [from, to), a warp an interval and head.
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

  static constexpr int kPieces = T::kKeyDim / 8;      // of a vector, eight elements
  static constexpr int kTurns = (kPieces + 15) / 16;  // of half a warp over a vector
  static constexpr int kHalfWarps = T::kThreads / 16;
  static constexpr int kVectors =  // of a half-warp in a sub-window
      (2 * (T::kSingle ? 1 : kColumns) + kHalfWarps - 1) / kHalfWarps;
  // Vector i of the half-warp: a key or a query. A warp has two of a kind at a time, so that it
  // runs what that kind needs alone, and of each kind as many as the others; a window of one token
  // has one of each. Mamba-2's warps but the first then go straight to the gates.
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

  // What a thread needs of a sub-window's activations, raw.
  struct Fetched {
    uint32_t operand[kVectors][kTurns][4];  // of vector i
    uint32_t value[T::kOwnColumns][kMs];    // v of the lane's columns, two bf16
    // Of the lane, where the warp has a head: two intervals of 16 slots, or one of 32 and another.
    int gate_position[kGroups];
    float gate[kGroups], beta[kGroups];
    float4 alpha[kAlphas];  // KDA: gates, four channels each
  };

  __device__ int64_t token_of(int position) const { return token_ + (position - start_); }
  __device__ float* ring_gate(int position, int head) const {
    return reinterpret_cast<float*>(static_cast<uint8_t*>(a_.ring_gate.data) +
                                    ring_slot_ * a_.ring_gate.slot_stride * 4 +
                                    ring_row(position) * p_.gate_row_bytes) +
           head;
  }
  // The block's head whose gates this warp prepares.
  __device__ static int gate_head() { return T::kWarps - 1 - warp(); }

  // Loads the sub-window [from, to), whose gates fill the intervals at the base of from - 1 (of
  // base_ at first) and other_base.
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

  // The lane's rows of 16-bit elements.
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

  // A piece of a key into its slot, and the ring.
  __device__ void write_key(int position, int piece, uint4 bits, bool to_ring) const {
    *reinterpret_cast<uint4*>(&s_.keys[key_row(position)][piece * 8]) = bits;
    if (to_ring && part() == 0) {
      *reinterpret_cast<uint4*>(ring_keys() +
                                (ring_row(position) * p_.key_row_bytes + piece * 16)) = bits;
    }
  }

  // The power of two of x > 0, its mantissa dropped.
  __device__ static float exponent_of_two(float x) {
    return __uint_as_float(__float_as_uint(x) & 0x7f800000u);
  }

  // 1 / x of such a power; of 0, infinity.
  __device__ static float inverse_of_two(float x) {
    return x > 0 ? __uint_as_float(0x7f000000u - __float_as_uint(x)) : INFINITY;
  }

  // ---- step_prepare.cuh

  __device__ void prepare_gates(int from, int to, bool to_ring);
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

  using Products = float[kMs][T::kMamba ? 1 : 2][4];

  __device__ void scores(int base, float key[2 * kGroups][2], float query[2 * kGroups][2]) const;
  __device__ void scores(int base, float query[2 * kGroups][2]) const;
  __device__ void weigh(int base, int head, uint4 weights[kGroups]) const;
  __device__ void weigh_mamba(int base, int head, uint4 weights[kGroups]) const;
  __device__ void weigh_delta(int base, int head, uint4 weights[kGroups]) const;
  __device__ void segment(int from, int to);
  __device__ void products(Products d) const;
  __device__ void product_tf32(float (*d)[4], float (*low)[4], const float x[4], uint32_t key,
                               uint32_t query) const;
  // The interval's ring values as operands: of products, of groups of slots.
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
  // Parts of a 16-bit operand that the weighted ring values are split into: int8 rounds away what a
  // second would hold; an fp32 checkpoint of bf16 values needs a third.
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
  // The lane's columns of the unit matrix: a product with it brings fp16 numbers, or bytes that are
  // made one, into fp32 sums.
  __device__ static uint32_t unit_columns() {
    return 2 * c() == g() ? 0x3c00u : 2 * c() + 1 == g() ? 0x3c000000u : 0;
  }
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
  [[no_unique_address]] std::conditional_t<T::kTeam, OwnTeam, Absent<7>> team_;
  int read_slot_, write_slot_, ring_slot_;
  int n_, c_, start_, end_;  // positions
  int64_t token_;
  int first_row_;
  float a_log_, dt_bias_;       // of the head whose gates the warp prepares
  float skip_[T::kWeightSets];  // Mamba-2
  bool pending_ = false;
  int base_ = 0;                // the grid point of the interval in work
  int sub_window_ = 0;          // first position of the sub-window
  bool weights_stand_ = false;  // kShare: all warps may read them
  Fetched fetched_;             // of the next sub-window
  uint32_t value_[T::kOwnColumns][kMs];
};

}  // namespace replayssm::cuda
