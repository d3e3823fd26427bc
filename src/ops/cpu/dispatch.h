// From the faces' views to the row kernels.
#pragma once

#include "ops/cpu/vector_kernels.h"
#include "ops/matrix.h"
#include "replay/kernels.h"

namespace replayssm::ops {

inline const VectorKernels& vector_kernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kVectorAvx512;
    case Isa::kAvx2:
      return kVectorAvx2;
    default:
      return kVectorPortable;
  }
}

inline ConstSpan span_at(const ConstMatrix& m, int64_t row, int64_t col) {
  return {m.at(row, col), m.dtype};
}

inline Span span_at(const Matrix& m, int64_t row, int64_t col) { return {m.at(row, col), m.dtype}; }

}  // namespace replayssm::ops
