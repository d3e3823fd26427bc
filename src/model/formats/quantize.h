// Writes a model folder (F32, F16 or BF16 weights) in few bits, rounding to the nearest code.
#pragma once

#include <string>

namespace replayssm {

enum class QuantTarget { kNone, kQ8_0, kQ4_K, kNvfp4 };

// Q8_0, Q4_K and kNone (each matrix in its own type): `out` is a GGUF file with tokenizer and chat
// template inside, by llama.cpp's names. NVFP4: `out` is a folder as modelopt writes it. Matrices
// whose width does not suit stay in Q8_0 or BF16; routers, convolutions, norms and the gates a and
// b keep their precision.
void quantize_model(const std::string& folder, QuantTarget target, const std::string& out);

}  // namespace replayssm
