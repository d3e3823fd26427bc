#include <cuda_runtime_api.h>

#include "core/error.h"
#include "ops/cuda/tensor_map_cuda.h"

namespace replayssm::ops::cuda {
namespace {

// The driver's, without linking to it.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                               12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || found == nullptr) fail("cuTensorMapEncodeTiled: not in the driver");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return encode;
}

}  // namespace

CUtensorMap byte_map(const void* data, int64_t columns, int64_t rows, int32_t box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns)};
  const cuuint32_t box[] = {128, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  REPLAYSSM_CHECK(result == CUDA_SUCCESS, "map of ", rows, " rows of ", columns,
                  " bytes: ", static_cast<int>(result));
  return map;
}

}  // namespace replayssm::ops::cuda
