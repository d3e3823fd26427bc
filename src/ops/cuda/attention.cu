// The tensor-core attention kernel: a block computes up to kRows query rows of one kv head over the
// tiles of its cache. Query row r of a block is head r % group of token r / group.
//
// A tile is 64 positions. For each tile (attend()):
//   1. scores   q k^T for all rows; each warp computes kS * 8 of the positions
//   2. scale    masks, and the maxima over the warp's positions, to shared memory
//   3. weigh    new maxima over all warps; weights in bf16 and their sums, to shared memory
//   4. add      weighted v for all rows; each warp computes kV * 8 of the columns
// Tiles of a segment (256 positions) are merged in order by online softmax, segments in order by
// Fold. No sum depends on the number of rows in a block or of warps that share it.
//
// k and v arrive by bulk copies in a ring of three buffers, k and v alternating: unit 2 i is k and
// unit 2 i + 1 is v of the block's tile i; unit u is in buffer u % 3, and its mbarrier completes
// phase u / 3 when it has arrived. While one unit is in use the next two are in flight.
//
// Barriers of a tile, and what each publishes:
//   (a) start of a tile but the first  v of the tile before has been read: its buffer is free
//   (b) after scale()                  k has been read; most[] is complete
//   (c) after weigh()                  weight[] and sum[] are complete; v's cleared rows too
#include <type_traits>

#include "ops/cuda/attention_fold.cuh"
#include "ops/cuda/attention_kernels_cuda.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kv_layout.cuh"

namespace replayssm::ops::cuda {
namespace {

using replayssm::cuda::barrier_expect;
using replayssm::cuda::barrier_fence;
using replayssm::cuda::barrier_init;
using replayssm::cuda::barrier_wait;
using replayssm::cuda::bf16_is_bad;
using replayssm::cuda::bulk_copy;
using replayssm::cuda::load_matrices;
using replayssm::cuda::load_matrices_transposed;
using replayssm::cuda::mma_bf16;
using replayssm::cuda::shared_address;

constexpr int kTilePositions = 64;
constexpr int kTilePages = kTilePositions / kKvPage;
constexpr int kSegmentTiles = kKvSegment / kTilePositions;
constexpr int kLanePages = 32;  // page indices that warp 0 holds, one per lane
constexpr int kLaneTiles = kLanePages / kTilePages;

template <int kDimension, int kRowTiles, int kWarpCount>
struct Traits {
  static constexpr int kDim = kDimension;
  static constexpr int kM = kRowTiles;  // m16 row tiles
  static constexpr int kRows = 16 * kM;
  static constexpr int kWarps = kWarpCount;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kS = kTilePositions / 8 / kWarps;    // n8 tiles of positions per warp
  static constexpr int kV = kDim / 8 / kWarps;              // n8 tiles of columns per warp
  static constexpr int kWeightStride = kTilePositions + 8;  // puts rows on different banks
};

struct NoTotal {};

__device__ __forceinline__ float* as_floats(float4* p) { return reinterpret_cast<float*>(p); }

template <typename T>
struct Shared {
  __nv_bfloat16 unit[3][kTilePositions * T::kDim];    // k or v [64][dim], chunks permuted
  __nv_bfloat16 query[T::kRows * T::kDim];            // [row][dim], chunks permuted
  __nv_bfloat16 weight[T::kRows * T::kWeightStride];  // [row][position of the tile]
  float4 most[T::kRows][T::kWarps / 4];               // [row][warp]: maxima, in powers of two
  float4 sum[T::kRows][kTilePositions / 8 / 4];       // [row][n8 tile]: sums of weights
  uint64_t barrier[3];                                // mbarriers of `unit`
  // Weighted v of the earlier segments, if registers are short: each thread's own, [m][v][thread].
  std::conditional_t<T::kM == 1, NoTotal, float4[T::kM * T::kV][T::kThreads]> total;
};

// Blocks per SM, by shared memory and registers.
template <typename T>
constexpr int blocks_of() {
  constexpr int kMemory = 227 * 1024, kReserved = 1024;
  return std::min(T::kM == 1 ? 4 : 8 / T::kWarps,
                  kMemory / (static_cast<int>(sizeof(Shared<T>)) + kReserved));
}

// A softmax over some positions, (maximum, sum, weighted v), of the rows that a thread holds: rows
// lane / 4 and lane / 4 + 8 of each of kM tiles, columns 2 (lane % 4) and the next of each of kV.
template <typename T>
struct Partial {
  float most[T::kM][2];
  float sum[T::kM][2];
  float value[T::kM][T::kV][4];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
      most[m][0] = most[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0.0f;
#pragma unroll
      for (int v = 0; v < T::kV; ++v) {
#pragma unroll
        for (int i = 0; i < 4; ++i) value[m][v][i] = 0.0f;
      }
    }
  }
};

// The earlier segments, folded in order.
template <typename T>
class Total {
 public:
  __device__ explicit Total(Shared<T>& shared) : shared_(shared) {}

