#include "jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/utf8.h"

namespace replayssm::jinja {
namespace {

// The depth and weight of what holds the items.
class Measure {
 public:
  void add(const Value& item) {
    if (item.is_namespace() || item.is_callable()) {
      fail("a ", item.type_name(), " cannot be put into a list or a dict");
    }
    depth = std::max(depth, item.depth() + 1);
    weight += item.weight();
    if (depth > Value::kMaxDepth) fail("lists nest deeper than ", Value::kMaxDepth, " levels");
    if (weight > Value::kMaxWeight) fail("a list grows beyond ", Value::kMaxWeight, " bytes");
  }

  int depth = 1;
  int64_t weight = 16;
};

}  // namespace

Value::Value(List list) {
  Measure measure;
  for (const Value& item : list) measure.add(item);
  data_ = std::make_shared<const ListBox>(ListBox{std::move(list), measure.depth, measure.weight});
}

Value::Value(Dict dict) {
  Measure measure;
  for (const auto& item : dict) {
    measure.weight += static_cast<int64_t>(item.first.size());
    measure.add(item.second);
  }
  data_ = std::make_shared<const DictBox>(DictBox{std::move(dict), measure.depth, measure.weight});
}

Value Value::from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) return static_cast<double>(number);
      return static_cast<int64_t>(number);
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      List list;
      list.reserve(json.size());
      for (const Json& item : json) list.push_back(from_json(item));
      return list;
    }
    case Json::value_t::object: {
      Dict dict;
      dict.reserve(json.size());
      for (const auto& item : json.items()) dict.emplace_back(item.key(), from_json(item.value()));
      return dict;
    }
    default:
      return None{};
  }
}

bool Value::truth() const {
  if (is_bool()) return boolean();
  if (is_int()) return integer() != 0;
  if (is_float()) return floating() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return !dict().empty();
  return !is_undefined() && !is_none();
}

double Value::number() const { return is_float() ? floating() : static_cast<double>(as_int()); }

int Value::depth() const {
  if (is_list()) return std::get<ListPtr>(data_)->depth;
  if (is_dict()) return std::get<DictPtr>(data_)->depth;
  return 0;
}

int64_t Value::weight() const {
  if (is_list()) return std::get<ListPtr>(data_)->weight;
  if (is_dict()) return std::get<DictPtr>(data_)->weight;
  return 16 + (is_string() ? static_cast<int64_t>(string().size()) : 0);
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"undefined value", "None",    "bool", "int",
                                           "float",           "str",     "list", "dict",
                                           "namespace",       "callable"};
  return kNames[data_.index()];
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict) {
    if (name == key) return &value;
  }
  return nullptr;
}

void assign(Dict& dict, const std::string& key, Value value) {
  for (auto& [name, old] : dict) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  dict.emplace_back(key, std::move(value));
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.number() == b.number();
    return a.as_int() == b.as_int();
  }
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_list() && b.is_list()) {
    return std::equal(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().size() != b.dict().size()) return false;
    return std::all_of(a.dict().begin(), a.dict().end(), [&](const auto& item) {
      const Value* other = find(b.dict(), item.first);
      return other != nullptr && equal(item.second, *other);
    });
  }
  if (a.is_none() && b.is_none()) return true;
  if (a.is_undefined() && b.is_undefined()) return true;
  if (a.is_namespace() && b.is_namespace()) return &a.space() == &b.space();
  return false;
}

