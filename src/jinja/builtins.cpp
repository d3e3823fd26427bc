#include "jinja/builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "core/error.h"

namespace replayssm::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\v\f";

// Strings that grow are checked while they do.
void append(std::string& out, std::string_view part) {
  if (static_cast<int64_t>(out.size() + part.size()) > Value::kMaxWeight) {
    fail("a string grows too long");
  }
  out += part;
}

std::string text_argument(Arguments& arguments, size_t index, const char* name) {
  const Value value = argument(arguments, index, name);
  if (!value.is_string()) fail(name, " must be a str, is a ", value.type_name());
  return value.string();
}

int64_t int_argument(Arguments& arguments, size_t index, const char* name, int64_t otherwise) {
  const Value value = argument(arguments, index, name);
  if (value.is_undefined() || value.is_none()) return otherwise;
  if (!value.is_int() && !value.is_bool()) fail(name, " must be an int");
  return value.as_int();
}

// --- strings

std::string strip(const std::string& text, std::string_view what, bool left, bool right) {
  // Whole characters: `what` may hold some of several bytes.
  const auto set = characters(what);
  const auto listed = [&](const std::string& c) {
    return std::find(set.begin(), set.end(), c) != set.end();
  };
  const auto chars = characters(text);
  size_t begin = 0, end = chars.size();
  while (left && begin < end && listed(chars[begin])) ++begin;
  while (right && end > begin && listed(chars[end - 1])) --end;
  std::string out;
  for (size_t i = begin; i < end; ++i) out += chars[i];
  return out;
}

std::string strip_by(const std::string& text, Arguments& arguments, bool left, bool right) {
  const Value what = argument(arguments, 0, "chars");
  if (what.is_undefined() || what.is_none()) {
    const size_t begin = left ? text.find_first_not_of(kBlanks) : 0;
    if (begin == std::string::npos) return {};
    const size_t end = right ? text.find_last_not_of(kBlanks) : text.size() - 1;
    if (end == std::string::npos) return {};
    return text.substr(begin, end + 1 - begin);
  }
  if (!what.is_string()) fail("strip: chars must be a str");
  return strip(text, what.string(), left, right);
}

Value split(const std::string& text, Arguments& arguments, bool from_right) {
  const Value separator = argument(arguments, 0, "sep");
  int64_t most = int_argument(arguments, 1, "maxsplit", -1);
  std::vector<std::string> parts;
  if (separator.is_undefined() || separator.is_none()) {
    if (from_right) fail("rsplit needs a separator here");
    size_t at = text.find_first_not_of(kBlanks);
    while (at != std::string::npos) {
      size_t end = most == 0 ? text.size() : text.find_first_of(kBlanks, at);
      if (end == std::string::npos) end = text.size();
      parts.push_back(text.substr(at, end - at));
      if (most == 0) break;
      at = text.find_first_not_of(kBlanks, end);
      --most;
    }
  } else {
    if (!separator.is_string() || separator.string().empty()) fail("split: an empty separator");
    const std::string& sep = separator.string();
    if (from_right) {
      size_t end = text.size();
      while (most != 0) {
        const size_t at = end < sep.size() ? std::string::npos : text.rfind(sep, end - sep.size());
        if (at == std::string::npos) break;
        parts.push_back(text.substr(at + sep.size(), end - at - sep.size()));
        end = at;
        --most;
      }
      parts.push_back(text.substr(0, end));
      std::reverse(parts.begin(), parts.end());
    } else {
      size_t begin = 0;
      while (most != 0) {
        const size_t at = text.find(sep, begin);
        if (at == std::string::npos) break;
        parts.push_back(text.substr(begin, at - begin));
        begin = at + sep.size();
        --most;
      }
      parts.push_back(text.substr(begin));
    }
  }
  List out;
  for (auto& part : parts) out.emplace_back(std::move(part));
  return out;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t most) {
  std::string out;
  if (from.empty()) {
    for (const auto& c : characters(text)) {
      if (most-- != 0)
        append(out, to);
      else
        ++most;
      append(out, c);
    }
    if (most != 0) append(out, to);
    return out;
  }
  size_t begin = 0;
  while (most-- != 0) {
    const size_t at = text.find(from, begin);
    if (at == std::string::npos) break;
    append(out, std::string_view(text).substr(begin, at - begin));
    append(out, to);
    begin = at + from.size();
  }
  append(out, std::string_view(text).substr(begin));
  return out;
}

// ASCII letters: what templates change the case of.
std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return text;
}

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  }
  return text;
}

