#include "bench/serve/bench_serve_cuda.h"
#include "core/error.h"

namespace replayssm::bench {

void run_bench_serve_cuda(const BenchServeCudaFlags&) {
  fail("--device cuda: this build has no CUDA backend; configure with the cuda preset");
}

}  // namespace replayssm::bench
