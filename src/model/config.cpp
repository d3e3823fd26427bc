#include "model/config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/text_file.h"

namespace replayssm {
namespace {

using nlohmann::json;

// Python's json module writes these bare words; JSON does not have them. Strings stay as they are.
std::string quote_bare_words(std::string_view text) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  out.reserve(text.size() + 16);
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      out.append(text.substr(i, 2));
      i += 2;
      continue;
    }
    if (c == '"') in_string = !in_string;
    size_t length = 1;
    if (!in_string) {
      for (const auto word : kWords) {
        if (text.substr(i).starts_with(word)) length = word.size();
        if (length > 1) break;
      }
    }
    if (length > 1) {
      out.append("\"").append(text.substr(i, length)).append("\"");
    } else {
      out.push_back(c);
    }
    i += length;
  }
  return out;
}

std::string excerpt(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

std::optional<double> as_number(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

struct ConfigObject::Node {
  json value;
};

ConfigObject ConfigObject::read_file(const std::string& path) {
  return parse(read_text_file(path), path);
}

ConfigObject ConfigObject::parse(const std::string& text, const std::string& path) {
  if (text.starts_with("version https://git-lfs")) {
    fail(path, ": is a Git LFS pointer, not the file; fetch it with `git lfs pull`");
  }
  auto node = std::make_shared<Node>();
  try {
    node->value = json::parse(quote_bare_words(text));
  } catch (const json::exception& error) {
    std::string why = error.what();
    for (char& c : why) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    fail(path, ": is no JSON: ", why);
  }
  if (!node->value.is_object()) fail(path, ": is no JSON object");
  return ConfigObject(std::move(node), path, "");
}

bool ConfigObject::has(const char* field) const {
  const auto it = node_->value.find(field);
  return it != node_->value.end() && !it->is_null();
}

int64_t ConfigObject::integer(const char* field, int64_t min, int64_t max) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = node_->value[field];
  const auto number = as_integer(value);
  if (!number) refuse(field, "must be an integer, is ", excerpt(value));
  if (*number < min || *number > max) {
    refuse(field, "is ", *number, ", must be in [", min, ", ", max, "]");
  }
  return *number;
}

int64_t ConfigObject::integer_or(const char* field, int64_t fallback, int64_t min,
                                 int64_t max) const {
  return has(field) ? integer(field, min, max) : fallback;
}

double ConfigObject::number(const char* field, double min, double max) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = node_->value[field];
  const auto number = as_number(value);
  if (!number) refuse(field, "must be a number, is ", excerpt(value));
  if (!(*number >= min && *number <= max)) {
    std::ostringstream range;
    range << "[" << min << ", " << max << "]";
    refuse(field, "is ", excerpt(value), ", must be in ", range.str());
  }
  return *number;
}

double ConfigObject::number_or(const char* field, double fallback, double min, double max) const {
  return has(field) ? number(field, min, max) : fallback;
}

bool ConfigObject::boolean_or(const char* field, bool fallback) const {
  if (!has(field)) return fallback;
  const auto& value = node_->value[field];
  if (!value.is_boolean()) refuse(field, "must be true or false, is ", excerpt(value));
  return value.get<bool>();
}

std::string ConfigObject::text(const char* field) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = node_->value[field];
  if (!value.is_string()) refuse(field, "must be a string, is ", excerpt(value));
  return value.get<std::string>();
}

std::string ConfigObject::text_or(const char* field, const char* fallback) const {
  return has(field) ? text(field) : fallback;
}

std::vector<std::string> ConfigObject::texts(const char* field) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = node_->value[field];
  std::vector<std::string> out;
  if (!value.is_array()) refuse(field, "must be a list of strings, is ", excerpt(value));
  for (const auto& element : value) {
    if (!element.is_string()) refuse(field, "must hold strings only, holds ", excerpt(element));
    out.push_back(element.get<std::string>());
  }
  return out;
}

std::vector<double> ConfigObject::numbers(const char* field) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = node_->value[field];
  std::vector<double> out;
  if (!value.is_array()) refuse(field, "must be a list of numbers, is ", excerpt(value));
  for (const auto& element : value) {
    const auto number = as_number(element);
    if (!number) refuse(field, "must hold numbers only, holds ", excerpt(element));
    out.push_back(*number);
  }
  return out;
}

std::vector<int64_t> ConfigObject::integers_or_none(const char* field, int64_t min,
                                                    int64_t max) const {
  if (!has(field)) return {};
  const auto& value = node_->value[field];
  if (!value.is_array()) return {integer(field, min, max)};
  std::vector<int64_t> out;
  for (const auto& element : value) {
    const auto number = as_integer(element);
    if (!number) refuse(field, "must hold integers only, holds ", excerpt(element));
    if (*number < min || *number > max) {
      refuse(field, "holds ", *number, ", must be in [", min, ", ", max, "]");
    }
    out.push_back(*number);
  }
  return out;
}

ConfigObject ConfigObject::object(const char* field) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = node_->value[field];
  if (!value.is_object()) refuse(field, "must be an object, is ", excerpt(value));
  auto node = std::make_shared<Node>();
  node->value = value;
  return ConfigObject(std::move(node), path_, prefix_ + field + ".");
}

}  // namespace replayssm
