#include "model/model_folder.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/text_file.h"

namespace replayssm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCachePrefix = "models--";
constexpr std::string_view kGgufSuffix = ".gguf";
constexpr size_t kMaxRefBytes = 256;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::optional<fs::path> path_of_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return fs::path(value);
}

// Where Hugging Face's tools keep what they download.
fs::path cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto path = path_of_variable(name)) return *path;
  }
  if (const auto home = path_of_variable("HF_HOME")) return *home / "hub";
  if (const auto cache = path_of_variable("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  const fs::path home = path_of_variable("HOME").value_or("~");
  return home / ".cache" / "huggingface" / "hub";
}

// "Org/Name", as models are called on the hub.
bool is_hub_name(const std::string& text) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  };
  const size_t slash = text.find('/');
  return slash != text.npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == text.npos && text[0] != '.' &&
         std::all_of(text.begin(), text.end(), allowed);
}

// The snapshot that "main" names, else the only one; none if there is no such.
std::optional<fs::path> snapshot_of(const fs::path& repository) {
  const fs::path snapshots = repository / "snapshots";
  if (const fs::path main = repository / "refs" / "main"; is_there(main)) {
    std::string hash = read_text_file(main.string(), kMaxRefBytes);
    while (!hash.empty() && std::isspace(static_cast<unsigned char>(hash.back())) != 0) {
      hash.pop_back();
    }
    const bool plain = !hash.empty() && hash.find('/') == hash.npos && hash[0] != '.';
    if (plain && is_folder(snapshots / hash)) return snapshots / hash;
  }
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(snapshots, ignored)) {
    if (is_folder(entry.path())) found.push_back(entry.path());
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

std::string from_hub(const std::string& name) {
  std::string repository = kCachePrefix + name;
  repository.replace(repository.find('/'), 1, "--");
  const fs::path cached = cache_folder() / repository;
  if (is_folder(cached)) {
    if (const auto snapshot = snapshot_of(cached)) return snapshot->string();
  }
  fail(name, ": no such folder, and no copy of it in ", cached.string(),
       "; fetch it with `hf download ", name, "`");
}

// Whether some file of the folder ends so.
bool holds(const fs::path& folder, const char* ending) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().ends_with(ending)) return true;
  }
  return false;
}

// The only folder in this one that holds a model.
std::optional<fs::path> model_inside(const fs::path& folder) {
  std::optional<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!is_there(entry.path() / "config.json")) continue;
    if (found) return std::nullopt;
    found = entry.path();
  }
  return found;
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string at = folder.string();
  if (holds(folder, "adapter_config.json")) {
    fail(at, ": holds an adapter, no model; merge it into its base model first");
  }
  if (holds(folder, ".gguf")) {
    fail(at, ": holds GGUF files; give one of them");
  }
  if (is_there(folder / "params.json")) {
    fail(at, ": has params.json, but no config.json; take the files in Hugging Face's form");
  }
  if (const auto inside = model_inside(folder)) {
    fail(at, ": has no config.json; give ", inside->string(), ", which has one");
  }
  fail(at, ": has no config.json; a model's folder is needed");
}

// "model-00001-of-00003.gguf" is "model".
std::string gguf_name(const std::string& file) {
  constexpr std::string_view kMark = "-00001-of-00003";
  std::string name = file.substr(0, file.size() - kGgufSuffix.size());
  if (name.size() <= kMark.size()) return name;
  const std::string end = name.substr(name.size() - kMark.size());
  for (size_t i = 0; i < kMark.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(kMark[i])) != 0;
    if (digit ? std::isdigit(static_cast<unsigned char>(end[i])) == 0 : end[i] != kMark[i]) {
      return name;
    }
  }
  return name.substr(0, name.size() - kMark.size());
}

}  // namespace

bool is_gguf(const std::string& path) { return path.ends_with(kGgufSuffix); }

std::string find_model(const std::string& path) {
  if (path.empty()) fail("the model's folder is empty; give a path or a name such as Org/Name");
  fs::path folder(path);
  if (!is_there(folder)) {
    if (is_gguf(path)) fail(path, ": no such file");
    if (is_hub_name(path)) return from_hub(path);
    fail(path, ": no such folder");
  }
  if (!is_folder(folder)) {
    if (is_gguf(path)) return path;
    const fs::path parent = folder.parent_path();
    fail(path, ": is a file; give the model's folder",
         is_there(parent / "config.json") && !parent.empty() ? concat(", ", parent.string()) : "",
         " or a .gguf file");
  }
  if (is_there(folder / "config.json")) return path;
  if (const auto snapshot = snapshot_of(folder)) folder = *snapshot;
  if (!is_there(folder / "config.json")) refuse_folder(folder);
  return folder.string();
}

std::string model_name(const std::string& at) {
  std::error_code ignored;
  fs::path path = fs::weakly_canonical(at, ignored);
  if (is_gguf(at)) return gguf_name(path.filename().string());
  if (!path.has_filename()) path = path.parent_path();
  const fs::path snapshots = path.parent_path();
  const std::string repository = snapshots.parent_path().filename().string();
  if (snapshots.filename() == "snapshots" && repository.starts_with(kCachePrefix)) {
    std::string name = repository.substr(std::string(kCachePrefix).size());
    const size_t dashes = name.find("--");
    if (dashes != name.npos) name.replace(dashes, 2, "/");
    return name;
  }
  return path.filename().string();
}

}  // namespace replayssm
