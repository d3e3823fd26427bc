#include <vector>

#include "ops/cuda/device.cuh"
#include "ops/cuda/rope_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    angles_kernel(const double* frequencies, int64_t n_pairs, const int64_t* positions,
                  int64_t n_tokens, double factor, float* table) {
  start_in_turn();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n_tokens * n_pairs) return;
  const int64_t token = i / n_pairs, pair = i % n_pairs;
  double sine, cosine;
  sincos(static_cast<double>(positions[token]) * frequencies[pair], &sine, &cosine);
  float* const row = table + token * 2 * n_pairs;
  row[pair] = static_cast<float>(factor * cosine);
  row[n_pairs + pair] = static_cast<float>(factor * sine);
}

__global__ void __launch_bounds__(kThreads)
    apply_kernel(const float* table, int64_t n_pairs, const __grid_constant__ Heads x) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= x.tokens * x.heads * n_pairs) return;
  const int64_t pair = i % n_pairs, row = i / n_pairs;
  const int64_t head = row % x.heads, token = row / x.heads;
  const float* const angles = table + token * 2 * n_pairs;
  const float c = angles[pair], s = angles[n_pairs + pair];
  const int64_t from = token * x.token_stride + head * x.head_stride + pair;
  const float a = load_one(x.data, x.dtype, from);
  const float b = load_one(x.data, x.dtype, from + n_pairs);
  store_one(x.data, x.dtype, from, __fmaf_rn(a, c, -(b * s)));
  store_one(x.data, x.dtype, from + n_pairs, __fmaf_rn(b, c, a * s));
}

}  // namespace

void rope_frequencies(const CudaContext& context, int32_t rotary_dims, double theta,
                      double* frequencies, const RopeScaling& scaling) {
  const std::vector<double> host = ops::rope_frequencies(rotary_dims, theta, scaling);
  cudaError_t error = cudaMemcpyAsync(frequencies, host.data(), host.size() * sizeof(double),
                                      cudaMemcpyHostToDevice, context.stream());
  if (error == cudaSuccess) error = cudaStreamSynchronize(context.stream());
  if (error != cudaSuccess) fail("rope_frequencies: ", cudaGetErrorString(error));
}

void rope_angles(const CudaContext& context, const double* frequencies, int32_t rotary_dims,
                 const int64_t* positions, int64_t n_tokens, float* table,
                 double attention_factor) {
  const int64_t n_pairs = rotary_dims / 2;
  if (n_tokens * n_pairs == 0) return;
  launch_in_turn(context, "rope_angles", angles_kernel, blocks_for(n_tokens * n_pairs, kThreads),
                 kThreads, 0, frequencies, n_pairs, positions, n_tokens, attention_factor, table);
}

void rope_apply(const CudaContext& context, const float* table, int32_t rotary_dims, Heads x) {
  REPLAYSSM_CHECK(rotary_dims <= x.dim && is_activation(x.dtype), rotary_dims, " rotary dims of ",
                  x.dim);
  const int64_t n_pairs = rotary_dims / 2;
  const int64_t count = x.tokens * x.heads * n_pairs;
  if (count == 0) return;
  apply_kernel<<<blocks_for(count, kThreads), kThreads, 0, context.stream()>>>(table, n_pairs, x);
  check_launch("rope_apply");
}

}  // namespace replayssm::ops::cuda