  __device__ void set(const Partial<T>& part) {
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most_[m][h] = part.most[m][h];
        sum_[m][h] = part.sum[m][h];
      }
#pragma unroll
      for (int v = 0; v < T::kV; ++v) {
        const float* x = part.value[m][v];
        put(m, v, make_float4(x[0], x[1], x[2], x[3]));
      }
    }
  }

  __device__ void fold(const Partial<T>& next) {
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
      const Fold low(most_[m][0], next.most[m][0]), high(most_[m][1], next.most[m][1]);
      most_[m][0] = low.most;
      most_[m][1] = high.most;
      sum_[m][0] = low(sum_[m][0], next.sum[m][0]);
      sum_[m][1] = high(sum_[m][1], next.sum[m][1]);
#pragma unroll
      for (int v = 0; v < T::kV; ++v) {
        const float4 x = value(m, v);
        const float* y = next.value[m][v];
        put(m, v, make_float4(low(x.x, y[0]), low(x.y, y[1]), high(x.z, y[2]), high(x.w, y[3])));
      }
    }
  }

  __device__ float sum(int m, int h) const { return sum_[m][h]; }
  __device__ float4 value(int m, int v) const {
    if constexpr (T::kM == 1) {
      return value_[v];
    } else {
      return shared_.total[m * T::kV + v][threadIdx.x];
    }
  }

 private:
  __device__ void put(int m, int v, float4 x) {
    if constexpr (T::kM == 1) {
      value_[v] = x;
    } else {
      shared_.total[m * T::kV + v][threadIdx.x] = x;
    }
  }

  Shared<T>& shared_;
  float most_[T::kM][2];
  float sum_[T::kM][2];
  float4 value_[T::kM == 1 ? T::kV : 1];
};

// Hides x from the optimiser, so that what is computed from it is computed again for every tile
// instead of being held in registers.
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Byte offset of a 16-byte chunk of a row of `dim` elements, permuted as in pages (kv_layout.cuh).
template <int kDim>
__device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
  return static_cast<uint32_t>(row * kDim * 2 + (chunk ^ (row & 7)) * 16);
}