std::string capitalize(const std::string& text) {
  return upper(text.substr(0, 1)) + (text.empty() ? "" : lower(text.substr(1)));
}

std::string title(const std::string& text) {
  std::string out = lower(text);
  bool start = true;
  for (char& c : out) {
    if (start) c = upper(std::string(1, c))[0];
    start = !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) != 0);
  }
  return out;
}

bool affix(const std::string& text, Arguments& arguments, bool front) {
  const Value what = argument(arguments, 0, "prefix");
  const List options = what.is_list() ? what.list() : List{what};
  return std::any_of(options.begin(), options.end(), [&](const Value& option) {
    if (!option.is_string()) fail("startswith and endswith take a str or a tuple of them");
    return front ? text.starts_with(option.string()) : text.ends_with(option.string());
  });
}

Value lines_of(const std::string& text) {
  List out;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find_first_of("\n\r", begin);
    if (end == std::string::npos) end = text.size();
    out.emplace_back(text.substr(begin, end - begin));
    begin = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return out;
}

// --- filters

Value filter_default(const Value& input, Arguments& arguments) {
  const Value otherwise = argument(arguments, 0, "default_value");
  const bool falsy = argument(arguments, 1, "boolean").truth();
  const bool replaced = input.is_undefined() || (falsy && !input.truth());
  if (!replaced) return input;
  return otherwise.is_undefined() ? Value("") : otherwise;
}

Value filter_items(const Value& input, Arguments&) {
  if (input.is_undefined()) return List();
  if (!input.is_dict()) fail("items: needs a mapping, is a ", input.type_name());
  List out;
  for (const auto& [key, value] : input.dict()) out.emplace_back(List{Value(key), value});
  return out;
}

Value filter_length(const Value& input, Arguments&) {
  if (input.is_string()) return length_of(input.string());
  if (input.is_list()) return static_cast<int64_t>(input.list().size());
  if (input.is_dict()) return static_cast<int64_t>(input.dict().size());
  if (input.is_undefined()) return int64_t{0};
  fail("length: a ", input.type_name(), " has none");
}

Value filter_tojson(const Value& input, Arguments& arguments) {
  JsonStyle style;
  style.ascii = argument(arguments, 0, "ensure_ascii").truth();
  style.indent =
      static_cast<int>(std::clamp<int64_t>(int_argument(arguments, 1, "indent", -1), -1, 16));
  const Value separators = argument(arguments, 2, "separators");
  if (separators.is_list() && separators.list().size() == 2) {
    style.item_separator = to_text(separators.list()[0]);
    style.key_separator = to_text(separators.list()[1]);
    if (style.item_separator.size() + style.key_separator.size() > 64) {
      fail("tojson: long separators");
    }
  }
  style.sort_keys = argument(arguments, 3, "sort_keys").truth();
  return to_json(input, style);
}

Value filter_join(const Value& input, Arguments& arguments) {
  const Value separator = argument(arguments, 0, "d");
  const std::string between = separator.is_undefined() ? "" : to_text(separator);
  const Value attribute = argument(arguments, 1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(input)) {
    if (!first) append(out, between);
    first = false;
    append(out, to_text(attribute.is_undefined() ? item : subscript(item, attribute)));
  }
  return out;
}

// select, reject and their attr forms: items (or a field of theirs) that pass a test.
Value choose(const Value& input, Arguments& arguments, bool keep, bool by_attribute) {
  List& positional = arguments.positional;
  size_t at = 0;
  Value attribute;
  if (by_attribute) {
    if (positional.empty()) fail("selectattr and rejectattr need the name of an attribute");
    attribute = positional[at++];
  }
  Test test = nullptr;
  if (at < positional.size()) {
    const std::string name = to_text(positional[at++]);
    test = find_test(name);
    if (test == nullptr) fail("no test is called \"", name.substr(0, 60), "\"");
  }
  Arguments rest;
  rest.positional.assign(positional.begin() + static_cast<std::ptrdiff_t>(at), positional.end());
  List out;
  for (const Value& item : items_of(input)) {
    const Value value = by_attribute ? subscript(item, attribute) : item;
    if ((test == nullptr ? value.truth() : test(value, rest)) == keep) out.push_back(item);
  }
  return out;
}

