#include "server/request/fields.h"

#include <cmath>

#include "server/api_error.h"

namespace replayssm::server {

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    refuse(path_, path_.empty() ? "the request must be a JSON object" : "must be an object");
  }
}

std::string Fields::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

const Json* Fields::find(const std::string& name) {
  read_.insert(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<bool> Fields::boolean(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_boolean()) refuse(path_of(name), "must be true or false");
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(const std::string& name, int64_t least, int64_t most) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const auto range = [&] { return concat("must be an integer in ", least, "..", most); };
  if (value->is_number_unsigned()) {
    const auto number = value->get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) refuse(path_of(name), range());
  } else if (value->is_number_float()) {
    const double number = value->get<double>();  // 5.0 is an integer too
    if (number != std::floor(number) || std::fabs(number) > 9e15) refuse(path_of(name), range());
  } else if (!value->is_number_integer()) {
    refuse(path_of(name), range());
  }
  const auto number = value->get<int64_t>();
  if (number < least || number > most) refuse(path_of(name), range());
  return number;
}

std::optional<double> Fields::number(const std::string& name, double least, double most) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= least && number <= most)) {
    char text[80];
    std::snprintf(text, sizeof(text), "must be a number in %g..%g", least, most);
    refuse(path_of(name), text);
  }
  return number;
}

std::optional<std::string> Fields::string(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(path_of(name), "must be a string");
  return value->get<std::string>();
}

std::vector<std::string> Fields::strings(const std::string& name, size_t most, size_t most_bytes) {
  const Json* value = find(name);
  std::vector<std::string> out;
  if (value == nullptr) return out;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) refuse(path_of(name), "must be a string or a list of strings");
    out.push_back(item.get<std::string>());
    if (out.back().empty()) refuse(path_of(name), "a string is empty");
    if (out.back().size() > most_bytes) {
      refuse(path_of(name),
             concat("a string has ", out.back().size(), " bytes; at most ", most_bytes));
    }
  };
  if (!value->is_array()) {
    add(*value);
    return out;
  }
  if (value->size() > most) {
    refuse(path_of(name), concat("has ", value->size(), " strings; at most ", most));
  }
  for (const Json& item : *value) add(item);
  return out;
}

std::vector<int32_t> Fields::token_ids(const std::string& name, size_t most, int64_t vocab) {
  const Json* value = array(name, most);
  return value == nullptr ? std::vector<int32_t>() : token_ids_of(*value, path_of(name), vocab);
}

const Json* Fields::object(const std::string& name) {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) refuse(path_of(name), "must be an object");
  return value;
}

const Json* Fields::array(const std::string& name, size_t most) {
  const Json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) refuse(path_of(name), "must be a list");
  if (value->size() > most) {
    refuse(path_of(name), concat("has ", value->size(), " entries; at most ", most));
  }
  return value;
}

Json Fields::unread() const {
  Json out = Json::object();
  for (const auto& item : object_.items()) {
    if (!read_.contains(item.key()) && !item.value().is_null()) out[item.key()] = item.value();
  }
  return out;
}

void Fields::warn_unread(Warnings& warnings) const {
  constexpr size_t kMaxWarnings = 16;
  for (const auto& item : object_.items()) {
    if (read_.contains(item.key()) || item.value().is_null()) continue;
    if (warnings.size() < kMaxWarnings) {
      warnings.push_back(concat(path_of(item.key().substr(0, 64)), ": not known, ignored"));
    }
  }
}

std::vector<int32_t> token_ids_of(const Json& list, const std::string& path, int64_t vocab) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const bool good = item.is_number_integer() && item.get<int64_t>() >= 0 &&
                      item.get<int64_t>() < vocab &&
                      (!item.is_number_unsigned() || item.get<uint64_t>() < INT32_MAX);
    if (!good) refuse(path, concat("must hold token ids in 0..", vocab - 1));
    ids.push_back(static_cast<int32_t>(item.get<int64_t>()));
  }
  return ids;
}

}  // namespace replayssm::server