template <typename T>
class Block {
 public:
  __device__ Block(const AttentionParams& params, Shared<T>& shared)
      : params_(params),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    if (!place()) return;
    load_queries();
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : shared_.barrier) barrier_init(&barrier, 1);
      barrier_fence();
    }
    __syncthreads();
    // Warp 0 fetches for the block. Three units fill the ring; attend() fetches the others.
    if (warp_ == 0) {
      fetch_pages(first_tile_ / kLaneTiles);
      fetch_unit(0);
      fetch_unit(1);
      fetch_unit(2);
    }
    Total<T> total(shared_);
    Partial<T> part;
    for (int tile = first_tile_; tile < end_tile_;) {
      part.clear();
      const int end = min(end_tile_, (tile / kSegmentTiles + 1) * kSegmentTiles);
      for (; tile < end; ++tile) attend(tile, part);
      if (params_.parts != nullptr) {  // split: this block has one segment
        write_part(part);
        return;
      }
      if (tile <= kSegmentTiles) {  // the first segment
        total.set(part);
      } else {
        total.fold(part);
      }
    }
    write_out(total);
  }

 private:
  // Finds this block's rows, kv head and tiles; false if there are none.
  __device__ bool place() {
    // blockIdx.x = ((row * n_splits + segment) * n_kv_heads + head) * n_blocks + block
    const AttentionRowsCuda& rows = params_.rows;
    int64_t i = blockIdx.x;
    const int64_t block = params_.n_blocks - 1 - i % params_.n_blocks;  // most positions first
    i /= params_.n_blocks;
    head_ = static_cast<int>(i % params_.kv.n_kv_heads);
    i /= params_.kv.n_kv_heads;
    segment_ = static_cast<int>(i % params_.n_splits);
    const int64_t row = i / params_.n_splits;
    n_tokens_ = rows.n_tokens[row];
    first_row_ = static_cast<int>(block) * T::kRows;
    const int first = first_row_ / params_.group;
    if (first >= n_tokens_) return false;
    const int last = min((first_row_ + T::kRows - 1) / params_.group, n_tokens_ - 1);
    start_ = static_cast<int>(rows.start[row]);
    token_ = rows.token[row];
    first_position_ = start_ + first;
    last_position_ = start_ + last;
    pages_ = rows.pages + row * rows.pages_stride;
    // Causal: tiles past the block's last position are not visited.
    const int tiles = last_position_ / kTilePositions + 1;
    first_tile_ = 0;
    end_tile_ = tiles;
    if (params_.parts != nullptr) {
      first_tile_ = segment_ * kSegmentTiles;
      end_tile_ = min(tiles, first_tile_ + kSegmentTiles);
    }
    return first_tile_ < end_tile_;
  }

  // Token of a row of the block; >= n_tokens_ if the row does not exist.
  __device__ int token_of(int row) const { return (first_row_ + row) / params_.group; }
  __device__ int head_of(int row) const {
    return head_ * params_.group + (first_row_ + row) % params_.group;
  }
  // The row's position; -1 (sees nothing) if the row does not exist.
  __device__ int position_of(int row) const {
    const int token = token_of(row);
    return token < n_tokens_ ? start_ + token : -1;
  }

  // q of the block's rows into shared memory, zeros for rows that do not exist.
  __device__ void load_queries() {
    constexpr int kChunks = T::kDim / 8;
    const ConstHeads& q = params_.q;
    for (int i = threadIdx.x; i < T::kRows * kChunks; i += T::kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int token = token_of(row);
      uint4 x = make_uint4(0, 0, 0, 0);
      if (token < n_tokens_) {
        const auto* p = static_cast<const __nv_bfloat16*>(q.data) +
                        (token_ + token) * q.token_stride + head_of(row) * q.head_stride +
                        chunk * 8;
        if (params_.pieces) {
          x = *reinterpret_cast<const uint4*>(p);
        } else {
          const auto* bits = reinterpret_cast<const uint16_t*>(p);
          x.x = bits[0] | uint32_t{bits[1]} << 16, x.y = bits[2] | uint32_t{bits[3]} << 16;
          x.z = bits[4] | uint32_t{bits[5]} << 16, x.w = bits[6] | uint32_t{bits[7]} << 16;
        }
      }
      *reinterpret_cast<uint4*>(reinterpret_cast<char*>(shared_.query) +
                                chunk_at<T::kDim>(row, chunk)) = x;
    }
  }

  // Warp 0: each lane holds the index of one of the 32 pages being fetched and of one of the
  // next 32.
  __device__ int32_t page_of(int group) const {
    const int i = group * kLanePages + lane_;
    return i <= last_position_ / kKvPage ? pages_[i] : -1;
  }
  __device__ void fetch_pages(int group) {
    group_ = group;
    page_ = page_of(group);
    next_page_ = page_of(group + 1);
  }

  // Warp 0: starts the copies of unit u, k (even) or v (odd) of tile first_tile_ + u / 2, one page
  // per lane. Its buffer must be free.
  __device__ void fetch_unit(int u) {
    const int tile = first_tile_ + u / 2;
    if (tile >= end_tile_) return;
    if (tile / kLaneTiles != group_) {
      group_ = tile / kLaneTiles;
      page_ = next_page_;
      next_page_ = page_of(group_ + 1);
    }
    // Pages past the last position are not copied: their part of the buffer keeps old data, which
    // masks and clear_beyond() keep out.
    constexpr uint32_t kBytes = kKvPage * T::kDim * 2;
    const int first = tile * kTilePages;
    const int n = min(kTilePages, last_position_ / kKvPage + 1 - first);
    uint64_t* const barrier = &shared_.barrier[u % 3];
    const int32_t page = __shfl_sync(~0u, page_, first % kLanePages + lane_ % kTilePages);
    if (lane_ == 0) barrier_expect(barrier, static_cast<uint32_t>(n) * kBytes);
    __syncwarp();
    if (lane_ < n) {
      const char* from = u % 2 == 0 ? params_.kv.keys(page, head_) : params_.kv.values(page, head_);
      bulk_copy(&shared_.unit[u % 3][lane_ * kKvPage * T::kDim], from, kBytes, barrier);
    }
  }
  __device__ void wait_unit(int u) {
    barrier_wait(&shared_.barrier[u % 3], static_cast<uint32_t>(u / 3) & 1);
  }

  __device__ void attend(int tile, Partial<T>& part) {
    const int unit = 2 * (tile - first_tile_);
    const int base = tile * kTilePositions;
    if (unit > 0) {
      __syncthreads();  // (a)
      if (warp_ == 0) fetch_unit(unit + 2);
    }
    wait_unit(unit);
    float score[T::kM][T::kS][4];
    scores(unit, score);
    // True if the block's first row does not see the whole tile.
    const bool masked = base + kTilePositions - 1 > first_position_;
    scale(base, masked, score);
    __syncthreads();  // (b)
    if (warp_ == 0) fetch_unit(unit + 3);
    float shrink[T::kM][2];
    weigh(score, part, shrink);
    wait_unit(unit + 1);
    bool bad = false;
    if (masked) {
      if (base + kTilePositions - 1 > last_position_) clear_beyond(unit + 1, base);
      bad = later_values_are_bad(unit + 1, base);
    }
    const bool apart = __syncthreads_or(bad) != 0;  // (c)
    add_up(part, shrink);
    if (apart) {
      add_values<true>(unit + 1, base, part, shrink);
    } else {
      add_values<false>(unit + 1, base, part, shrink);
    }
  }

  // score[m][s]: q k^T of all rows with this warp's positions.
  __device__ void scores(int unit, float score[T::kM][T::kS][4]) {
    const int lane = anew(lane_);
    const uint32_t query = shared_address(shared_.query);
    const uint32_t keys = shared_address(shared_.unit[unit % 3]);
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
#pragma unroll
      for (int s = 0; s < T::kS; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) score[m][s][i] = 0.0f;
      }
    }
    // 32 dims per turn, two k16 products. b: k of eight positions [8 x 32]; a: q of 16 rows [16 x
    // 16]. A score is one sum over the dims in order.
