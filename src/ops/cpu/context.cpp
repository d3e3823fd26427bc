#include "ops/context.h"

#include "core/error.h"

namespace replayssm::ops {

bool bf16_dot_supported() {
#if defined(__x86_64__)
  return isa_supported(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

Context::Context(ThreadPool& pool) : Context(pool, best_isa(), bf16_dot_supported()) {}

Context::Context(ThreadPool& pool, Isa isa, bool bf16_dot)
    : pool_(&pool),
      isa_(isa),
      bf16_dot_(bf16_dot && isa == Isa::kAvx512),
      scratch_(static_cast<size_t>(pool.size()) * kScratchBytes + kSharedScratchBytes),
      base_(scratch_.as<char>()) {
  REPLAYSSM_CHECK(isa_supported(isa), "instruction set ", isa_name(isa));
  REPLAYSSM_CHECK(!bf16_dot_ || bf16_dot_supported(), "no AVX512_BF16 here");
}

}  // namespace replayssm::ops