Value filter_map(const Value& input, Arguments& arguments) {
  const Value* attribute = find(arguments.named, "attribute");
  List out;
  if (attribute != nullptr) {
    const Value* otherwise = find(arguments.named, "default");
    for (const Value& item : items_of(input)) {
      Value value = subscript(item, *attribute);
      if (value.is_undefined() && otherwise != nullptr) value = *otherwise;
      out.push_back(std::move(value));
    }
    return out;
  }
  if (arguments.positional.empty()) fail("map: needs a filter or attribute=");
  const std::string name = to_text(arguments.positional[0]);
  const Filter filter = find_filter(name);
  if (filter == nullptr || filter == filter_map)
    fail("map: no filter \"", name.substr(0, 60), "\"");
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  for (const Value& item : items_of(input)) {
    Arguments copy = rest;
    out.push_back(filter(item, copy));
  }
  return out;
}

Value filter_end(const Value& input, bool first) {
  const List items = items_of(input);
  if (items.empty()) return Undefined{"an item of an empty sequence"};
  return first ? items.front() : items.back();
}

Value filter_int(const Value& input, Arguments& arguments) {
  const int64_t otherwise = int_argument(arguments, 0, "default", 0);
  if (input.is_float()) {
    const double number = std::trunc(input.floating());
    return std::fabs(number) < 9e18 ? static_cast<int64_t>(number) : otherwise;
  }
  if (input.is_number()) return input.as_int();
  if (!input.is_string()) return otherwise;
  Arguments none;
  const std::string text = strip_by(input.string(), none, true, true);
  int64_t number = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return otherwise;
  return number;
}

Value filter_float(const Value& input, Arguments&) {
  if (input.is_number()) return input.number();
  if (!input.is_string()) return 0.0;
  Arguments none;
  const std::string text = strip_by(input.string(), none, true, true);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? number : 0.0;
}

Value filter_abs(const Value& input, Arguments&) {
  if (input.is_float()) return std::fabs(input.floating());
  if (!input.is_number()) fail("abs: needs a number");
  if (input.as_int() == INT64_MIN) fail("an integer leaves 64 bits");
  return std::abs(input.as_int());
}

Value filter_indent(const Value& input, Arguments& arguments) {
  const Value width = argument(arguments, 0, "width");
  std::string blanks(4, ' ');
  if (width.is_string()) blanks = width.string();
  if (width.is_int()) {
    blanks.assign(static_cast<size_t>(std::clamp<int64_t>(width.integer(), 0, 1024)), ' ');
  }
  const bool first = argument(arguments, 1, "first").truth();
  const bool blank_lines = argument(arguments, 2, "blank").truth();
  std::string out;
  const std::string text = to_text(input);
  size_t begin = 0;
  for (bool top = true;; top = false) {
    const size_t end = text.find('\n', begin);
    const auto line = std::string_view(text).substr(begin, end - begin);
    if (top ? first : (blank_lines || !line.empty())) append(out, blanks);
    append(out, line);
    if (end == std::string::npos) return out;
    append(out, "\n");
    begin = end + 1;
  }
}

Value filter_reverse(const Value& input, Arguments&) {
  List items = items_of(input);
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) return items;
  std::string out;
  for (const Value& c : items) out += c.string();
  return out;
}

Value filter_unique(const Value& input, Arguments&) {
  List out;
  for (const Value& item : items_of(input)) {
    if (out.size() > 4096) fail("unique: more than 4096 items");
    if (std::none_of(out.begin(), out.end(), [&](const Value& v) { return equal(v, item); })) {
      out.push_back(item);
    }
  }
  return out;
}

Value filter_replace(const Value& input, Arguments& arguments) {
  return replace(to_text(input), text_argument(arguments, 0, "old"),
                 text_argument(arguments, 1, "new"), int_argument(arguments, 2, "count", -1));
}

Value filter_dictsort(const Value& input, Arguments& arguments) {
  if (!input.is_dict()) fail("dictsort: needs a mapping");
  std::vector<std::pair<std::string, Value>> items = input.dict();
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return lower(a.first) < lower(b.first); });
  (void)arguments;
  List out;
  for (auto& [key, value] : items) out.emplace_back(List{Value(key), std::move(value)});
  return out;
}

// --- tests

bool test_equal(const Value& input, Arguments& arguments) {
  return equal(input, argument(arguments, 0, "other"));
}
bool test_in(const Value& input, Arguments& arguments) {
  return contains(argument(arguments, 0, "seq"), input);
}
template <int kLow, int kHigh>
bool test_order(const Value& input, Arguments& arguments) {
  const int order = compare(input, argument(arguments, 0, "other"));
  return order >= kLow && order <= kHigh;
}
int64_t remainder_of(const Value& input, int64_t by) {
  if (!input.is_int() && !input.is_bool()) fail("needs an int, is a ", input.type_name());
  if (by == 0) fail("division by zero");
  return by == -1 ? 0 : input.as_int() % by;
}

}  // namespace