#pragma unroll 4
    for (int k = 0; k < T::kDim / 32; ++k) {
      uint32_t b[T::kS][4];
#pragma unroll
      for (int s = 0; s < T::kS; ++s) {
        const int position = (warp_ * T::kS + s) * 8 + lane % 8;
        load_matrices(b[s], keys + chunk_at<T::kDim>(position, 4 * k + lane / 8));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int m = 0; m < T::kM; ++m) {
          uint32_t a[4];
          const int row = m * 16 + lane % 16;
          load_matrices(a, query + chunk_at<T::kDim>(row, 4 * k + 2 * half + lane / 16));
#pragma unroll
          for (int s = 0; s < T::kS; ++s) {
            mma_bf16(score[m][s], a[0], a[1], a[2], a[3], b[s][2 * half], b[s][2 * half + 1]);
          }
        }
      }
    }
  }

  // Scores times scale * log2(e); -inf where the row must not see. The maxima over the warp's
  // positions go to most[]. masked: some row does not see all of the tile.
  __device__ void scale(int base, bool masked, float score[T::kM][T::kS][4]) {
    const int column = base + warp_ * T::kS * 8 + 2 * (lane_ % 4);
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m * 16 + 8 * h + lane_ / 4;
        const int position = masked ? position_of(anew(row)) : 0;
        float most = -INFINITY;
#pragma unroll
        for (int s = 0; s < T::kS; ++s) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = score[m][s][2 * h + i];
            x *= params_.scale_log2;
            if (masked && column + 8 * s + i > position) x = -INFINITY;
            most = fmaxf(most, x);
          }
        }
        // Over the four lanes that share the row.
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if (lane_ % 4 == 0) as_floats(shared_.most[row])[warp_] = most;
      }
    }
  }

  // The rows' new maxima over most[] and part.most; the weights 2^(score - maximum) to weight[],
  // their sums over eight positions to sum[]. shrink: factor for everything summed so far.
  __device__ void weigh(float score[T::kM][T::kS][4], Partial<T>& part, float shrink[T::kM][2]) {
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m * 16 + 8 * h + lane_ / 4;
        float most = part.most[m][h];
#pragma unroll
        for (int w = 0; w < T::kWarps / 4; ++w) {
          const float4 four = shared_.most[row][w];
          most = fmaxf(most, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
        }
        // A row that has seen nothing yet: all weights are 2^-inf = 0, not NaN.
        const float from = most == -INFINITY ? 0.0f : most;
        shrink[m][h] = exp2_fast(part.most[m][h] - from);
        part.most[m][h] = most;
#pragma unroll
        for (int s = 0; s < T::kS; ++s) {
          const float x = exp2_fast(score[m][s][2 * h] - from);
          const float y = exp2_fast(score[m][s][2 * h + 1] - from);
          const int tile = warp_ * T::kS + s;
          *reinterpret_cast<uint32_t*>(
              &shared_.weight[row * T::kWeightStride + tile * 8 + 2 * (lane_ % 4)]) =
              pack_bf16(x, y);
          float sum = x + y;
          sum += __shfl_xor_sync(~0u, sum, 1);
          sum += __shfl_xor_sync(~0u, sum, 2);
          if (lane_ % 4 == 0) as_floats(shared_.sum[row])[tile] = sum;
        }
      }
    }
  }

  // part.sum: the tile's weights, in one fixed tree.
  __device__ void add_up(Partial<T>& part, const float shrink[T::kM][2]) {
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m * 16 + 8 * h + lane_ / 4;
        const float4 x = shared_.sum[row][0], y = shared_.sum[row][1];
        const float sum = ((x.x + x.y) + (x.z + x.w)) + ((y.x + y.y) + (y.z + y.w));
        part.sum[m][h] = __fmaf_rn(part.sum[m][h], shrink[m][h], sum);
      }
    }
  }

  // Clears v of positions that no row sees: their memory may hold NaN, and 0 * NaN is NaN.
  __device__ void clear_beyond(int unit, int base) {
    constexpr int kChunks = T::kDim / 8;
    const int first = last_position_ + 1 - base;
    uint4* const values = reinterpret_cast<uint4*>(shared_.unit[unit % 3]);
    for (int i = first * kChunks + threadIdx.x; i < kTilePositions * kChunks; i += T::kThreads) {
      values[i] = make_uint4(0, 0, 0, 0);
    }
  }

  // True if this thread finds an infinite or NaN v at a position that only some rows see.
  __device__ bool later_values_are_bad(int unit, int base) const {
    constexpr int kChunks = T::kDim / 8;
    const int first = max(first_position_ + 1 - base, 0);
    const int end = min(last_position_ + 1 - base, kTilePositions);
    const uint4* const values = reinterpret_cast<const uint4*>(shared_.unit[unit % 3]);
    bool bad = false;
    for (int i = first * kChunks + threadIdx.x; i < end * kChunks; i += T::kThreads) {
      const uint4 x = values[i];
      bad = bad || bf16_is_bad(x.x) || bf16_is_bad(x.y) || bf16_is_bad(x.z) || bf16_is_bad(x.w);
    }
    return bad;
  }

  // value = value * shrink + weights v. kApart: some rows must not see a v that is infinite or NaN;
  // then each token gets a product of its own with the v that it must not see masked (add_apart()).
  template <bool kApart>
  __device__ void add_values(int unit, int base, Partial<T>& part, const float shrink[T::kM][2]) {
    const int lane = anew(lane_);
    const uint32_t weights = shared_address(shared_.weight);
    const uint32_t values = shared_address(shared_.unit[unit % 3]);
    // 32 positions per turn. a: weights [16 rows x 32]; b: v [32 x 8 columns]. Order of a sum:
    // positions in order, after one multiplication by shrink.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[T::kM][2][4];
#pragma unroll
      for (int m = 0; m < T::kM; ++m) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int row = m * 16 + lane % 16, chunk = 4 * half + 2 * k + lane / 16;
          load_matrices(a[m][k], weights + static_cast<uint32_t>(row * T::kWeightStride * 2) +
                                     static_cast<uint32_t>(chunk * 16));
        }
      }
