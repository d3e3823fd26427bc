// oneDNN's matmul on the same shapes, as a yardstick; built only where the library is installed.
#pragma once

#include <cstdint>
#include <memory>

namespace replayssm::bench {

class OneDnnMatmul {
 public:
  virtual ~OneDnnMatmul() = default;
  virtual void run() = 0;
};

// x [rows, n_in], weight [n_out, n_in] packed once, y fp32; all bf16 or all fp32 inputs. Null
// where oneDNN is missing or lacks the case.
std::unique_ptr<OneDnnMatmul> onednn_matmul(bool bf16, int64_t rows, int64_t n_in, int64_t n_out,
                                            const void* x, const void* weight, float* y);
// "2.6.3", or "" without the library.
const char* onednn_version();

}  // namespace replayssm::bench