Value argument(Arguments& arguments, size_t index, const char* name) {
  if (index < arguments.positional.size()) return arguments.positional[index];
  const Value* value = find(arguments.named, name);
  return value == nullptr ? Value() : *value;
}

Filter find_filter(const std::string& name) {
  using A = Arguments&;
  using V = const Value&;
  static const std::map<std::string, Filter> kFilters = {
      {"default", filter_default},
      {"d", filter_default},
      {"items", filter_items},
      {"length", filter_length},
      {"count", filter_length},
      {"tojson", filter_tojson},
      {"join", filter_join},
      {"map", filter_map},
      {"int", filter_int},
      {"float", filter_float},
      {"abs", filter_abs},
      {"indent", filter_indent},
      {"reverse", filter_reverse},
      {"unique", filter_unique},
      {"replace", filter_replace},
      {"dictsort", filter_dictsort},
      {"safe", [](V v, A) { return v.is_string() ? v : Value(to_text(v)); }},
      {"string", [](V v, A) { return v.is_string() ? v : Value(to_text(v)); }},
      {"list", [](V v, A) { return Value(items_of(v)); }},
      {"first", [](V v, A) { return filter_end(v, true); }},
      {"last", [](V v, A) { return filter_end(v, false); }},
      {"trim", [](V v, A a) { return Value(strip_by(to_text(v), a, true, true)); }},
      {"lower", [](V v, A) { return Value(lower(to_text(v))); }},
      {"upper", [](V v, A) { return Value(upper(to_text(v))); }},
      {"capitalize", [](V v, A) { return Value(capitalize(to_text(v))); }},
      {"title", [](V v, A) { return Value(title(to_text(v))); }},
      {"select", [](V v, A a) { return choose(v, a, true, false); }},
      {"reject", [](V v, A a) { return choose(v, a, false, false); }},
      {"selectattr", [](V v, A a) { return choose(v, a, true, true); }},
      {"rejectattr", [](V v, A a) { return choose(v, a, false, true); }},
  };
  const auto at = kFilters.find(name);
  return at == kFilters.end() ? nullptr : at->second;
}

Test find_test(const std::string& name) {
  using A = Arguments&;
  using V = const Value&;
  static const std::map<std::string, Test> kTests = {
      {"defined", [](V v, A) { return !v.is_undefined(); }},
      {"undefined", [](V v, A) { return v.is_undefined(); }},
      {"none", [](V v, A) { return v.is_none(); }},
      {"string", [](V v, A) { return v.is_string(); }},
      {"number", [](V v, A) { return v.is_number(); }},
      {"integer", [](V v, A) { return v.is_int(); }},
      {"float", [](V v, A) { return v.is_float(); }},
      {"boolean", [](V v, A) { return v.is_bool(); }},
      {"true", [](V v, A) { return v.is_bool() && v.boolean(); }},
      {"false", [](V v, A) { return v.is_bool() && !v.boolean(); }},
      {"mapping", [](V v, A) { return v.is_dict(); }},
      {"sequence", [](V v, A) { return v.is_string() || v.is_list() || v.is_dict(); }},
      {"iterable",
       [](V v, A) { return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined(); }},
      {"callable", [](V v, A) { return v.is_callable(); }},
      {"odd", [](V v, A) { return remainder_of(v, 2) != 0; }},
      {"even", [](V v, A) { return remainder_of(v, 2) == 0; }},
      {"divisibleby", [](V v, A a) { return remainder_of(v, int_argument(a, 0, "num", 0)) == 0; }},
      {"eq", test_equal},
      {"equalto", test_equal},
      {"==", test_equal},
      {"ne", [](V v, A a) { return !test_equal(v, a); }},
      {"!=", [](V v, A a) { return !test_equal(v, a); }},
      {"in", test_in},
      {"lt", test_order<-1, -1>},
      {"<", test_order<-1, -1>},
      {"le", test_order<-1, 0>},
      {"<=", test_order<-1, 0>},
      {"gt", test_order<1, 1>},
      {">", test_order<1, 1>},
      {"ge", test_order<0, 1>},
      {">=", test_order<0, 1>},
      {"lower", [](V v, A) { return to_text(v) == lower(to_text(v)); }},
      {"upper", [](V v, A) { return to_text(v) == upper(to_text(v)); }},
  };
  const auto at = kTests.find(name);
  return at == kTests.end() ? nullptr : at->second;
}

