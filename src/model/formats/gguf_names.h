// Where a tensor of safetensors is in a GGUF file, and what converting did to it: shared by the
// reader and by `quantize`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/families/family.h"

namespace replayssm {

// What was done to a tensor when it was converted.
enum class GgufChange {
  kNone,
  kPlusOne,         // 1 was added
  kNegativeExp,     // -exp(x)
  kTiledHeads,      // one row or number per value head, tiled
  kTiledRows,       // value_dim rows per value head, tiled
  kTiledTail,       // the same behind the rows of q and k
  kTiledInputs,     // value_dim columns per value head
  kFirstOfPairs,    // of qwen3next's ssm_ba: b
  kSecondOfPairs,   // a
  kExpert,          // one of a stack
  kFirstOfExpert,   // gate of a stack of gate and up
  kSecondOfExpert,  // up
};

struct GgufPlace {
  std::string tensor;  // empty: GGUF has none
  GgufChange change = GgufChange::kNone;
  int64_t expert = 0;
};

GgufPlace gguf_place(const std::string& architecture, const TensorNames& names,
                     const std::string& name);

// Row r of the model is row order[r] of the file; empty if they are the same.
std::vector<int64_t> gguf_row_order(GgufChange change, int64_t rows, int64_t value_heads,
                                    int64_t key_heads, int64_t value_dim);

}  // namespace replayssm
