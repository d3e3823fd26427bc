#include "cli/bench_serve_cuda.h"
#include "cli/common.h"

namespace replayssm::cli {
namespace {

[[noreturn]] void refuse() {
  fail("--device cuda: this build has no CUDA backend; configure with the cuda preset");
}

}  // namespace

std::unique_ptr<Device> DeviceFlags::open(const ops::Context& context) const {
  if (name == "cpu") return cpu_device(context);
  if (name == "cuda") refuse();
  throw UsageError(concat("--device ", name, ": must be cpu or cuda"));
}

void run_bench_serve_cuda(const BenchServeCudaFlags&) { refuse(); }

}  // namespace replayssm::cli
