// expert_linear() for FP8 weights: a persistent kernel that streams the weights through the tensor
// cores.
//
// An item is 128 outputs of one expert for up to 64 of its rows; each block processes items in
// turn. One producer warp fetches 128 inputs of weights and x at a time into a ring of stages,
// running on across items. Two consumer warpgroups multiply, 64 outputs each. Outputs are the rows
// of the products, rows of x the columns: 8, 16, 32 or 64 of them, and a column's sum does not
// depend on the number. Sums over 128 inputs are added in fp32, with the block's scales if there
// are any, because the tensor cores keep few bits of long sums.
#include "ops/cuda/device.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/linear_fp8_cuda.h"
#include "ops/cuda/moe_cuda.h"
#include "ops/cuda/tensor_map_cuda.h"

namespace replayssm::ops::cuda {
namespace {

using replayssm::cuda::barrier_expect;
using replayssm::cuda::barrier_fence;
using replayssm::cuda::barrier_init;
using replayssm::cuda::barrier_wait;

constexpr int kGroups = 2;    // consumer warpgroups
constexpr int kOutputs = 64;  // per warpgroup
constexpr int kTile = kGroups * kOutputs;
constexpr int kDepth = 128;  // inputs per stage: kFp8Block
constexpr int kRows = 64;    // rows per item, at most
constexpr int kStages = 4;
constexpr int kThreads = 128 * kGroups + 32;
constexpr int kBlocksPerSm = 2;
constexpr int kBoxRows = 8;

struct Args {
  const float* scales;
  int64_t scales_an_expert, scale_stride;
  int32_t n_experts;
  int64_t n_out, n_in;
  const int32_t* first;  // null: one expert, of all rows
  int32_t rows;
  int32_t part_rows;  // of an item, at most: kRows or fewer
  const float* x_scales;
  int64_t x_rows;
  void* y;
  DType y_dtype;
  int64_t y_stride;
};

__device__ __forceinline__ int32_t first_row(const Args& args, int32_t e) {
  return args.first == nullptr ? e * args.rows : args.first[e];
}

struct Maps {
  CUtensorMap weight, x;
};

struct Stage {
  uint8_t weight[kTile * kDepth];
  uint8_t x[kRows * kDepth];
};

struct Shared {
  Stage stages[kStages];
  uint64_t full[kStages], empty[kStages];
};

struct Item {
  int32_t expert;
  int32_t tile;
  int32_t row, n;  // rows [row, row + n) of x
  int columns;     // 8, 16, 32 or 64
  int groups;      // warpgroups that have outputs
};

// A role's position in the ring of stages.
struct Turn {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    phase ^= 1;
  }
};

// The items of a launch: an expert's rows in parts, and of each part all tiles of outputs.
class Items {
 public:
  // One warp; part: shared, [n_experts + 1].
  static __device__ void count(const Args& args, int32_t* part) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t run = (args.n_experts + 31) / 32;
    const int32_t begin = min(lane * run, args.n_experts);
    const int32_t end = min(begin + run, args.n_experts);
    int32_t mine = 0;
    for (int32_t e = begin; e < end; ++e) mine += parts_of(args, e);
    int32_t before = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t other = __shfl_up_sync(~0u, before, offset);
      if (lane >= offset) before += other;
    }
    before -= mine;
    for (int32_t e = begin; e < end; ++e) {
      part[e] = before;
      before += parts_of(args, e);
    }
    if (lane == 31) part[args.n_experts] = before;
  }

  __device__ Items(const Args& args, const int32_t* part)
      : args_(args),
        part_(part),
        n_tiles_(static_cast<int32_t>((args.n_out + kTile - 1) / kTile)),
        n_(static_cast<int64_t>(part[args.n_experts]) * n_tiles_) {}

  __device__ int64_t size() const { return n_; }
  __device__ Item operator[](int64_t i) const {
    const int32_t at = static_cast<int32_t>(i / n_tiles_);
    int32_t e = 0, end = args_.n_experts;  // part[e] <= at < part[end]
    while (end - e > 1) {
      const int32_t middle = (e + end) / 2;
      (part_[middle] <= at ? e : end) = middle;
    }
    Item item;
    item.expert = e;
    item.tile = static_cast<int32_t>(i % n_tiles_);
    item.row = first_row(args_, e) + (at - part_[e]) * args_.part_rows;
    item.n = min(first_row(args_, e + 1) - item.row, args_.part_rows);
    item.columns = item.n <= 8 ? 8 : item.n <= 16 ? 16 : item.n <= 32 ? 32 : 64;
    const int64_t outputs = args_.n_out - int64_t{item.tile} * kTile;
    item.groups = static_cast<int>(min((outputs + kOutputs - 1) / kOutputs, int64_t{kGroups}));
    return item;
  }

 private:
  static __device__ int32_t parts_of(const Args& args, int32_t e) {
    const int32_t n = first_row(args, e + 1) - first_row(args, e);
    return (n + args.part_rows - 1) / args.part_rows;
  }

  const Args& args_;
  const int32_t* part_;
  int32_t n_tiles_;
  int64_t n_;
};

