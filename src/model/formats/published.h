// Matrices of few bits as safetensors files publish them. What a module is stored in is decided by
// its own tensors; the config only says what tensors cannot (QuantHints).
//
// Of module "m", with o outputs, i inputs and g inputs per group:
//
//   FP8             m.weight F8_E4M3 [o, i]; m.weight_scale [], [1], [o], [o, 1] or by blocks of
//                   128 x 128; or m.weight_scale_inv, by blocks
//   INT8            m.weight I8 [o, i]; m.weight_scale [o] or [o, 1]
//   NVFP4           m.weight U8 [o, i/2], m.weight_scale E4M3 [o, i/16], m.weight_scale_2
//   (modelopt);
//                   m.weight_packed, m.weight_scale, m.weight_global_scale, which divides
//   MXFP4           m.weight_packed U8 [o, i/2], m.weight_scale U8 [o, i/32]
//   pack-quantized  m.weight_packed I32 [o, i/8] or (8 bits) [o, i/4], m.weight_scale [o, i/g],
//                   m.weight_zero_point I32 [o/8, i/g]
//   GPTQ            m.qweight I32 [i/8, o], m.qzeros [i/g, o/8], m.scales [i/g, o], m.g_idx [i]
//   AWQ             m.qweight I32 [i, o/8], m.qzeros [i/g, o/8], m.scales [i/g, o]
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "ops/quant.h"

namespace replayssm {

struct QuantHints {
  // GPTQ: symmetric files mean 8 whatever their qzeros say; others store the zero minus this.
  bool gptq_symmetric = true;
  int gptq_zero_offset = 1;  // 0 for gptq_v2
};

struct StoredQuant {
  ops::QuantMatrix matrix;  // reads from the files' maps, which must outlive it
  std::string format;       // for people
  std::vector<const TensorView*> used;
};

// The module's matrix in [rows, cols]. Empty if "m.weight" is there as plain numbers, or if the
// module has no tensor at all. Refuses a format that is not served, naming it.
std::optional<StoredQuant> find_quantised(const TensorFiles& files, const std::string& module,
                                          int64_t rows, int64_t cols, const QuantHints& hints);

}  // namespace replayssm