int compare(const Value& a, const Value& b) {
  const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : (y < x ? 1 : 0); };
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return sign(a.number(), b.number());
    return sign(a.as_int(), b.as_int());
  }
  if (a.is_string() && b.is_string()) return sign(a.string(), b.string());
  fail("no order between a ", a.type_name(), " and a ", b.type_name());
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[40];
  const auto end = std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific);
  std::string_view scientific(text, static_cast<size_t>(end.ptr - text));
  const size_t e = scientific.find('e');
  int exponent = 0;
  const char* from = text + e + 1 + (text[e + 1] == '+' ? 1 : 0);
  std::from_chars(from, end.ptr, exponent);
  if (exponent < -4 || exponent >= 16) {
    std::string out(scientific.substr(0, e));
    char tail[16];
    std::snprintf(tail, sizeof(tail), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + tail;
  }
  char fixed[64];
  const auto last = std::to_chars(fixed, fixed + sizeof(fixed), value, std::chars_format::fixed);
  std::string out(fixed, last.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.string();
  if (value.is_undefined()) return {};
  return to_repr(value);
}

namespace {

std::string string_repr(const std::string& text) {
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\x%02x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + quote;
}

void append_json_string(std::string& out, const std::string& text, bool ascii) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    char code[16];
    if (c >= 0x80 && ascii) {
      const Utf8Unit unit = utf8_unit(text, i);
      const char32_t point = unit.kind == Utf8Kind::kValid
                                 ? utf8_code_point(std::string_view(text).substr(i, unit.n_bytes))
                                 : 0xfffd;
      if (point >= 0x10000) {
        std::snprintf(code, sizeof(code), "\\u%04x\\u%04x",
                      static_cast<unsigned>(0xd800 + ((point - 0x10000) >> 10)),
                      static_cast<unsigned>(0xdc00 + ((point - 0x10000) & 0x3ff)));
      } else {
        std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(point));
      }
      out += code;
      i += unit.n_bytes;
      continue;
    }
    static constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kNames = "\"\\nrtbf";
    if (const size_t at = kEscaped.find(text[i]); at != std::string_view::npos) {
      out += '\\';
      out += kNames[at];
    } else if (c < ' ') {
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += text[i];
    }
    ++i;
  }
  out += '"';
}

void append_json(std::string& out, const Value& value, const JsonStyle& style, int level) {
  const auto line = [&](int at) {
    if (style.indent >= 0) {
      out += '\n';
      out.append(static_cast<size_t>(style.indent) * static_cast<size_t>(at), ' ');
    }
  };
  const std::string separator =
      style.indent >= 0 && style.item_separator == ", " ? "," : style.item_separator;
  if (value.is_string()) {
    append_json_string(out, value.string(), style.ascii);
  } else if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.boolean() ? "true" : "false";
  } else if (value.is_int()) {
    out += std::to_string(value.integer());
  } else if (value.is_float()) {
    const double number = value.floating();
    out += std::isnan(number)   ? "NaN"
           : std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity")
                                : float_text(number);
  } else if (value.is_list()) {
    out += '[';
    for (size_t i = 0; i < value.list().size(); ++i) {
      if (i > 0) out += separator;
      line(level + 1);
      append_json(out, value.list()[i], style, level + 1);
    }
    if (!value.list().empty()) line(level);
    out += ']';
  } else if (value.is_dict()) {
    std::vector<const std::pair<std::string, Value>*> items;
    for (const auto& item : value.dict()) items.push_back(&item);
    if (style.sort_keys) {
      std::sort(items.begin(), items.end(), [](auto* a, auto* b) { return a->first < b->first; });
    }
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += separator;
      line(level + 1);
      append_json_string(out, items[i]->first, style.ascii);
      out += style.key_separator;
      append_json(out, items[i]->second, style, level + 1);
    }
    if (!items.empty()) line(level);
    out += '}';
  } else {
    fail("tojson: a ", value.type_name(), " has no JSON");
  }
}

}  // namespace

std::string to_repr(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.integer());
  if (value.is_float()) return float_text(value.floating());
  if (value.is_string()) return string_repr(value.string());
  if (value.is_undefined()) return "Undefined";
  std::string out;
  if (value.is_list()) {
    for (const Value& item : value.list()) out += (out.empty() ? "" : ", ") + to_repr(item);
    return "[" + out + "]";
  }
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict()) {
      out += (out.empty() ? "" : ", ") + string_repr(key) + ": " + to_repr(item);
    }
    return "{" + out + "}";
  }
  fail("a ", value.type_name(), " has no text");
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  append_json(out, value, style, 0);
  return out;
}

int64_t length_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_unit(text, i).n_bytes;
    out.emplace_back(text.substr(i, n));
    i += n;
  }
  return out;
}

}  // namespace replayssm::jinja