#pragma unroll
      for (int v = 0; v < T::kV; ++v) {
        uint32_t b[4];
        load_matrices_transposed(b,
                                 values + chunk_at<T::kDim>(32 * half + lane, warp_ * T::kV + v));
#pragma unroll
        for (int m = 0; m < T::kM; ++m) {
          float* const value = part.value[m][v];
          if (half == 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) value[i] *= shrink[m][i / 2];
          }
          if constexpr (kApart) {
            add_apart(m, base + 32 * half, a[m], b, value);
          } else {
            multiply(value, a[m], b[0], b[1], b[2], b[3]);
          }
        }
      }
    }
  }

  // value += weights v over 32 positions.
  __device__ static void multiply(float value[4], const uint32_t a[2][4], uint32_t b0, uint32_t b1,
                                  uint32_t b2, uint32_t b3) {
    mma_bf16(value, a[0][0], a[0][1], a[0][2], a[0][3], b0, b1);
    mma_bf16(value, a[1][0], a[1][1], a[1][2], a[1][3], b2, b3);
  }

  // multiply() for the rows of tile m, once per token; each row keeps its own token's result.
  __device__ void add_apart(int m, int base, const uint32_t a[2][4], const uint32_t b[4],
                            float value[4]) {
    const int first = token_of(m * 16), last = min(token_of(m * 16 + 15), n_tokens_ - 1);
    float out[4] = {value[0], value[1], value[2], value[3]};
    for (int token = first; token <= last; ++token) {
      float sum[4] = {value[0], value[1], value[2], value[3]};
      // Each lane's b holds positions 2 (lane % 4) and the next, and those + 8, 16 and 24.
      const int seen = start_ + token - base - 2 * (lane_ % 4);
      const auto keep = [&](uint32_t bits, int position) {
        return position + 1 <= seen ? bits : position <= seen ? bits & 0xffffu : 0u;
      };
      multiply(sum, a, keep(b[0], 0), keep(b[1], 8), keep(b[2], 16), keep(b[3], 24));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (token_of(m * 16 + 8 * (i / 2) + lane_ / 4) == token) out[i] = sum[i];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = out[i];
  }

  // body(m, h, packed token, head) for each row of this thread that exists.
  template <typename Body>
  __device__ void each_row(const Body& body) const {
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m * 16 + 8 * h + lane_ / 4;
        const int token = token_of(row);
        if (token < n_tokens_) body(m, h, token_ + token, head_of(row));
      }
    }
  }
  __device__ int column(int v) const { return (warp_ * T::kV + v) * 8 + 2 * (lane_ % 4); }

  // The segment's (weighted v, maximum, sum) to params.parts; attention_host.cu's kernel folds
  // them.
  __device__ void write_part(const Partial<T>& part) const {
    each_row([&](int m, int h, int64_t token, int head) {
      float* const to = params_.part(token, head, segment_);
#pragma unroll
      for (int v = 0; v < T::kV; ++v) {
        *reinterpret_cast<float2*>(to + column(v)) =
            make_float2(part.value[m][v][2 * h], part.value[m][v][2 * h + 1]);
      }
      if (warp_ == 0 && lane_ % 4 == 0) {
        *reinterpret_cast<float2*>(to + T::kDim) = make_float2(part.most[m][h], part.sum[m][h]);
      }
    });
  }

  __device__ void write_out(const Total<T>& total) const {
    const Heads& out = params_.out;
    each_row([&](int m, int h, int64_t token, int head) {
      auto* const to =
          static_cast<__nv_bfloat16*>(out.data) + token * out.token_stride + head * out.head_stride;
      const float factor = normaliser(total.sum(m, h));
#pragma unroll
      for (int v = 0; v < T::kV; ++v) {
        const float4 four = total.value(m, v);
        const float x = (h == 0 ? four.x : four.z) * factor;
        const float y = (h == 0 ? four.y : four.w) * factor;
        if (params_.pieces) {
          *reinterpret_cast<uint32_t*>(to + column(v)) = pack_bf16(x, y);
        } else {
          to[column(v)] = __float2bfloat16_rn(x);
          to[column(v) + 1] = __float2bfloat16_rn(y);
        }
      }
    });
  }

  const AttentionParams& params_;
  Shared<T>& shared_;
  const int warp_, lane_;
  int head_, segment_, n_tokens_, first_row_, start_;
  int first_position_, last_position_;
  int first_tile_, end_tile_;
  int64_t token_;
  const int32_t* pages_;
  int32_t page_, next_page_;
  int group_;
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, blocks_of<T>())
    attention_kernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  start_in_turn();
  Block<T>(params, *reinterpret_cast<Shared<T>*>(memory)).run();
}

template <int kDim, int kM, int kWarps>
constexpr AttentionInstance instance() {
  using T = Traits<kDim, kM, kWarps>;
  return {kDim,
          T::kRows,
          T::kThreads,
          blocks_of<T>(),
          static_cast<int>(sizeof(Shared<T>)),
          attention_kernel<T>};
}

constexpr AttentionInstance kInstances[] = {
    instance<64, 1, 4>(),  instance<64, 2, 4>(),  instance<64, 4, 4>(),
    instance<128, 1, 4>(), instance<128, 2, 4>(), instance<128, 4, 4>(),
    instance<256, 1, 4>(), instance<256, 2, 4>(), instance<256, 4, 8>(),
};

}  // namespace

const AttentionInstance& attention_instance(int32_t dim, int64_t n_rows) {
  const AttentionInstance* out = nullptr;
  for (const AttentionInstance& x : kInstances) {
    if (x.dim != dim) continue;
    out = &x;
    if (x.rows >= n_rows) break;
  }
  REPLAYSSM_CHECK(out != nullptr, "head dim ", dim);
  return *out;
}

}  // namespace replayssm::ops::cuda
