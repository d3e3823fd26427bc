#include "model/model_source.h"

#include <filesystem>

#include "model/formats/gguf_model.h"
#include "model/formats/gguf_tokenizer.h"
#include "model/model_folder.h"

namespace replayssm {

SourceModel read_source_model(const std::string& path) {
  if (!is_gguf(path)) {
    const TensorFiles files = TensorFiles::open_folder(path);
    SourceModel out{describe_model(path, files), DType::kF32};
    out.stored = stored_dtype(out.description, files);
    return out;
  }
  const GgufModel model = GgufModel::open(path);
  const ModelDescription& description = model.description();
  return {description, wide_dtype(model.type_of(description.names.embedding))};
}

std::unique_ptr<WeightFiles> open_weights(const ModelDescription& model, const std::string& path) {
  return is_gguf(path) ? open_gguf(path) : open_safetensors(model, path);
}

bool has_tokenizer(const std::string& path) {
  if (!is_gguf(path)) return std::filesystem::exists(path + "/tokenizer.json");
  return GgufFiles::open(path).has("tokenizer.ggml.model");
}

model::Tokenizer read_tokenizer(const std::string& path) {
  if (!is_gguf(path)) return model::Tokenizer::load(path + "/tokenizer.json");
  return model::Tokenizer::parse(gguf_tokenizer_json(GgufFiles::open(path)), path);
}

model::SpecialTokens read_marks(const std::string& path, const model::Tokenizer& tokenizer) {
  if (!is_gguf(path)) return model::read_special_tokens(path);
  const GgufFiles files = GgufFiles::open(path);
  const auto text = [&](const char* key) {
    if (!files.has(key)) return std::string();
    const int64_t id = files.integer(key, 0, tokenizer.vocab_size() - 1);
    return std::string(tokenizer.token_bytes(static_cast<int32_t>(id)));
  };
  return {text("tokenizer.ggml.bos_token_id"), text("tokenizer.ggml.eos_token_id")};
}

void add_end_tokens(const std::string& path, const model::Tokenizer& tokenizer, int64_t vocab,
                    std::vector<int32_t>& ids) {
  if (!is_gguf(path)) model::add_named_end_tokens(path, tokenizer, vocab, ids);
}

}  // namespace replayssm
