// Any bytes as a safetensors file: either an Error of one line, or tensors that tile the data.
#include <cstdlib>
#include <span>
#include <string>

#include "core/error.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const std::byte* next = nullptr;
    for (const auto& tensor : replayssm::parse_safetensors(bytes, "fuzz")) {
      if (next != nullptr && tensor.data != next) std::abort();
      next = tensor.data + tensor.bytes;
      if (next > bytes.data() + size) std::abort();
      if (tensor.dtype == replayssm::FileDType::kF16 && tensor.bytes > 0) {
        if (replayssm::read_fp32(tensor).size() * 2 != static_cast<size_t>(tensor.bytes)) {
          std::abort();
        }
      }
    }
    if (next != nullptr && next != bytes.data() + size) std::abort();
  } catch (const replayssm::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
