// Descriptors of matrices for the tensor copies of hopper.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace replayssm::ops::cuda {

// Rows of bytes, packed, in boxes of box_rows by 128 columns, swizzled by 128 bytes. data and
// columns are multiples of 16.
CUtensorMap byte_map(const void* data, int64_t columns, int64_t rows, int32_t box_rows);

}  // namespace replayssm::ops::cuda
