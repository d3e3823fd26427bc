// StepBlock's compile-time shape (StepTraits), launch parameters (StepParams) and shared memory
// (StepShared).
#pragma once

#include <cstddef>
#include <type_traits>

#include "replay/cuda/ptx.cuh"
#include "replay/cuda/tile.h"
#include "replay/step.h"

namespace replayssm::cuda {

inline constexpr int kColumns = 8;  // positions of a sub-window: the columns of one mma

// What a kernel is for:
//   kSingle      windows of one token
//   kAny         any window
//   kSweep       prompts: every token is committed; writes only the checkpoint of the last grid
//                point and the ring rows after it
//   kPersistent  any window in launches of many rows (step_persistent.cuh)
enum class Kind { kSingle, kAny, kSweep, kPersistent };

template <Family kFamily_, DType kCheckpoint_, int kValueDim_, int kKeyDim_, int kRows_,
          int kProducts_, bool kShare_, Kind kKind_, int kSlots_>
struct StepTraits {
  static constexpr Family kFamily = kFamily_;
  static constexpr DType kCheckpoint = kCheckpoint_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kKeyDim = kKeyDim_;
  static constexpr int kRows = kRows_;
  static constexpr int kSlots = kSlots_;       // the grid interval B
  static constexpr int kGroups = kSlots / 16;  // k16 groups of slots, one mma each
  static constexpr int kMs = kProducts_;       // m16 row products that a warp owns
  // Scores and decays are computed once per block instead of once per warp: costs one barrier.
  static constexpr bool kShare = kShare_;
  static constexpr bool kSingle = kKind_ == Kind::kSingle;
  static constexpr bool kSweep = kKind_ == Kind::kSweep;
  static constexpr bool kPersistent = kKind_ == Kind::kPersistent;
  static constexpr bool kMamba = kFamily == Family::kMamba2;
  static constexpr bool kKda = kFamily == Family::kKda;
  static constexpr bool kInt8 = kCheckpoint == DType::kI8;
  static constexpr int kTileProducts = tile_products(kValueDim);
  static constexpr int kHeads = kRows > kValueDim ? kRows / kValueDim : 1;  // heads per block
  static constexpr int kWarps = kRows / (16 * kMs);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kElementBytes = static_cast<int>(dtype_bytes(kCheckpoint));
  static constexpr int kSteps = kKeyDim / kStepKeys;
  static constexpr int kTileRows = kTileProducts * kProductRows;
  static constexpr int kStateBytes = kRows * kKeyDim * kElementBytes;
  static constexpr int kTileBytes = kTileRows * kKeyDim * kElementBytes;
  // Eight elements of padding put consecutive rows on different banks.
  static constexpr int kKeyStride = kKeyDim + 8;
  static constexpr int kValueStride = kRows + 8;
  // Shared rows of two intervals, indexed by position mod 2 kSlots. kSingle: of one interval, and
  // one more key row, for the token whose slot still holds a row of the pending fold.
  static constexpr int kKeyRows = kSingle ? kSlots + 1 : 2 * kSlots;
  static constexpr int kValueRows = kSingle ? kSlots : 2 * kSlots;
  static constexpr int kQueries = kSingle ? 1 : kColumns;
  static constexpr int kOwnColumns = kSingle ? 1 : 2;  // columns per lane
  // A warp whose rows span several heads needs one set of weights per product.
  static constexpr int kWeightSets = kValueDim % (16 * kMs) == 0 ? 1 : kMs;
  static constexpr int kChunks =
      kKeyDim * kElementBytes / 32;  // 16-byte chunks per lane and product
  static_assert(kRows % kTileRows == 0 && kSteps % 2 == 0 && kWarps * 16 * kMs == kRows);
  static_assert(kSlots == 16 || kSlots == 32);
  static_assert(kTileProducts == 1 || kMs == 1 || kMs % 2 == 0);
  static_assert(kRows % kValueDim == 0 || kValueDim % kRows == 0);
  static_assert(!kKda || (!kSingle && !kMamba && kHeads == 1));
  static_assert(kHeads <= kWarps);  // one warp prepares the gates of one head
};

// Kernel parameter: the launch's arguments and what the host derives from them.
struct StepParams {
  StepArgs args;
  uint32_t key_row_bytes, value_row_bytes, gate_row_bytes;  // ring row strides
  uint32_t ring_rows;
  uint32_t ring_reciprocal;  // reciprocal_of(ring_rows)
  int32_t rows_per_key_head;
  float beta_scale;
  DecayGate decay_gate;  // KDA
  float decay_lower_bound;
  bool early;  // programmatic launch: fetch what the previous kernel does not write before it ends
  // kPersistent: work items of the launch, per batch row and per key head, and their reciprocals.
  uint32_t n_items, row_items, key_head_items, row_reciprocal, key_head_reciprocal;
};

// floor(x / by) by multiplication with reciprocal_of(by).
inline uint32_t reciprocal_of(uint32_t by) {
  return by == 1 ? 0xffffffffu : static_cast<uint32_t>((uint64_t{1} << 32) / by);
}
__device__ __forceinline__ uint32_t divided(uint32_t x, uint32_t by, uint32_t reciprocal) {
  const uint32_t q = __umulhi(x, reciprocal);
  return q + static_cast<uint32_t>(x - q * by >= by);
}
__device__ __forceinline__ uint32_t remainder_of(uint32_t x, uint32_t by, uint32_t reciprocal) {
  const uint32_t rest = x - __umulhi(x, reciprocal) * by;
  return rest >= by ? rest - by : rest;
}

// KDA: shared memory of its per-channel decays. Written by kda_gates(), kda_operands(),
// kda_scores() and kda_fold_keys(); each publishes by the block barrier that follows it.
template <typename T>
struct KdaShared {
  float alpha[2 * T::kSlots][T::kKeyDim];           // log decays, by position mod 2 kSlots
  uint16_t operands[2][kColumns][T::kKeyStride];    // e^{G_t} k_t, e^{G_t} q_t
  uint16_t fold_keys[2][T::kSlots][T::kKeyStride];  // e^{G_end - G_j} k_j: fp16, and what it lost
  float decay[T::kKeyDim];                          // e^{G_end}
  float scores[2][kColumns][T::kSlots];             // of keys, of queries
};
// Replaces a member that a kernel does not need. Each use has its own empty type, so that
// [[no_unique_address]] leaves it no memory.
template <int>
struct Absent {};

// int8: sum over the keys of each operand column; corrects the byte offset (see products()).
template <typename T>
struct OperandSums {
  float query[T::kQueries], key[T::kQueries];
};

// ---- persistent kernel, see step_persistent.cuh

inline constexpr int kRowWords = 7;   // 8-byte words of a Row
inline constexpr int kMaxStates = 4;  // state buffers of a block

// What one consumer group does at a time: kRows state rows of one key head and one batch row.
struct WorkItem {
  uint32_t row_block, key_head;
  bool valid;
};
// Shared memory of one consumer group. Its fetch warp writes the entry of the next turn while the
// group works on the current one; the group's barrier at the end of an item publishes it.
struct Consumer {
  int64_t rows[2][kRowWords];  // batch rows of the current and the next item, by turn mod 2
  WorkItem items[2];
  int first_state, state;  // state buffer acquired at the start, or -1; the one that was acquired
};
// Shared by the groups of a block; accessed by atomics only.
struct ConsumersCommon {
  uint32_t next;              // the block's next unclaimed item
  uint32_t free;              // bit i: state buffer i is free
  uint32_t done[kMaxStates];  // warps that have finished with state buffer i
};
// A thread's registers.
struct OwnConsumer {
  WorkItem item;
  ConsumersCommon* common;
  uint8_t *states, *state;  // all state buffers; the acquired one
  int own;                  // index of the acquired buffer; -1: none
  uint32_t phase;           // of the group's mbarrier
};

// Shared memory of a block (kPersistent: of one consumer group). Who writes what, and which barrier
// publishes it:
//   state                   load_state(): one bulk copy, or each lane its own chunks of zeros;
//                           wait_state() waits on `barrier`. After that a lane reads and writes
//                           only its own chunks, so folds need no barrier
//   keys, values            load_ring() by 16-byte async copies (rows before the window);
//                           prepare_operands() the window's keys. prepare() publishes both by
//                           copies_wait() and sync(). A warp's own values: segment(), by
//                           __syncwarp()
//   queries, raw_queries, query_scale, log_decay, gates, fold_weight, log_alpha, sums, row_scale
//                           prepare_operands(), prepare_gates(), load_state(); the same sync()
//   weights                 share_weights(), one warp per interval and head; published by the
//                           sync() in segment(), after the state products
template <typename T>
struct alignas(T::kPersistent ? 16 : 128) StepShared {
  // Tiles as stored in global memory (tile.h).
  [[no_unique_address]] std::conditional_t<T::kPersistent, Absent<5>, uint8_t[T::kStateBytes]>
      state;
  uint16_t keys[T::kKeyRows][T::kKeyStride];  // 16-bit, as the ring holds them
  uint16_t values[T::kValueRows][T::kValueStride];
  uint16_t queries[T::kQueries][T::kKeyStride];  // fp16, scaled by a power of two
  uint16_t raw_queries[T::kMamba ? T::kQueries : 1][T::kKeyStride];  // bf16
  // [head][interval parity][slot]
  float2 log_decay[T::kHeads][2][T::kSlots];   // prefix sum of log decays: high and low part
  float2 gates[T::kHeads][2][T::kSlots];       // e^{prefix sum}; beta, Mamba-2: dt
  float fold_weight[T::kHeads][2][T::kSlots];  // e^{sum to the interval's end}; Mamba-2: times dt
  // GDN: the token's own log decay.
  [[no_unique_address]] std::conditional_t<T::kMamba, Absent<0>, float[T::kHeads][2][T::kSlots]>
      log_alpha;
  // Results of weigh(): mma B operands, one uint4 per lane.
  [[no_unique_address]] std::conditional_t<
      T::kShare, uint4[T::kHeads][T::kSingle ? 1 : 2][T::kGroups][32], Absent<1>> weights;
  float query_scale[T::kQueries];
  [[no_unique_address]] std::conditional_t<T::kKda, KdaShared<T>, Absent<2>> kda;
  [[no_unique_address]] std::conditional_t<T::kInt8, OperandSums<T>, Absent<6>> sums;
  [[no_unique_address]] std::conditional_t<T::kInt8, float2[T::kRows / 2], Absent<3>> row_scale;
  uint64_t barrier;
  [[no_unique_address]] std::conditional_t<T::kPersistent, Consumer, Absent<4>> consumer;
};

}  // namespace replayssm::cuda
