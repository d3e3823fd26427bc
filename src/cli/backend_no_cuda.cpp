#include "cli/bench_serve_cuda.h"
#include "cli/common.h"

namespace replayssm::cli {
namespace {

[[noreturn]] void refuse() {
  fail("--device cuda: this build has no CUDA backend; configure with the cuda preset");
}

}  // namespace

BackendFactory backend_of(const std::string& device, bool, const std::string&,
                          const ops::Context& context) {
  if (device == "cpu") return cpu_backend(context);
  if (device == "cuda") refuse();
  throw UsageError(concat("--device ", device, ": must be cpu or cuda"));
}

void run_bench_serve_cuda(const BenchServeCudaFlags&) { refuse(); }

}  // namespace replayssm::cli
