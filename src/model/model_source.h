// What -m names, as find_model() gives it: a folder of safetensors with its configuration, or a
// GGUF file (of a split set any) with everything inside.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/tokenizer/special_tokens.h"
#include "model/tokenizer/tokenizer.h"
#include "model/weight_files.h"

namespace replayssm {

struct SourceModel {
  ModelDescription description;
  // What the embedding table is kept as; kBF16 where that is few bits.
  DType stored = DType::kF32;
};
// Reads headers alone. Throws Error naming file and field, as all of these.
SourceModel read_source_model(const std::string& path);

// `model` is what read_source_model() gave and must outlive the files.
std::unique_ptr<WeightFiles> open_weights(const ModelDescription& model, const std::string& path);

bool has_tokenizer(const std::string& path);
model::Tokenizer read_tokenizer(const std::string& path);

// The begin and end marks, as chat templates take them.
model::SpecialTokens read_marks(const std::string& path, const model::Tokenizer& tokenizer);

// Adds the end tokens that stand beside the description's to `ids`, those below `vocab`.
void add_end_tokens(const std::string& path, const model::Tokenizer& tokenizer, int64_t vocab,
                    std::vector<int32_t>& ids);

}  // namespace replayssm
