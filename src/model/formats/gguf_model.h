// A GGUF file of a served architecture (qwen35, qwen35moe, qwen3next, nemotron_h, nemotron_h_moe)
// in the terms of its family's safetensors: the same description, the same tensor names, rows and
// values as published. What the converter changed is undone here:
//
//   norms but GDN's  stored with 1 added (Qwen): left so, the description's are not zero-centred
//   ssm_a            -exp(A_log): given as A_log
//   V heads (qwen35, qwen35moe)  by tiles, head h % key heads, not h / (value heads per key head):
//                    rows are put back; the inputs of out_proj are only in plain numbers, since
//                    blocks span heads (GgufMatrix::inputs)
//   ssm_ba (qwen3next)  b and a interleaved by key head: given as in_proj_b and in_proj_a
//   experts          stacked in one tensor: given one by one
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/memory.h"
#include "model/families/family.h"
#include "model/formats/gguf.h"
#include "model/formats/gguf_names.h"
#include "ops/matrix.h"
#include "ops/quant.h"

namespace replayssm {

// Of F32, F16 and BF16.
DType wide_dtype(BlockType type);

struct GgufMatrix {
  const GgufTensor* tensor = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  // Row r is row order[r] of the tensor as [all rows, cols].
  std::vector<int64_t> order;
  float scale = 1.0f;  // of NVFP4, beside the tensor
  // Input i of the model is input inputs[i] of the file; empty: the same.
  std::vector<int64_t> inputs;

  bool quantised() const { return is_quantised(tensor->type); }
  // Few bits, the inputs in the file's order.
  ops::QuantMatrix quant() const;
  // Plain numbers, the inputs in the model's order: where they lie, or gathered into `storage`.
  ops::ConstMatrix dense(Buffer& storage) const;
};

class GgufModel {
 public:
  explicit GgufModel(GgufFiles files);
  static GgufModel open(const std::string& path) { return GgufModel(GgufFiles::open(path)); }

  const GgufFiles& files() const { return files_; }
  const ModelDescription& description() const { return description_; }
  const std::string& architecture() const { return architecture_; }

  // By the names of description(). Each refuses what is missing or of another shape.
  bool has(const std::string& name) const;
  BlockType type_of(const std::string& name) const;
  // Whether the matrix has GgufMatrix::inputs.
  bool has_tiled_inputs(const std::string& name) const;
  GgufMatrix matrix(const std::string& name, int64_t rows, int64_t cols);
  std::vector<float> vector(const std::string& name, int64_t n);
  // A depthwise convolution [channels, width], the taps of a channel together.
  std::vector<float> conv(const std::string& name, int64_t channels, int64_t width);

  // Tensors that nothing has asked for.
  std::vector<std::string> unread() const;
  // Whether a tensor of the file is known and not run: of the blocks of multi-token prediction, or
  // for runs with quantised activations.
  bool is_skipped(const std::string& tensor) const;

 private:
  std::string qwen_config() const;
  std::string nemotron_config() const;
  GgufPlace place(const std::string& name) const;
  const GgufTensor& find(const GgufPlace& source, const std::string& name) const;
  const GgufTensor& take(const GgufPlace& source, const std::string& name);
  int64_t key(const char* name, int64_t max) const;
  std::string block(int64_t layer, const char* tensor) const;
  bool tiled() const;

  GgufFiles files_;
  std::string architecture_;
  int64_t n_layers_ = 0;
  int64_t n_blocks_ = 0;  // with those of multi-token prediction
  int64_t key_heads_ = 0;
  int64_t value_heads_ = 0;
  int64_t value_dim_ = 0;
  ModelDescription description_;
  std::unordered_set<const GgufTensor*> used_;
};

}  // namespace replayssm
