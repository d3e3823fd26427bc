#include "cli/bench_serve_cuda.h"
#include "cli/common.h"

namespace replayssm::cli {
namespace {

[[noreturn]] void refuse() {
  fail("--device cuda: this build has no CUDA backend; configure with the cuda preset");
}

}  // namespace

std::unique_ptr<Device> open_cuda(bool) { refuse(); }

void run_bench_serve_cuda(const BenchServeCudaFlags&) { refuse(); }

}  // namespace replayssm::cli
