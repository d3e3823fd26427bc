// What the kernels for few bits tell formats apart by; see ops/quant.h.
#pragma once

#include <cstdint>

namespace replayssm::ops {

enum class Codes : uint8_t { kNibble, kInt6, kInt8, kE4m3 };
enum class GroupScale : uint8_t { kNone, kF16, kBF16, kF32, kU8, kI8, kE4m3, kE8m0 };
enum class GroupMin : uint8_t { kNone, kAdded, kSuper, kZero };

}  // namespace replayssm::ops
