// Writes GGUF files: metadata, then tensors one at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/formats/blocks.h"

namespace replayssm {

class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value);
  void u32(const std::string& key, uint32_t value);
  void f32(const std::string& key, float value);
  void boolean(const std::string& key, bool value);
  void texts(const std::string& key, const std::vector<std::string>& values);
  void i32s(const std::string& key, const std::vector<int32_t>& values);

  // shape: slowest dimension first. `fill` is called once, when the tensor's turn comes, with room
  // for its bytes.
  void tensor(const std::string& name, BlockType type, std::vector<int64_t> shape,
              std::function<void(std::byte* out)> fill);

  // Throws Error if the file cannot be written.
  void write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    BlockType type;
    std::vector<int64_t> shape;
    int64_t bytes;
    std::function<void(std::byte*)> fill;
  };
  void key(const std::string& key, uint32_t kind);

  std::string pairs_;
  uint64_t n_pairs_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace replayssm
