#include <cmath>

#include "core/error.h"
#include "jinja/builtins.h"

namespace replayssm::jinja {
namespace {

[[noreturn]] void refuse_operands(const std::string& op, const Value& a, const Value& b) {
  const auto name = [](const Value& v) {
    return v.is_undefined() ? concat("undefined \"", v.undefined().name.substr(0, 60), "\"")
                            : std::string(v.type_name());
  };
  fail("cannot compute ", name(a), " ", op, " ", name(b));
}

[[noreturn]] void overflow() { fail("an integer leaves 64 bits"); }

// Floor division and its remainder, as in Python.
int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) fail("division by zero");
  if (a == INT64_MIN && b == -1) overflow();
  const int64_t q = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? q - 1 : q;
}

double float_power(double a, double b) {
  const double result = std::pow(a, b);
  if (std::isnan(result)) fail("a power is not a number");
  return result;
}

Value integer_power(int64_t a, int64_t b) {
  if (b < 0) return float_power(static_cast<double>(a), static_cast<double>(b));
  int64_t result = 1;
  for (; b > 0; --b) {
    if (result == 0 || (result == 1 && a == 1)) return result;
    if (a == -1) return int64_t{b % 2 == 0 ? result : -result};
    if (__builtin_mul_overflow(result, a, &result)) overflow();
  }
  return result;
}

Value integers(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) overflow();
    return result;
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) overflow();
    return result;
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) overflow();
    return result;
  }
  if (op == "//") return floor_divide(a, b);
  if (op == "%") {
    if (b == -1) return int64_t{0};
    return a - floor_divide(a, b) * b;
  }
  if (op == "**") return integer_power(a, b);
  if (b == 0) fail("division by zero");
  return static_cast<double>(a) / static_cast<double>(b);
}

Value floats(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return float_power(a, b);
  if (b == 0) fail("division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  const double remainder = std::fmod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

std::string repeated(const std::string& text, int64_t n) {
  std::string out;
  if (n <= 0 || text.empty()) return out;
  if (n > Value::kMaxWeight / static_cast<int64_t>(text.size())) fail("a string grows too long");
  for (int64_t i = 0; i < n; ++i) out += text;
  return out;
}

}  // namespace

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "~") return to_text(a) + to_text(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return floats(op, a.number(), b.number());
    return integers(op, a.as_int(), b.as_int());
  }
  if (op == "+" && a.is_string() && b.is_string()) return a.string() + b.string();
  if (op == "+" && a.is_list() && b.is_list()) {
    List out = a.list();
    out.insert(out.end(), b.list().begin(), b.list().end());
    return out;
  }
  if (op == "*" && a.is_string() && (b.is_int() || b.is_bool())) {
    return repeated(a.string(), b.as_int());
  }
  if (op == "*" && b.is_string() && (a.is_int() || a.is_bool())) {
    return repeated(b.string(), a.as_int());
  }
  refuse_operands(op, a, b);
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) fail("cannot look for a ", item.type_name(), " in a str");
    return container.string().find(item.string()) != std::string::npos;
  }
  if (container.is_dict()) {
    return item.is_string() && find(container.dict(), item.string()) != nullptr;
  }
  if (container.is_list()) {
    for (const Value& entry : container.list()) {
      if (equal(entry, item)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  fail("a ", container.type_name(), " has no items to look into");
}

List items_of(const Value& value) {
  if (value.is_list()) return value.list();
  if (value.is_undefined()) return {};
  List out;
  if (value.is_dict()) {
    for (const auto& item : value.dict()) out.emplace_back(item.first);
    return out;
  }
  if (value.is_string()) {
    for (auto& c : characters(value.string())) out.emplace_back(std::move(c));
    return out;
  }
  fail("a ", value.type_name(), " has no items to go through");
}

Value subscript(const Value& object, const Value& index) {
  if (object.is_undefined()) {
    fail("\"", object.undefined().name.substr(0, 60), "\" is undefined");
  }
  if (object.is_dict() && index.is_string()) {
    const Value* value = find(object.dict(), index.string());
    return value == nullptr ? Value(Undefined{index.string()}) : *value;
  }
  if (object.is_namespace() && index.is_string()) {
    const Value* value = find(object.space().fields, index.string());
    return value == nullptr ? Value(Undefined{index.string()}) : *value;
  }
  if ((object.is_list() || object.is_string()) && (index.is_int() || index.is_bool())) {
    int64_t i = index.as_int();
    const auto size =
        object.is_list() ? static_cast<int64_t>(object.list().size()) : length_of(object.string());
    if (i < 0) i += size;
    if (i < 0 || i >= size) return Undefined{"index " + std::to_string(index.as_int())};
    if (object.is_list()) return object.list()[static_cast<size_t>(i)];
    return characters(object.string())[static_cast<size_t>(i)];
  }
  return Undefined{to_text(index)};
}

Value slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  if (!object.is_list() && !object.is_string()) {
    fail("a ", object.type_name(), " has no slices");
  }
  const auto bound = [](const Value& value) {
    if (!value.is_int() && !value.is_bool()) fail("a slice's bounds must be integers");
    return value.as_int();
  };
  const bool absent_step = step.is_none() || step.is_undefined();
  const int64_t by = absent_step ? 1 : bound(step);
  if (by == 0) fail("a slice's step is zero");
  const List items = items_of(object);
  const auto size = static_cast<int64_t>(items.size());
  const auto place = [&](const Value& value, int64_t otherwise) {
    if (value.is_none() || value.is_undefined()) return otherwise;
    int64_t at = bound(value);
    if (at < 0) at = at < -size ? -1 : at + size;
    return by > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  List out;
  const int64_t from = place(begin, by > 0 ? 0 : size - 1);
  const int64_t to = place(end, by > 0 ? size : -1);
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    out.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (object.is_list()) return out;
  std::string text;
  for (const Value& c : out) text += c.string();
  return text;
}

}  // namespace replayssm::jinja
