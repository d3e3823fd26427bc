#include "model/config.h"

#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/json_file.h"

namespace replayssm {
namespace {

using nlohmann::json;

std::string excerpt(const json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    return std::isnan(value.get<double>()) ? "NaN" : "infinite";
  }
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

ConfigObject ConfigObject::read_file(const std::string& path) {
  return ConfigObject(std::make_shared<const json>(read_json_file(path)), path, "");
}

ConfigObject ConfigObject::parse(const std::string& text, const std::string& path) {
  return ConfigObject(std::make_shared<const json>(parse_json_file(text, path)), path, "");
}

bool ConfigObject::has(const char* field) const {
  const auto it = value_->find(field);
  return it != value_->end() && !it->is_null();
}

bool ConfigObject::has_object(const char* field) const {
  return has(field) && value_->at(field).is_object();
}

bool ConfigObject::has_text(const char* field) const {
  return has(field) && value_->at(field).is_string();
}

bool ConfigObject::has_integer(const char* field) const {
  return has(field) && as_integer(value_->at(field));
}

int64_t ConfigObject::integer(const char* field, int64_t min, int64_t max) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = value_->at(field);
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
  const auto& value = value_->at(field);
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
  const auto& value = value_->at(field);
  if (!value.is_boolean()) refuse(field, "must be true or false, is ", excerpt(value));
  return value.get<bool>();
}

std::string ConfigObject::text(const char* field) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = value_->at(field);
  if (!value.is_string()) refuse(field, "must be a string, is ", excerpt(value));
  return value.get<std::string>();
}

std::string ConfigObject::text_or(const char* field, const char* fallback) const {
  return has(field) ? text(field) : fallback;
}

std::vector<std::string> ConfigObject::texts(const char* field) const {
  if (!has(field)) refuse(field, "is missing");
  const auto& value = value_->at(field);
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
  const auto& value = value_->at(field);
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
  const auto& value = value_->at(field);
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
  const auto& value = value_->at(field);
  if (!value.is_object()) refuse(field, "must be an object, is ", excerpt(value));
  return ConfigObject(std::shared_ptr<const json>(value_, &value), path_, prefix_ + field + ".");
}

}  // namespace replayssm
