#include "core/json_file.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/text_file.h"

namespace replayssm {
namespace {

constexpr std::string_view kLfsMark = "version https://git-lfs";
constexpr const char* kFloatTag = "__float__";
constexpr std::string_view kBareWords[] = {"-Infinity", "Infinity", "NaN"};

std::optional<double> value_of(std::string_view word) {
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

// A bare word outside strings: its first byte, and one past its last.
struct Word {
  size_t begin, end;
};

// Finds the bare words and checks the depth: the library's own functions recurse on the result.
std::vector<Word> scan(std::string_view text, const std::string& path) {
  std::vector<Word> words;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) fail(path, ": nested deeper than ", kMaxJsonDepth, " levels");
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == 'N' || c == 'I' || c == '-') {
      for (const std::string_view word : kBareWords) {
        if (!text.substr(i).starts_with(word)) continue;
        words.push_back({i, i + word.size()});
        i += word.size() - 1;
        break;
      }
    }
  }
  return words;
}

// Each bare word as the tagged object that stands for it in transformers' files.
std::string tagged(std::string_view text, const std::vector<Word>& words) {
  std::string out;
  out.reserve(text.size() + 32 * words.size());
  size_t at = 0;
  for (const Word& word : words) {
    out.append(text.substr(at, word.begin - at)).append("{\"").append(kFloatTag).append("\":\"");
    out.append(text.substr(word.begin, word.end - word.begin)).append("\"}");
    at = word.end;
  }
  return out.append(text.substr(at));
}

// Tagged objects become the numbers they stand for, the inner ones first.
void untag(FileJson& value) {
  if (!value.is_structured()) return;
  for (FileJson& item : value) untag(item);
  if (!value.is_object() || value.size() != 1 || !value.contains(kFloatTag)) return;
  const FileJson& inner = value[kFloatTag];
  if (inner.is_number()) {
    value = FileJson(inner.get<double>());
  } else if (inner.is_string()) {
    if (const auto number = value_of(inner.get_ref<const std::string&>())) value = *number;
  }
}

// Where byte `at` (from 1) stands. The library's own text may quote the file at any length.
std::string place(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at == 0 ? 0 : at - 1);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_begin = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  return concat("line ", line, ", column ", before.size() - line_begin + 1);
}

}  // namespace

FileJson parse_json_file(std::string_view text, const std::string& path) {
  if (text.starts_with(kLfsMark)) {
    fail(path, ": is a Git LFS pointer, not the file; fetch it with `git lfs pull`");
  }
  const std::vector<Word> words = scan(text, path);
  std::string rewritten;
  if (!words.empty()) {
    rewritten = tagged(text, words);
    text = rewritten;
  }
  FileJson root;
  try {
    root = FileJson::parse(text);
  } catch (const FileJson::parse_error& error) {
    fail(path, ": not valid JSON at ", place(text, error.byte));
  } catch (const FileJson::out_of_range&) {
    fail(path, ": holds a number out of range");
  }
  if (!root.is_object()) fail(path, ": must be a JSON object");
  if (text.find(kFloatTag) != text.npos) untag(root);
  if (!root.is_object()) fail(path, ": must be a JSON object");
  return root;
}

FileJson read_json_file(const std::string& path, size_t max_bytes) {
  return parse_json_file(read_text_file(path, max_bytes), path);
}

}  // namespace replayssm
