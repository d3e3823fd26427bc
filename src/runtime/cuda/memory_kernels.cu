#include <algorithm>

#include "runtime/cuda/memory_kernels.h"

namespace replayssm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSpans = 128;  // of a launch: they travel as its parameters
constexpr int kBlocksEach = 8;

struct Copies {
  struct One {
    char* to;
    const char* from;
    int64_t bytes;
  };
  One spans[kSpans];
};

template <typename Word>
__device__ void copy_words(const Copies::One& c, int64_t first, int64_t stride) {
  const auto* from = reinterpret_cast<const Word*>(c.from);
  auto* to = reinterpret_cast<Word*>(c.to);
  for (int64_t i = first; i < c.bytes / static_cast<int64_t>(sizeof(Word)); i += stride) {
    to[i] = from[i];
  }
}

__global__ void copy_kernel(const __grid_constant__ Copies copies) {
  const Copies::One& c = copies.spans[blockIdx.x];
  const int64_t first = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.y} * kThreads;
  const auto bits = reinterpret_cast<uintptr_t>(c.to) | reinterpret_cast<uintptr_t>(c.from) |
                    static_cast<uintptr_t>(c.bytes);
  if (bits % sizeof(uint4) == 0) {
    copy_words<uint4>(c, first, stride);
  } else {
    copy_words<char>(c, first, stride);
  }
}

__global__ void resolve_kernel(int32_t* tokens, int64_t n, const int32_t* drawn) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n && tokens[i] < 0) tokens[i] = drawn[-1 - tokens[i]];
}

}  // namespace

void copy_spans(std::span<const MemorySpan> from, std::span<const MemorySpan> to,
                cudaStream_t stream) {
  for (size_t done = 0; done < from.size(); done += kSpans) {
    const size_t n = std::min<size_t>(kSpans, from.size() - done);
    Copies copies;
    int64_t longest = 0;
    for (size_t i = 0; i < n; ++i) {
      const MemorySpan &source = from[done + i], &target = to[done + i];
      copies.spans[i] = {reinterpret_cast<char*>(target.data),
                         reinterpret_cast<const char*>(source.data), source.bytes};
      longest = std::max(longest, source.bytes);
    }
    const int64_t blocks = longest / (kThreads * static_cast<int64_t>(sizeof(uint4))) + 1;
    const dim3 grid(static_cast<unsigned>(n),
                    static_cast<unsigned>(std::min<int64_t>(blocks, kBlocksEach)));
    copy_kernel<<<grid, kThreads, 0, stream>>>(copies);
  }
}

void resolve_tokens(int32_t* tokens, int64_t n, const int32_t* drawn, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  resolve_kernel<<<blocks, kThreads, 0, stream>>>(tokens, n, drawn);
}

}  // namespace replayssm::cuda
