#include "model/tokenizer/special_tokens.h"

#include <algorithm>
#include <filesystem>

#include "core/json_file.h"

namespace replayssm::model {
namespace {

constexpr const char* kFiles[] = {"tokenizer_config.json", "special_tokens_map.json"};

// A file's own, or an empty object.
FileJson read_if_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_json_file(path) : FileJson::object();
}

std::string token_of(const FileJson& config, const char* name) {
  const auto at = config.find(name);
  if (at == config.end()) return {};
  if (at->is_string()) return at->get<std::string>();
  if (at->is_object() && at->contains("content") && at->at("content").is_string()) {
    return at->at("content").get<std::string>();
  }
  return {};
}

}  // namespace

SpecialTokens read_special_tokens(const std::string& folder) {
  SpecialTokens out;
  for (const char* file : kFiles) {
    const FileJson config = read_if_there(folder + "/" + file);
    if (out.bos.empty()) out.bos = token_of(config, "bos_token");
    if (out.eos.empty()) out.eos = token_of(config, "eos_token");
  }
  return out;
}

void add_named_end_tokens(const std::string& folder, const Tokenizer& tokenizer, int64_t vocab,
                          std::vector<int32_t>& ids) {
  for (const char* file : kFiles) {
    const auto id = tokenizer.id_of(token_of(read_if_there(folder + "/" + file), "eos_token"));
    if (id && *id < vocab) add_id(*id, ids);
  }
}

void add_id(int32_t id, std::vector<int32_t>& ids) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

}  // namespace replayssm::model
