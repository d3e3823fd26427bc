#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "replay/cuda/sequence_cuda.h"
#include "replay/cuda/tile.h"

namespace replayssm {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpSize = 32;

// ---- commits

__global__ void commit_kernel(const __grid_constant__ Grid grid,
                              const __grid_constant__ CommitArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.n_rows || commit_row(grid, args, static_cast<int32_t>(i))) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(args.n_refused), 1ull);
}

// ---- checkpoints, one warp per state row

// int8 is stored biased by 128.
template <DType kType>
__device__ float read_element(const void* slot, int64_t at) {
  if constexpr (kType == DType::kF32) return static_cast<const float*>(slot)[at];
  if constexpr (kType == DType::kF16) return __half2float(static_cast<const __half*>(slot)[at]);
  if constexpr (kType == DType::kBF16) {
    return __bfloat162float(static_cast<const __nv_bfloat16*>(slot)[at]);
  }
  return static_cast<float>(static_cast<const uint8_t*>(slot)[at] - 128);
}

template <DType kType>
__device__ void write_element(void* slot, int64_t at, float x) {
  if constexpr (kType == DType::kF32) {
    static_cast<float*>(slot)[at] = x;
  } else if constexpr (kType == DType::kF16) {
    constexpr float kMax = 65504.0f;  // saturates; NaN stays NaN
    const float held = x > kMax ? kMax : x < -kMax ? -kMax : x;
    static_cast<__half*>(slot)[at] = __float2half_rn(held);
  } else if constexpr (kType == DType::kBF16) {
    static_cast<__nv_bfloat16*>(slot)[at] = __float2bfloat16_rn(x);
  } else {
    const int q = __float2int_rn(fminf(fmaxf(x, -127.0f), 127.0f));
    static_cast<uint8_t*>(slot)[at] = static_cast<uint8_t>(q + 128);
  }
}

template <DType kType>
__global__ void export_kernel(int value_dim, int key_dim, int64_t n_rows, const void* slot,
                              const float* scale, float* canonical) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  if (row >= n_rows) return;
  for (int k = threadIdx.x % kWarpSize; k < key_dim; k += kWarpSize) {
    float x = read_element<kType>(slot, cuda::stored_index(kType, value_dim, key_dim, row, k));
    if constexpr (kType == DType::kI8) x = __fmul_rn(x, scale[row]);
    canonical[row * key_dim + k] = x;
  }
}

// A row's int8 scale, as the CPU's: max |row| / 127 to seventeen bits, so that q * scale is exact
// and the scale of the row so given the same again; zero below 2^-100; NaN where the row is not
// finite, so that it stays visible. *inverse is what values are multiplied with.
__device__ float row_scale(const float* row, int key_dim, float* inverse) {
  float largest = 0, not_finite = 0;
  for (int k = threadIdx.x % kWarpSize; k < key_dim; k += kWarpSize) {
    largest = fmaxf(largest, fabsf(row[k]));
    not_finite = __fmaf_rn(row[k], 0.0f, not_finite);
  }
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    not_finite = __fadd_rn(not_finite, __shfl_xor_sync(0xffffffffu, not_finite, step));
  }
  const float full = __fmul_rn(largest, 1.0f / 127.0f);
  const float split = __fmul_rn(full, 129.0f);
  const float scale = largest < 0x1p-100f ? 0.0f : __fsub_rn(split, __fsub_rn(split, full));
  *inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
  return __fadd_rn(scale, not_finite);
}

template <DType kType>
__global__ void import_kernel(int value_dim, int key_dim, int64_t n_rows, const float* canonical,
                              void* slot, float* scale) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  if (row >= n_rows) return;
  const float* from = canonical + row * key_dim;
  const int lane = threadIdx.x % kWarpSize;
  float inverse = 1.0f;
  if constexpr (kType == DType::kI8) {
    const float s = row_scale(from, key_dim, &inverse);
    if (lane == 0) scale[row] = s;
  }
  for (int k = lane; k < key_dim; k += kWarpSize) {
    float x = from[k];
    if constexpr (kType == DType::kI8) x = __fmul_rn(x, inverse);
    write_element<kType>(slot, cuda::stored_index(kType, value_dim, key_dim, row, k), x);
  }
}

// body.template operator()<dtype>()
template <typename Body>
void with_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<DType::kF32>();
    case DType::kF16:
      return body.template operator()<DType::kF16>();
    case DType::kBF16:
      return body.template operator()<DType::kBF16>();
    case DType::kI8:
      return body.template operator()<DType::kI8>();
  }
}

int64_t state_rows(const Problem& p) { return int64_t{p.n_heads} * p.value_dim; }
unsigned blocks_of(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

void commit_cuda(const Grid& grid, const CommitArgs& args, cudaStream_t stream) {
  if (args.n_rows == 0) return;
  commit_kernel<<<blocks_of(args.n_rows), kThreads, 0, stream>>>(grid, args);
}

void export_checkpoint_cuda(const Problem& p, const void* slot, const float* scale,
                            float* canonical, cudaStream_t stream) {
  with_dtype(p.checkpoint, [&]<DType kType>() {
    export_kernel<kType><<<blocks_of(state_rows(p) * kWarpSize), kThreads, 0, stream>>>(
        p.value_dim, p.key_dim, state_rows(p), slot, scale, canonical);
  });
}

void import_checkpoint_cuda(const Problem& p, const float* canonical, void* slot, float* scale,
                            cudaStream_t stream) {
  with_dtype(p.checkpoint, [&]<DType kType>() {
    import_kernel<kType><<<blocks_of(state_rows(p) * kWarpSize), kThreads, 0, stream>>>(
        p.value_dim, p.key_dim, state_rows(p), canonical, slot, scale);
  });
}

}  // namespace replayssm
