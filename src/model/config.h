// Typed, bounded reading of a JSON configuration. Each refusal is one line that names file and
// field. A null field counts as absent. core/json_file.h says what a file may hold.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/error.h"

namespace replayssm {

class ConfigObject {
 public:
  static ConfigObject read_file(const std::string& path);
  // `path` is for messages only.
  static ConfigObject parse(const std::string& text, const std::string& path);

  bool has(const char* field) const;
  // Of this type.
  bool has_object(const char* field) const;
  bool has_text(const char* field) const;
  bool has_integer(const char* field) const;

  // Required fields, and optional ones with a fallback; bounds are inclusive.
  int64_t integer(const char* field, int64_t min, int64_t max) const;
  int64_t integer_or(const char* field, int64_t fallback, int64_t min, int64_t max) const;
  double number(const char* field, double min, double max) const;
  double number_or(const char* field, double fallback, double min, double max) const;
  bool boolean_or(const char* field, bool fallback) const;
  std::string text(const char* field) const;
  std::string text_or(const char* field, const char* fallback) const;
  std::vector<std::string> texts(const char* field) const;
  // Infinities may stand in the list.
  std::vector<double> numbers(const char* field) const;
  // One integer or a list of them; empty if absent.
  std::vector<int64_t> integers_or_none(const char* field, int64_t min, int64_t max) const;
  ConfigObject object(const char* field) const;

  // Throws "file: field <field> ...".
  template <typename... Parts>
  [[noreturn]] void refuse(const char* field, const Parts&... why) const {
    fail(path_, ": field ", prefix_, field, " ", why...);
  }

 private:
  // `value` is an object.
  ConfigObject(std::shared_ptr<const nlohmann::json> value, std::string path, std::string prefix)
      : value_(std::move(value)), path_(std::move(path)), prefix_(std::move(prefix)) {}

  std::shared_ptr<const nlohmann::json> value_;
  std::string path_;
  std::string prefix_;  // "text_config." inside a nested object
};

}  // namespace replayssm
