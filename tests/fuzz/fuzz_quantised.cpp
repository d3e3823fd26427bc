// Any bytes as a safetensors file of quantised modules: each is either refused in one line, or all
// of its rows can be read.
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/formats/published.h"
#include "model/quantization.h"

namespace {

using replayssm::TensorView;

constexpr int64_t kMaxWeights = 1 << 16;

template <typename Call>
void guarded(const Call& call) {
  try {
    call();
  } catch (const replayssm::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
}

void read_rows(const replayssm::TensorFiles& files, const std::string& module, int64_t rows,
               int64_t cols) {
  if (rows < 1 || cols < 1 || rows > kMaxWeights / cols) return;
  for (const bool symmetric : {true, false}) {
    guarded([&] {
      replayssm::QuantHints hints;
      hints.gptq_symmetric = symmetric;
      const auto found = replayssm::find_quantised(files, module, rows, cols, hints);
      if (!found) return;
      const replayssm::ops::QuantMatrix& matrix = found->matrix;
      if (matrix.rows != rows || matrix.cols != cols) std::abort();
      replayssm::ops::QuantRowBuffer buffer(matrix.format, cols);
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t r = 0; r < rows; ++r) {
        matrix.read(r, buffer.row());
        replayssm::ops::dequantise_row(matrix.format, cols, buffer.row(), row.data());
      }
    });
  }
}

// What a module's weight says of its shape, by every way of packing.
void read_module(const replayssm::TensorFiles& files, const std::string& module,
                 const TensorView& weight) {
  if (weight.shape.size() != 2) return;
  for (const int64_t packed : {1, 2, 4, 8}) {
    if (weight.shape[0] > kMaxWeights || weight.shape[1] > kMaxWeights) return;
    read_rows(files, module, weight.shape[0], weight.shape[1] * packed);
    read_rows(files, module, weight.shape[1], weight.shape[0] * packed);
    read_rows(files, module, weight.shape[1] * packed, weight.shape[0]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = "/tmp/fuzz_quantised_" + std::to_string(getpid()) + ".safetensors";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size) std::abort();
  std::fclose(file);
  guarded([&] {
    const auto files = replayssm::TensorFiles::open_file(path);
    guarded([&] { replayssm::module_formats(files); });
    for (const TensorView& tensor : files.tensors()) {
      for (const char* part : {".weight", ".weight_packed", ".qweight"}) {
        const std::string end = part;
        if (!tensor.name.ends_with(end)) continue;
        read_module(files, tensor.name.substr(0, tensor.name.size() - end.size()), tensor);
      }
    }
  });
  unlink(path.c_str());
  return 0;
}
