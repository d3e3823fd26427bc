// Of StepBlock: what its kernels are made of: traits, parameters, shared memory.
#pragma once

#include <cstddef>
#include <type_traits>

#include "replay/cuda/ptx.cuh"
#include "replay/cuda/tile.h"
#include "replay/step.h"

namespace replayssm::cuda {

inline constexpr int kColumns = 8;  // positions of a sub-window

// What a kernel serves: windows of one token, any windows, or prompts of which every token stands
// and only the last grid point's checkpoint and the ring rows after it are written; any windows of
// many rows, by teams (step_team.cuh).
enum class Kind { kSingle, kAny, kSweep, kTeam };

template <Family kFamily_, DType kCheckpoint_, int kValueDim_, int kKeyDim_, int kRows_,
          int kProducts_, bool kShare_, Kind kKind_, int kSlots_>
struct StepTraits {
  static constexpr Family kFamily = kFamily_;
  static constexpr DType kCheckpoint = kCheckpoint_;
  static constexpr int kValueDim = kValueDim_;
  static constexpr int kKeyDim = kKeyDim_;
  static constexpr int kRows = kRows_;
  static constexpr int kSlots = kSlots_;       // the grid interval
  static constexpr int kGroups = kSlots / 16;  // of slots, as the products take them
  static constexpr int kMs = kProducts_;       // products of 16 rows that a warp owns
  // Scores and their decays are computed once a block, not once a warp, at the cost of a barrier.
  static constexpr bool kShare = kShare_;
  static constexpr bool kSingle = kKind_ == Kind::kSingle;
  static constexpr bool kSweep = kKind_ == Kind::kSweep;
  static constexpr bool kTeam = kKind_ == Kind::kTeam;
  static constexpr bool kMamba = kFamily == Family::kMamba2;
  static constexpr bool kKda = kFamily == Family::kKda;
  static constexpr bool kInt8 = kCheckpoint == DType::kI8;
  static constexpr int kTileProducts = tile_products(kValueDim);
  static constexpr int kHeads = kRows > kValueDim ? kRows / kValueDim : 1;  // of a block
  static constexpr int kWarps = kRows / (16 * kMs);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kElementBytes = static_cast<int>(dtype_bytes(kCheckpoint));
  static constexpr int kSteps = kKeyDim / kStepKeys;
  static constexpr int kTileRows = kTileProducts * kProductRows;
  static constexpr int kStateBytes = kRows * kKeyDim * kElementBytes;
  static constexpr int kTileBytes = kTileRows * kKeyDim * kElementBytes;
  // Eight elements of padding keep rows apart in the banks.
  static constexpr int kKeyStride = kKeyDim + 8;
  static constexpr int kValueStride = kRows + 8;
  // Rows of two intervals, at position mod 2 kSlots. kSingle: of one, and one more for the token's
  // key when its slot still holds a row to be folded.
  static constexpr int kKeyRows = kSingle ? kSlots + 1 : 2 * kSlots;
  static constexpr int kValueRows = kSingle ? kSlots : 2 * kSlots;
  static constexpr int kQueries = kSingle ? 1 : kColumns;
  static constexpr int kOwnColumns = kSingle ? 1 : 2;  // of a lane
  // Where a warp's rows may belong to several heads, each product has weights of its own.
  static constexpr int kWeightSets = kValueDim % (16 * kMs) == 0 ? 1 : kMs;
  static constexpr int kChunks = kKeyDim * kElementBytes / 32;  // of a product's rows, 16 bytes
  static_assert(kRows % kTileRows == 0 && kSteps % 2 == 0 && kWarps * 16 * kMs == kRows);
  static_assert(kSlots == 16 || kSlots == 32);
  static_assert(kTileProducts == 1 || kMs == 1 || kMs % 2 == 0);
  static_assert(kRows % kValueDim == 0 || kValueDim % kRows == 0);
  static_assert(!kKda || (!kSingle && !kMamba && kHeads == 1));
  static_assert(kHeads <= kWarps);  // a warp prepares the gates of a head
};

// What a launch needs beside its arguments.
struct StepParams {
  StepArgs args;
  uint32_t key_row_bytes, value_row_bytes, gate_row_bytes;  // strides of ring rows
  uint32_t ring_rows;
  uint32_t ring_reciprocal;  // of divided()
  int32_t rows_per_key_head;
  float beta_scale;
  DecayGate decay_gate;  // KDA
  float decay_lower_bound;
  bool early;  // the kernel before may still run: what may be fetched must not wait for its end
  // kTeam: parts of the launch, of one row and of one key head, and their reciprocals.
  uint32_t n_parts, row_parts, key_head_parts, row_reciprocal, key_head_reciprocal;
};

// floor(x / by), by its reciprocal.
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

// KDA's share of a block's memory.
template <typename T>
struct KdaShared {
  float alpha[2 * T::kSlots][T::kKeyDim];           // log decays, at position mod 2 kSlots
  uint16_t operands[2][kColumns][T::kKeyStride];    // e^{G_t} k_t, e^{G_t} q_t
  uint16_t fold_keys[2][T::kSlots][T::kKeyStride];  // e^{G_end - G_j} k_j: fp16, and what it lost
  float decay[T::kKeyDim];                          // e^{G_end}
  float scores[2][kColumns][T::kSlots];             // of keys, of queries
};
// In the place of a member that a kernel does without; each place has an empty type of its own, so
// that none takes memory.
template <int>
struct Absent {};

// int8: sums of the operands, by column.
template <typename T>
struct OperandSums {
  float query[T::kQueries], key[T::kQueries];
};

// ---- teams, see step_team.cuh

inline constexpr int kRowWords = 7, kMaxStates = 4;

// What a team does at a time: state rows of one key head and one row of the batch.
struct Part {
  uint32_t part, key_head;
  bool valid;
};
// In shared memory, of a team.
struct Team {
  int64_t rows[2][kRowWords];  // of the part in work and the next
  Part parts[2];
  int first_state, state;  // what was free at the start, or -1; what was taken at last
};
// Of a block.
struct TeamsCommon {
  uint32_t next;              // part, of the multiprocessor's
  uint32_t free;              // states, a bit each
  uint32_t done[kMaxStates];  // warps that have no more use for it
};
// In registers.
struct OwnTeam {
  Part part;
  TeamsCommon* common;
  uint8_t *states, *state;
  int own;         // -1: not taken yet, or given back
  uint32_t phase;  // of the barrier
};

// Shared memory of a block, or a team.
template <typename T>
struct alignas(T::kTeam ? 16 : 128) StepShared {
  // Tiles, as stored.
  [[no_unique_address]] std::conditional_t<T::kTeam, Absent<5>, uint8_t[T::kStateBytes]> state;
  uint16_t keys[T::kKeyRows][T::kKeyStride];  // ring dtype
  uint16_t values[T::kValueRows][T::kValueStride];
  uint16_t queries[T::kQueries][T::kKeyStride];                      // fp16, times a power of two
  uint16_t raw_queries[T::kMamba ? T::kQueries : 1][T::kKeyStride];  // bf16
  float2 log_decay[T::kHeads][2][T::kSlots];   // prefix sum of an interval: high and low part
  float2 gates[T::kHeads][2][T::kSlots];       // e^{prefix sum}; beta, Mamba-2: dt
  float fold_weight[T::kHeads][2][T::kSlots];  // e^{sum to the interval's end}; Mamba-2: times dt
  // GDN: the gate itself.
  [[no_unique_address]] std::conditional_t<T::kMamba, Absent<0>, float[T::kHeads][2][T::kSlots]>
      log_alpha;
  // Of weigh().
  [[no_unique_address]] std::conditional_t<
      T::kShare, uint4[T::kHeads][T::kSingle ? 1 : 2][T::kGroups][32], Absent<1>> weights;
  float query_scale[T::kQueries];
  [[no_unique_address]] std::conditional_t<T::kKda, KdaShared<T>, Absent<2>> kda;
  [[no_unique_address]] std::conditional_t<T::kInt8, OperandSums<T>, Absent<6>> sums;
  [[no_unique_address]] std::conditional_t<T::kInt8, float2[T::kRows / 2], Absent<3>> row_scale;
  uint64_t barrier;
  [[no_unique_address]] std::conditional_t<T::kTeam, Team, Absent<4>> team;
};

}  // namespace replayssm::cuda
