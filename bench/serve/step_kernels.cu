#include "bench/serve/step_kernels.h"

namespace replayssm::cuda {
namespace {

constexpr int kThreads = 128;

unsigned blocks_of(int32_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

__global__ void force_kernel(int32_t n_rows, const int32_t* stands, const int64_t* first_token,
                             const int32_t* drawn, int32_t* n_accepted, int32_t* next) {
  const int r = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (r >= n_rows || stands[r] <= 0) return;
  n_accepted[r] = stands[r] - 1;
  next[r] = drawn[first_token[r] + stands[r] - 1];
}

__global__ void rebuild_kernel(int32_t n_rows, const BaselineRow* from, const int32_t* n_accepted,
                               BaselineRow* to) {
  const int r = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (r >= n_rows) return;
  const BaselineRow& row = from[r];
  to[r] = {row.read_slot, n_accepted[r] + 1, row.read_slot, 0, row.token, row.token};
}

__global__ void gate_kernel(const volatile uint64_t* released, uint64_t* n_passed) {
  const uint64_t step = ++*n_passed;
  while (*released < step) {
  }
  __threadfence_system();  // what the host wrote before is read after
}

}  // namespace

void wait_for_release(const uint64_t* released, uint64_t* n_passed, cudaStream_t stream) {
  gate_kernel<<<1, 1, 0, stream>>>(released, n_passed);
}

void force_accepted(int32_t n_rows, const int32_t* stands, const int64_t* first_token,
                    const int32_t* drawn, int32_t* n_accepted, int32_t* next, cudaStream_t stream) {
  force_kernel<<<blocks_of(n_rows), kThreads, 0, stream>>>(n_rows, stands, first_token, drawn,
                                                           n_accepted, next);
}

void make_rebuild_rows(int32_t n_rows, const BaselineRow* from, const int32_t* n_accepted,
                       BaselineRow* to, cudaStream_t stream) {
  rebuild_kernel<<<blocks_of(n_rows), kThreads, 0, stream>>>(n_rows, from, n_accepted, to);
}

}  // namespace replayssm::cuda