bool is_method(const Value& object, const std::string& name) {
  static constexpr std::string_view kDict[] = {"items", "keys",   "values",     "get",     "pop",
                                               "copy",  "update", "setdefault", "popitem", "clear"};
  static constexpr std::string_view kString[] = {
      "strip",    "lstrip",  "rstrip",     "split",   "rsplit",      "startswith",
      "endswith", "replace", "lower",      "upper",   "capitalize",  "title",
      "find",     "count",   "splitlines", "isdigit", "isspace",     "removeprefix",
      "join",     "format",  "index",      "isalpha", "removesuffix"};
  static constexpr std::string_view kList[] = {"index", "count", "append", "extend",  "insert",
                                               "pop",   "copy",  "remove", "reverse", "sort"};
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (object.is_dict()) return has(kDict);
  if (object.is_string()) return has(kString);
  return object.is_list() && has(kList);
}

namespace {

Value dict_method(const Value& object, const std::string& name, Arguments& arguments) {
  if (name == "items") return filter_items(object, arguments);
  if (name == "keys") return items_of(object);
  if (name == "copy") return object;
  if (name == "values") {
    List out;
    for (const auto& item : object.dict()) out.push_back(item.second);
    return out;
  }
  if (name == "get") {
    const Value value = subscript(object, argument(arguments, 0, "key"));
    if (!value.is_undefined()) return value;
    const Value otherwise = argument(arguments, 1, "default");
    return otherwise.is_undefined() ? Value(None{}) : otherwise;
  }
  fail("a template may not change a dict: ", name);
}

Value string_method(const std::string& text, const std::string& name, Arguments& arguments) {
  const auto all = [&](auto passes) {
    return !text.empty() && std::all_of(text.begin(), text.end(), passes);
  };
  if (name == "strip") return strip_by(text, arguments, true, true);
  if (name == "lstrip") return strip_by(text, arguments, true, false);
  if (name == "rstrip") return strip_by(text, arguments, false, true);
  if (name == "split") return split(text, arguments, false);
  if (name == "rsplit") return split(text, arguments, true);
  if (name == "splitlines") return lines_of(text);
  if (name == "startswith") return affix(text, arguments, true);
  if (name == "endswith") return affix(text, arguments, false);
  if (name == "replace") return filter_replace(Value(text), arguments);
  if (name == "lower") return lower(text);
  if (name == "upper") return upper(text);
  if (name == "capitalize") return capitalize(text);
  if (name == "title") return title(text);
  if (name == "isdigit") return all([](char c) { return c >= '0' && c <= '9'; });
  if (name == "isspace") return all([](char c) { return kBlanks.find(c) != kBlanks.npos; });
  if (name == "isalpha") {
    return all([](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
  }
  if (name == "removeprefix") {
    const std::string prefix = text_argument(arguments, 0, "prefix");
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
  if (name == "removesuffix") {
    const std::string suffix = text_argument(arguments, 0, "suffix");
    return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text;
  }
  if (name == "find" || name == "index") {
    const size_t at = text.find(text_argument(arguments, 0, "sub"));
    if (at != std::string::npos) return length_of(std::string_view(text).substr(0, at));
    if (name == "index") fail("index: not found");
    return int64_t{-1};
  }
  if (name == "count") {
    const std::string part = text_argument(arguments, 0, "sub");
    if (part.empty()) return length_of(text) + 1;
    int64_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; ++n) {
      at = text.find(part, at + part.size());
    }
    return n;
  }
  if (name == "join") {
    Arguments join;
    join.positional = {Value(text)};
    const Value list = argument(arguments, 0, "iterable");
    for (const Value& item : items_of(list)) {
      if (!item.is_string()) fail("join: an item is a ", item.type_name());
    }
    return filter_join(list, join);
  }
  fail("a str's method ", name, " is not taken here");
}

}  // namespace

Value call_method(const Value& object, const std::string& name, Arguments& arguments) {
  if (object.is_dict()) return dict_method(object, name, arguments);
  if (object.is_string()) return string_method(object.string(), name, arguments);
  if (object.is_list() && name == "copy") return object;
  if (object.is_list() && (name == "index" || name == "count")) {
    const Value item = argument(arguments, 0, "value");
    int64_t n = 0;
    for (size_t i = 0; i < object.list().size(); ++i) {
      if (!equal(object.list()[i], item)) continue;
      if (name == "index") return static_cast<int64_t>(i);
      ++n;
    }
    if (name == "index") fail("index: not found");
    return n;
  }
  fail("a template may not change a list: ", name);
}

}  // namespace replayssm::jinja