__device__ int32_t n_steps(const Args& args) {
  return static_cast<int32_t>((args.n_in + kDepth - 1) / kDepth);
}

// One thread.
__device__ void fetch(const Args& args, const Items& items, const Maps& maps, Shared& shared) {
  Turn turn;
  for (int64_t i = blockIdx.x; i < items.size(); i += gridDim.x) {
    const Item item = items[i];
    const int32_t output = static_cast<int32_t>(item.expert * args.n_out) + item.tile * kTile;
    const auto bytes = static_cast<uint32_t>((item.groups * kOutputs + item.columns) * kDepth);
    for (int32_t k = 0; k < n_steps(args); ++k) {
      Stage& stage = shared.stages[turn.stage];
      uint64_t* const full = &shared.full[turn.stage];
      barrier_wait(&shared.empty[turn.stage], turn.phase ^ 1);
      barrier_expect(full, bytes);
      for (int h = 0; h < item.groups; ++h) {
        copy_box(stage.weight + h * kOutputs * kDepth, &maps.weight, k * kDepth,
                 output + h * kOutputs, full);
      }
      for (int r = 0; r < item.columns; r += kBoxRows) {
        copy_box(stage.x + r * kDepth, &maps.x, k * kDepth, item.row + r, full);
      }
      turn.next();
    }
  }
}

// A warpgroup's outputs of an item.
template <bool kBlocks, int kN>
__device__ void multiply(const Args& args, const Item& item, int group, Shared& shared,
                         Turn& turn) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
  const int g = lane / 4, c = lane % 4;
  const float* const scales = args.scales + item.expert * args.scales_an_expert;
  const int32_t steps = n_steps(args);
  constexpr bool kAhead = kN < 64;  // for which there are registers
  float sum[kN / 2] = {};
  static_assert(kTile == kFp8Block && kDepth == kFp8Block);
  // Columns that have no row repeat the last one's scale; what comes of them is not stored.
  const auto row_of = [&](int j, int i) { return item.row + min(8 * j + 2 * c + i, item.n - 1); };
  float next[kN / 4] = {}, next_scale = 1.0f;  // of the step that comes
  const auto ask = [&](int32_t k) {
    if constexpr (!kBlocks) return;
    next_scale = scales[item.tile * args.scale_stride + k];
#pragma unroll
    for (int j = 0; j < kN / 4; ++j)
      next[j] = args.x_scales[k * args.x_rows + row_of(j / 2, j % 2)];
  };
  if (kAhead) ask(0);
  for (int32_t k = 0; k < steps; ++k) {
    if (!kAhead) ask(k);
    Stage& stage = shared.stages[turn.stage];
    const uint64_t a = matrix_of(stage.weight + group * kOutputs * kDepth);
    const uint64_t b = matrix_of(stage.x);
    float part[kN / 2];
    barrier_wait(&shared.full[turn.stage], turn.phase);
    products_begin();
#pragma unroll
    for (int i = 0; i < kDepth / 32; ++i) {
      multiply_e4m3<kN>(part, a + static_cast<uint64_t>(2 * i), b + static_cast<uint64_t>(2 * i),
                        i > 0);
    }
    products_end();
    if (lane == 0) barrier_arrive(&shared.empty[turn.stage]);
    turn.next();
    float factor[kN / 4];
#pragma unroll
    for (int j = 0; j < kN / 4; ++j) factor[j] = kBlocks ? next_scale * next[j] : 1.0f;
    if (kAhead && k + 1 < steps) ask(k + 1);
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      sum[j] = __fmaf_rn(part[j], factor[j / 4 * 2 + j % 2], sum[j]);
    }
  }
  const int64_t output = int64_t{item.tile} * kTile + group * kOutputs + thread / 32 * 16 + g;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + 2 * c + i % 2;
      const int64_t o = output + 8 * (i / 2), row = item.row + column;
      if (column >= item.n || o >= args.n_out) continue;
      float value = sum[4 * j + i];
      if (!kBlocks) value *= scales[o] * args.x_scales[row];
      store_one(args.y, args.y_dtype, row * args.y_stride + o, value);
    }
  }
}

