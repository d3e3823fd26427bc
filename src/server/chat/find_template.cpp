#include "server/chat/find_template.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "core/text_file.h"
#include "model/formats/gguf.h"
#include "model/model_folder.h"

namespace replayssm::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;
constexpr const char* kField = "chat_template";
constexpr const char* kJsonFiles[] = {"chat_template.json", "tokenizer_config.json",
                                      "processor_config.json", "preprocessor_config.json",
                                      "config.json"};

struct Named {
  std::string name;
  TemplateSource source;
};

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// What one field holds.
std::vector<Named> templates_of(const FileJson& field, const std::string& where) {
  std::vector<Named> out;
  if (field.is_string()) {
    out.push_back({"default", {field.get<std::string>(), where}});
  } else if (field.is_object()) {
    for (const auto& [name, text] : field.items()) {
      if (!text.is_string()) fail(where, ": '", name.substr(0, 40), "' must be a string");
      out.push_back({name, {text.get<std::string>(), concat(where, ".", name.substr(0, 40))}});
    }
  } else if (field.is_array()) {
    for (const FileJson& entry : field) {
      const bool good = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                        entry.contains("template") && entry["template"].is_string();
      if (!good) fail(where, ": must hold objects of the strings name and template");
      const auto name = entry["name"].get<std::string>();
      out.push_back(
          {name, {entry["template"].get<std::string>(), concat(where, " ", name.substr(0, 40))}});
    }
  } else if (!field.is_null()) {
    fail(where, ": must be a string, a list or an object");
  }
  std::erase_if(out, [](const Named& named) { return named.source.text.empty(); });
  return out;
}

std::vector<Named> from_json(const std::string& folder) {
  for (const char* file : kJsonFiles) {
    const std::string path = folder + "/" + file;
    if (!exists(path)) continue;
    const FileJson config = read_json_file(path);
    const auto field = config.find(kField);
    if (field == config.end()) continue;
    auto found = templates_of(*field, concat(path, ": ", kField));
    if (!found.empty()) return found;
  }
  return {};
}

// By name, so that the first is the same everywhere.
std::vector<Named> from_folder(const std::string& folder) {
  std::vector<Named> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string path = entry.path().string();
    out.push_back({entry.path().stem().string(), {read_text_file(path, kMaxTemplateBytes), path}});
  }
  std::sort(out.begin(), out.end(), [](const Named& a, const Named& b) { return a.name < b.name; });
  return out;
}

const Named* named(const std::vector<Named>& all, const char* name) {
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const Named& one) { return one.name == name; });
  return at == all.end() ? nullptr : &*at;
}

FoundTemplates from_gguf(const std::string& path) {
  const GgufFiles files = GgufFiles::open(path);
  const auto source = [&](const char* key) {
    return TemplateSource{files.text_or(key, ""), concat(path, ": ", key)};
  };
  return {source("tokenizer.chat_template"), source("tokenizer.chat_template.tool_use")};
}

FoundTemplates from_model_folder(const std::string& folder) {
  std::vector<Named> all;
  if (const std::string path = folder + "/chat_template.jinja"; exists(path)) {
    all.push_back({"default", {read_text_file(path, kMaxTemplateBytes), path}});
  } else {
    all = from_json(folder);
  }
  for (Named& one : from_folder(folder + "/additional_chat_templates")) {
    if (named(all, one.name.c_str()) == nullptr) all.push_back(std::move(one));
  }
  FoundTemplates out;
  if (all.empty()) return out;
  const Named* chat = named(all, "default");
  out.chat = chat != nullptr ? chat->source : all.front().source;
  if (const Named* tools = named(all, "tool_use")) out.tools = tools->source;
  return out;
}

}  // namespace

FoundTemplates find_templates(const std::string& path) {
  if (is_gguf(path)) return from_gguf(path);
  return from_model_folder(path);
}

}  // namespace replayssm::server
