// Values of a template: Python's, as far as templates see them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"

namespace replayssm::jinja {

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // keys are unique, in order

struct Undefined {
  std::string name;
};
struct None {};

// namespace(): the one thing that a template can change.
struct Namespace {
  Dict fields;
};

struct Arguments {
  List positional;
  Dict named;
};

struct Callable {
  std::string name;
  std::function<Value(Arguments&)> call;
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None none) : data_(none) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool b) : data_(b) {}
  Value(int64_t i) : data_(i) {}
  Value(int) = delete;
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  Value(const char* s) : Value(std::string(s)) {}
  // Throws Error if the nesting passes kMaxDepth or the weight kMaxWeight, or if a namespace or a
  // callable is put in.
  Value(List list);
  Value(Dict dict);
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
  static Value from_json(const Json& json);

  static constexpr int kMaxDepth = 200;
  static constexpr int64_t kMaxWeight = int64_t{64} << 20;

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }  // not bool
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return std::holds_alternative<StringPtr>(data_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_namespace() const { return std::holds_alternative<NamespacePtr>(data_); }
  bool is_callable() const { return std::holds_alternative<CallablePtr>(data_); }

  const Undefined& undefined() const { return std::get<Undefined>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return std::get<int64_t>(data_); }
  double floating() const { return std::get<double>(data_); }
  const std::string& string() const { return *std::get<StringPtr>(data_); }
  const List& list() const { return std::get<ListPtr>(data_)->items; }
  const Dict& dict() const { return std::get<DictPtr>(data_)->items; }
  Namespace& space() const { return *std::get<NamespacePtr>(data_); }
  const Callable& callable() const { return *std::get<CallablePtr>(data_); }

  bool truth() const;
  // Of a bool, an int or a float.
  double number() const;
  // A bool counts as an int.
  int64_t as_int() const { return is_bool() ? (boolean() ? 1 : 0) : integer(); }
  int depth() const;
  // About the bytes that the value takes when it is written out, shared parts each time.
  int64_t weight() const;
  const char* type_name() const;

 private:
  struct ListBox {
    List items;
    int depth;
    int64_t weight;
  };
  struct DictBox {
    Dict items;
    int depth;
    int64_t weight;
  };
  using StringPtr = std::shared_ptr<const std::string>;
  using ListPtr = std::shared_ptr<const ListBox>;
  using DictPtr = std::shared_ptr<const DictBox>;
  using NamespacePtr = std::shared_ptr<Namespace>;
  using CallablePtr = std::shared_ptr<const Callable>;

  std::variant<Undefined, None, bool, int64_t, double, StringPtr, ListPtr, DictPtr, NamespacePtr,
               CallablePtr>
      data_;
};

const Value* find(const Dict& dict, std::string_view key);
void assign(Dict& dict, const std::string& key, Value value);

// ==, as Python has it.
bool equal(const Value& a, const Value& b);
// -1, 0 or 1; throws Error if the two have no order.
int compare(const Value& a, const Value& b);
// str(value): what {{ value }} prints.
std::string to_text(const Value& value);
// repr(value).
std::string to_repr(const Value& value);
// repr of a float.
std::string float_text(double value);

struct JsonStyle {
  int indent = -1;  // -1: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;
  bool sort_keys = false;
};
// json.dumps; throws Error on what JSON cannot hold.
std::string to_json(const Value& value, const JsonStyle& style);

// Code points of a string: its length and a part of it, [begin, end) clamped.
int64_t length_of(std::string_view text);
std::vector<std::string> characters(std::string_view text);

}  // namespace replayssm::jinja