// An item of other warpgroups alone.
__device__ void pass_by(const Args& args, Shared& shared, Turn& turn) {
  for (int32_t k = 0; k < n_steps(args); ++k) {
    barrier_wait(&shared.full[turn.stage], turn.phase);
    if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[turn.stage]);
    turn.next();
  }
}

template <bool kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    experts_fp8_kernel(const __grid_constant__ Args args, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  auto* const part = reinterpret_cast<int32_t*>(memory + sizeof(Shared));
  start_in_turn();
  if (threadIdx.x < 32) {
    Items::count(args, part);
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        barrier_init(&shared.full[s], 1);
        barrier_init(&shared.empty[s], 4 * kGroups);
      }
      barrier_fence();
    }
  }
  __syncthreads();
  const Items items(args, part);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == kGroups) {
    if (threadIdx.x % 32 == 0) fetch(args, items, maps, shared);
    return;
  }
  Turn turn;
  for (int64_t i = blockIdx.x; i < items.size(); i += gridDim.x) {
    const Item item = items[i];
    if (group >= item.groups) {
      pass_by(args, shared, turn);
    } else if (item.columns == 8) {
      multiply<kBlocks, 8>(args, item, group, shared, turn);
    } else if (item.columns == 16) {
      multiply<kBlocks, 16>(args, item, group, shared, turn);
    } else if (item.columns == 32) {
      multiply<kBlocks, 32>(args, item, group, shared, turn);
    } else {
      multiply<kBlocks, 64>(args, item, group, shared, turn);
    }
  }
}

void launch(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
            const Quantised& x, Matrix y, int32_t part_rows) {
  const LinearCuda& w = experts.stack;
  const bool blocks = w.type == WeightType::kFp8Block;
  REPLAYSSM_CHECK((blocks || w.type == WeightType::kFp8Row) && w.n_in % 16 == 0, "experts of ",
                  w.n_out, " x ", w.n_in);
  REPLAYSSM_CHECK(y.rows <= x.rows && y.cols == w.n_out && is_activation(y.dtype), "x ", x.rows,
                  " rows, y ", y.rows, " x ", y.cols, ", weight ", w.n_out, " x ", w.n_in);
  REPLAYSSM_CHECK(experts.n_experts <= kMaxExperts, experts.n_experts, " experts");
  if (y.rows == 0) return;
  Args args = {};
  args.scales = w.scales;
  args.scale_stride = fp8_scale_stride(w.n_in);
  args.scales_an_expert =
      blocks ? (w.n_out + kFp8Block - 1) / kFp8Block * args.scale_stride : w.n_out;
  args.n_experts = experts.n_experts;
  args.n_out = w.n_out;
  args.n_in = w.n_in;
  args.first = first;
  args.rows = static_cast<int32_t>(y.rows);
  args.part_rows = part_rows;
  args.x_scales = x.scales;
  args.x_rows = x.rows;
  args.y = y.data;
  args.y_dtype = y.dtype;
  args.y_stride = y.stride;
  Maps maps = {};
  maps.weight = byte_map(w.weight, w.n_in, experts.n_experts * w.n_out, kOutputs);
  maps.x = byte_map(x.data, w.n_in, x.rows, kBoxRows);
  const int64_t parts = std::min<int64_t>(experts.n_experts, y.rows) + y.rows / part_rows;
  const int64_t items = parts * ((w.n_out + kTile - 1) / kTile);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(items, kBlocksPerSm * context.n_sms()));
  const auto bytes = sizeof(Shared) + (static_cast<size_t>(experts.n_experts) + 1) * 4;
  auto* const kernel = blocks ? experts_fp8_kernel<true> : experts_fp8_kernel<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(sizeof(Shared)) + (kMaxExperts + 1) * 4);
  launch_in_turn(context, "expert_linear", kernel, grid, kThreads, bytes, args, maps);
}

}  // namespace

void expert_linear(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
                   const Quantised& x, Matrix y) {
  launch(context, experts, first, x, y, kRows);
}

void linear_fp8_narrow(const CudaContext& context, const LinearCuda& weight, const Quantised& x,
                       Matrix y) {
  launch(context, {weight, 1}, nullptr, x, y, /*part_rows=*/16);
}

}  // namespace replayssm::ops::cuda
