// A tokenizer between tokenizer.json and the metadata of GGUF.
#pragma once

#include <cstdint>
#include <string>

#include "model/formats/gguf.h"
#include "model/formats/gguf_writer.h"

namespace replayssm {

// The file's tokenizer as the text of an equivalent tokenizer.json.
std::string gguf_tokenizer_json(const GgufFiles& files);
// Empty if there is none.
std::string gguf_chat_template(const GgufFiles& files);

// The tokenizer, its chat template and end tokens of a model folder, with `vocab` ids. Refuses what
// GGUF has no name for.
void write_gguf_tokenizer(const std::string& folder, int64_t vocab, GgufWriter& writer);

}  // namespace replayssm
