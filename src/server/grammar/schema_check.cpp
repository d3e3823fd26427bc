#include "server/grammar/schema_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "core/utf8.h"
#include "server/api_error.h"
#include "server/grammar/keyword_reader.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxSchemas = 1024;
constexpr size_t kMaxOptional = 256;     // properties of one object: it grows with their square
constexpr size_t kMaxAlternatives = 64;  // of schemas that are joined
constexpr int kMaxJoined = 16;           // one in another
constexpr int64_t kMaxStates = 2048;     // of all patterns: each costs time for each token
constexpr double kMaxBound = 1e15;       // of numbers; larger ones are no bound in practice

std::string cut(const std::string& name) { return name.substr(0, 64); }

// Whether blanks round a bare text, which are no part of it, can be told from it, and all of it can
// be written.
bool fits_between_marks(const std::string& text) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r'; };
  return std::none_of(text.begin(), text.end(),
                      [&](char c) { return static_cast<unsigned char>(c) < ' ' && !blank(c); }) &&
         (text.empty() || (!blank(text.front()) && !blank(text.back())));
}

// Whether no value is valid for two of the schemas, by their types or by a property that each
// requires to be another value.
class Disjoint {
 public:
  using Resolve = std::function<const Json*(const Json&)>;
  explicit Disjoint(Resolve resolve) : resolve_(std::move(resolve)) {}

  bool all(const Json& branches) const {
    for (size_t i = 0; i < branches.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (!two(branches[i], branches[k])) return false;
      }
    }
    return true;
  }

 private:
  bool two(const Json& a_given, const Json& b_given) const {
    const Json* a = target(a_given);
    const Json* b = target(b_given);
    if (a == nullptr || b == nullptr) return false;
    if (a->contains("type") && b->contains("type") && types_differ(a->at("type"), b->at("type"))) {
      return true;
    }
    if (values_differ(*a, *b)) return true;
    const Json& required = a->value("required", Json::array());
    for (const Json& name : required) {
      const Json property = property_of(*a, name);
      const Json other = property_of(*b, name);
      const Json b_required = b->value("required", Json::array());
      const bool both = std::find(b_required.begin(), b_required.end(), name) != b_required.end();
      if (both && a->value("type", Json()) == "object" && b->value("type", Json()) == "object" &&
          property.is_object() && other.is_object() && values_differ(property, other)) {
        return true;
      }
    }
    return false;
  }

  const Json* target(const Json& schema) const {
    const Json* at = &schema;
    for (int i = 0; at != nullptr && at->is_object() && at->contains("$ref"); ++i) {
      if (i == kMaxJoined) return nullptr;
      at = resolve_(at->at("$ref"));
    }
    return at != nullptr && at->is_object() ? at : nullptr;
  }

  static Json property_of(const Json& schema, const Json& name) {
    const auto properties = schema.find("properties");
    if (properties == schema.end() || !properties->is_object() || !name.is_string()) return {};
    return properties->value(name.get<std::string>(), Json());
  }

  static bool types_differ(const Json& a, const Json& b) {
    for (const Json& x : a.is_array() ? a : Json::array({a})) {
      for (const Json& y : b.is_array() ? b : Json::array({b})) {
        const bool numbers = (x == "number" && y == "integer") || (x == "integer" && y == "number");
        if (x == y || numbers) return false;
      }
    }
    return true;
  }

  static bool values_differ(const Json& a, const Json& b) {
    const Json of_a = values(a), of_b = values(b);
    if (of_a.empty() || of_b.empty()) return false;
    for (const Json& x : of_a) {
      for (const Json& y : of_b) {
        if (same_value(x, y)) return false;
      }
    }
    return true;
  }

  static Json values(const Json& schema) {
    if (schema.contains("const")) return Json::array({schema.at("const")});
    const Json list = schema.value("enum", Json::array());
    return list.is_array() ? list : Json::array();
  }

  const Resolve resolve_;
};

class Checker {
 public:
  Checker(const Json& root, const std::string& field, Warnings& warnings, StringForm form)
      : root_(root),
        field_(field),
        reader_(field, warnings),
        place_(form == StringForm::kBare ? Place::kCall : Place::kJson) {}

  Json whole() {
    if (dump_json(root_).size() > kMaxSchemaBytes) {
      refuse(field_, concat("is larger than ", kMaxSchemaBytes, " bytes"));
    }
    if (root_.is_boolean() && !root_.get<bool>()) refuse(field_, "false allows nothing");
    name_of(root_, field_);
    Json out = Json::object();
    for (size_t i = 0; i < targets_.size(); ++i) {
      const Target target = targets_[i];
      definition_ = name(i);
      place_ = target.place;
      out[name(i)] = convert(*target.schema, target.path);
    }
    refuse_circles();
    refuse_endless(out);
    Json root = out[name(0)];
    if (!is_referred_[0]) out.erase(name(0));
    if (is_referred_[0]) root = {{"$ref", "#/$defs/" + name(0)}};
    if (out.empty()) return root;
    if (root.is_boolean()) return root;
    root["$defs"] = std::move(out);
    return root;
  }

 private:
  // Where a value stands: kCall is a call's arguments, whose properties stand between marks
  // (kBare).
  enum class Place { kCall, kBare, kJson };
  struct Target {
    const Json* schema;
    std::string path;
    Place place;
  };

  static std::string name(size_t i) { return concat("d", i); }

  // The definition that stands for a part of the request's schema.
  std::string name_of(const Json& target, const std::string& place) {
    const auto [at, is_new] = names_.emplace(std::pair(&target, place_), targets_.size());
    if (is_new) {
      targets_.push_back({&target, place, place_});
      is_referred_.push_back(false);
    } else {
      is_referred_[at->second] = true;
    }
    return name(at->second);
  }

  void count_one(const std::string& path) {
    if (++n_schemas_ > kMaxSchemas) {
      refuse(path, concat("the schema is too large: more than ", kMaxSchemas, " schemas in all"));
    }
  }

  Json convert(const Json& schema, const std::string& path) {
    count_one(path);
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) refuse(path, "false allows nothing");
      return schema;
    }
    if (!schema.is_object()) refuse(path, "must be a schema: an object or true");
    std::vector<std::string> combine;
    for (const char* key : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (schema.contains(key)) combine.emplace_back(key);
    }
    Keywords keywords = reader_.read(schema, path);
    if (combine.empty()) {
      keywords.close();
      return finish(keywords, path);
    }
    const std::string place = path + "." + combine[0];
    const Json& inner = schema.at(combine[0]);
    const bool alone = combine.size() == 1 && keywords.empty() && !keywords.nullable;
    if (alone && combine[0] == "$ref") return reference(inner, place);
    if (combine[0] != "$ref") check_list(combine[0], inner, place);
    if (alone && (combine[0] != "allOf" || inner.size() == 1)) {
      Json branches = Json::array();
      for (size_t i = 0; i < inner.size(); ++i) {
        branches.push_back(convert(inner[i], concat(place, "[", i, "]")));
      }
      return any_of(std::move(branches));
    }
    Json branches = Json::array();
    for (const Keywords& joined : expand(schema, path, 0)) branches.push_back(finish(joined, path));
    if (branches.empty()) refuse(path, "what it joins allows nothing");
    return any_of(std::move(branches));
  }

  static Json any_of(Json branches) {
    if (std::find(branches.begin(), branches.end(), Json(true)) != branches.end()) return true;
    return branches.size() == 1 ? branches[0] : Json{{"anyOf", std::move(branches)}};
  }

  void check_list(const std::string& key, const Json& list, const std::string& place) {
    if (!list.is_array() || list.empty()) refuse(place, "must be a list of schemas");
    if (key != "oneOf") return;
    const Disjoint disjoint([&](const Json& reference) { return &referred(reference, place); });
    if (!disjoint.all(list)) reader_.warn("oneOf is taken as anyOf");
  }

  Json reference(const Json& value, const std::string& place) {
    const Json& target = referred(value, place);
    const size_t n_known = targets_.size();
    const std::string to = name_of(target, path_of(value));
    if (n_known < targets_.size()) is_referred_[n_known] = true;
    if (!definition_.empty()) circles_.push_back({definition_, to, place});
    return {{"$ref", "#/$defs/" + to}};
  }

  const Json& referred(const Json& reference, const std::string& place) const {
    if (!reference.is_string()) refuse(place, "must be a string");
    std::string target = reference.get<std::string>();
    if (target == "#") return root_;
    if (!target.starts_with("#/")) refuse(place, "must point into this schema: #/...");
    try {
      return root_.at(Json::json_pointer(percent_decoded(target.substr(1))));
    } catch (const Json::exception&) {
      refuse(place, "points nowhere");
    }
  }

  static std::string percent_decoded(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto digit = [&](size_t at) {
        return at < text.size() && std::isxdigit(text[at]) != 0;
      };
      if (text[i] == '%' && digit(i + 1) && digit(i + 2)) {
        out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        out += text[i];
      }
    }
    return out;
  }

  std::string path_of(const Json& reference) const {
    std::string out = field_;
    for (const char c : reference.get<std::string>().substr(1)) out += c == '/' ? '.' : c;
    return out.substr(0, 256);
  }

  // The schema as alternatives without schemas that it joins.
  std::vector<Keywords> expand(const Json& schema, const std::string& path, int depth) {
    count_one(path);
    if (depth > kMaxJoined) refuse(path, "joins schemas deeper than is enforced, or itself");
    if (schema == Json(true)) return {Keywords()};
    if (schema == Json(false)) return {};
    if (!schema.is_object()) refuse(path, "must be a schema: an object or true");
    Keywords own = reader_.read(schema, path);
    std::vector<Keywords> out = {own};
    if (schema.contains("$ref")) {
      const std::string place = path + ".$ref";
      out = joined(out, expand(referred(schema.at("$ref"), place), place, depth + 1), place);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.contains(key)) continue;
      const std::string place = concat(path, ".", key);
      check_list(key, schema.at(key), place);
      std::vector<Keywords> branches;
      for (const Json& branch : schema.at(key)) {
        for (auto& part : expand(branch, place, depth + 1)) branches.push_back(std::move(part));
      }
      out = joined(out, branches, place);
    }
    if (schema.contains("allOf")) {
      const std::string place = path + ".allOf";
      check_list("allOf", schema.at("allOf"), place);
      for (const Json& part : schema.at("allOf")) {
        out = joined(out, expand(part, place, depth + 1), place);
      }
    }
    for (Keywords& keywords : out) {
      if (own.nullable) keywords.nullable = true;
      keywords.close();
    }
    return out;
  }

  static std::vector<Keywords> joined(const std::vector<Keywords>& some,
                                      const std::vector<Keywords>& others,
                                      const std::string& place) {
    std::vector<Keywords> out;
    for (const Keywords& a : some) {
      for (const Keywords& b : others) {
        try {
          if (auto both = merge(a, b)) out.push_back(std::move(*both));
        } catch (const NotMerged& e) {
          refuse(place, concat(e.keyword, " cannot be joined with what stands beside it"));
        }
        if (out.size() > kMaxAlternatives) refuse(place, "joins too many alternatives");
      }
    }
    return out;
  }

  Json finish(const Keywords& keywords, const std::string& path) {
    if (keywords.values)
      return {{"enum", fitting_values(keywords, path + "." + keywords.values_keyword)}};
    const TypeSet types = types_of(keywords, path);
    if (types.empty()) return true;
    Json branches = Json::array();
    for (const std::string& type : types) {
      if (type != "integer" || !types.contains("number")) {
        branches.push_back(of_type(keywords, type, path));
      }
    }
    if (keywords.nullable && !types.contains("null")) branches.push_back({{"type", "null"}});
    return any_of(std::move(branches));
  }

  // The types given; else the one that the keywords are about; none: all are meant.
  TypeSet types_of(const Keywords& k, const std::string& path) {
    if (k.types) return *k.types;
    TypeSet out;
    if (k.min_length > 0 || k.max_length >= 0 || k.pattern || k.format) out.insert("string");
    if (k.bounds.least || k.bounds.most || k.whole) out.insert("number");
    if (k.items || !k.prefix.empty() || k.min_items > 0 || k.max_items >= 0 || k.unique) {
      out.insert("array");
    }
    if (!k.properties.empty() || !k.required.empty() || k.others || k.key_pattern || k.key_values ||
        k.min_properties > 0 || k.max_properties >= 0) {
      out.insert("object");
    }
    if (out.size() > 1) refuse(path, "needs a type: it has keywords of several");
    if (!out.empty()) reader_.warn(concat("where no type is given, it is ", *out.begin()));
    return out;
  }

  Json fitting_values(const Keywords& k, const std::string& path) {
    const auto fits = [&](const Json& value) {
      if (k.types && std::none_of(k.types->begin(), k.types->end(),
                                  [&](auto& type) { return is_of_type(value, type); })) {
        return false;
      }
      if (value.is_string()) {
        if (place_ == Place::kBare && !fits_between_marks(value.get<std::string>())) return false;
        if (k.pattern || k.format) refuse(path, "pattern and format cannot stand beside enum");
        const auto n = static_cast<int64_t>(count_characters(value.get<std::string>()));
        return n >= k.min_length && (k.max_length < 0 || n <= k.max_length);
      }
      if (value.is_number()) {
        const Bounds& b = k.bounds;
        return (!b.least || (b.least_is_exclusive ? value > *b.least : value >= *b.least)) &&
               (!b.most || (b.most_is_exclusive ? value < *b.most : value <= *b.most)) &&
               (!k.whole || is_of_type(value, "integer"));
      }
      if (!value.is_structured()) return true;
      Keywords rest;
      rest.types = k.types;
      rest.values = k.values;
      rest.bounds = k.bounds;
      rest.min_length = k.min_length;
      rest.max_length = k.max_length;
      rest.pattern = k.pattern;
      rest.format = k.format;
      rest.whole = k.whole;
      if (!says_the_same(rest, k)) refuse(path, "only type can stand beside objects of an enum");
      return true;
    };
    Json kept = Json::array();
    for (const Json& value : *k.values) {
      if (fits(value)) kept.push_back(value);
    }
    if (k.nullable && std::find(kept.begin(), kept.end(), Json()) == kept.end()) {
      kept.push_back(Json());
    }
    if (kept.empty()) refuse(path, "none of its values is valid for the keywords beside them");
    return kept;
  }

  static bool says_the_same(const Keywords& a, const Keywords& b) {
    return a.items == b.items && a.prefix == b.prefix && a.min_items == b.min_items &&
           a.max_items == b.max_items && a.unique == b.unique && a.properties == b.properties &&
           a.required == b.required && a.others == b.others && a.key_pattern == b.key_pattern &&
           a.key_values == b.key_values && a.min_properties == b.min_properties &&
           a.max_properties == b.max_properties;
  }

  static size_t count_characters(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                             [](unsigned char c) { return (c & 0xc0) != 0x80; }));
  }

  Json of_type(const Keywords& keywords, const std::string& type, const std::string& path) {
    if (type == "object") return object(keywords, path);
    if (type == "array") return array(keywords, path);
    if (type == "string") return string(keywords, path);
    if (type == "integer" || (type == "number" && keywords.whole)) return integer(keywords, path);
    if (type == "number") return number(keywords, path);
    return {{"type", type}};
  }

  Json string(const Keywords& k, const std::string& path) {
    Json out = {{"type", "string"}};
    const Lengths lengths = {k.min_length, k.max_length};
    if (k.max_length >= 0 && k.max_length < k.min_length) {
      refuse(path + ".maxLength", "is below minLength");
    }
    if (k.pattern && k.format) refuse(path + ".pattern", "cannot stand beside this format");
    const StringForm form = place_ == Place::kBare ? StringForm::kBare : StringForm::kQuoted;
    try {
      if (k.pattern) out["pattern"] = kept(enforced_pattern(*k.pattern, lengths, form));
      if (k.format) out["pattern"] = kept(enforced_format(*k.format, lengths, form));
    } catch (const Error& e) {
      refuse(path + (k.pattern ? ".pattern" : ".format"), e.what());
    }
    if (k.pattern || k.format) return out;
    if (form == StringForm::kBare && (k.min_length > 0 || k.max_length >= 0)) {
      out["pattern"] = bare_string(lengths);
      return out;
    }
    if (k.min_length > 0) out["minLength"] = k.min_length;
    if (k.max_length >= 0) out["maxLength"] = k.max_length;
    return out;
  }

  // Equal ones cost once.
  const std::string& kept(const EnforcedPattern& pattern) {
    const auto [at, is_new] = patterns_.insert(pattern.text);
    if (is_new) n_states_ += pattern.size;
    if (n_states_ > kMaxStates) fail("its patterns are too large in all");
    return *at;
  }

  static Json integer(const Keywords& k, const std::string& path) {
    Json out = {{"type", "integer"}};
    // Beyond 64 bits there is no bound that a client's integers could break.
    const auto bound = [&](const Json& value, bool exclusive, int step) -> int64_t {
      constexpr double kLargest = 9223372036854774784.0;  // a double below 2^63
      if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return INT64_MAX;
      }
      if (value.is_number_integer()) {
        const auto whole = value.get<int64_t>();
        const bool at_end = whole == (step > 0 ? INT64_MAX : INT64_MIN);
        return exclusive && !at_end ? whole + step : whole;
      }
      const double given = value.get<double>();
      const double rounded = step > 0 ? std::ceil(given) : std::floor(given);
      const double clamped = std::clamp(rounded, -kLargest, kLargest);
      return static_cast<int64_t>(clamped) + (exclusive && rounded == given ? step : 0);
    };
    if (k.bounds.least) out["minimum"] = bound(*k.bounds.least, k.bounds.least_is_exclusive, 1);
    if (k.bounds.most) out["maximum"] = bound(*k.bounds.most, k.bounds.most_is_exclusive, -1);
    check_bounds(out, path);
    return out;
  }

  Json number(const Keywords& k, const std::string& path) {
    Json out = {{"type", "number"}};
    const auto bound = [&](const Json& value) -> Json {
      if (std::abs(value.get<double>()) <= kMaxBound) return value;
      reader_.warn("bounds of numbers beyond 1e15 are taken as 1e15");
      return std::clamp(value.get<double>(), -kMaxBound, kMaxBound);
    };
    const Bounds& b = k.bounds;
    if (b.least) out[b.least_is_exclusive ? "exclusiveMinimum" : "minimum"] = bound(*b.least);
    if (b.most) out[b.most_is_exclusive ? "exclusiveMaximum" : "maximum"] = bound(*b.most);
    check_bounds(out, path);
    return out;
  }

  static void check_bounds(const Json& schema, const std::string& path) {
    const auto find = [&](const char* key, const char* other) {
      return schema.contains(key) ? schema.at(key) : schema.value(other, Json());
    };
    const Json least = find("minimum", "exclusiveMinimum");
    const Json most = find("maximum", "exclusiveMaximum");
    if (least.is_number() && most.is_number() && least > most) {
      refuse(path + ".maximum", "the minimum is above the maximum");
    }
  }

  Json array(const Keywords& k, const std::string& path) {
    if (k.unique && k.max_items != 0 && k.max_items != 1) {
      refuse(path + ".uniqueItems", "this keyword is not enforced; leave it out");
    }
    if (k.max_items >= 0 && k.max_items < k.min_items) {
      refuse(path + ".maxItems", "is below minItems");
    }
    Json out = {{"type", "array"}};
    const Inside inside(*this, Place::kJson);
    const auto n_prefix = static_cast<int64_t>(k.prefix.size());
    if (n_prefix > 0) {
      Json prefix = Json::array();
      for (int64_t i = 0; i < n_prefix && (k.max_items < 0 || i < k.max_items); ++i) {
        prefix.push_back(
            convert(k.prefix[static_cast<size_t>(i)], concat(path, ".prefixItems[", i, "]")));
      }
      out["prefixItems"] = std::move(prefix);
    }
    // Behind a prefix nothing comes unless items says what.
    const bool closed = k.items ? *k.items == Json(false) : n_prefix > 0;
    if (closed) {
      if (k.min_items > n_prefix) refuse(path + ".minItems", "is above what the items leave");
      out["items"] = false;
    } else {
      out["items"] = k.items ? convert(*k.items, path + ".items") : Json(true);
    }
    if (k.min_items > 0) out["minItems"] = k.min_items;
    if (k.max_items >= 0 && !(closed && k.max_items >= n_prefix)) out["maxItems"] = k.max_items;
    if (out.contains("prefixItems") && out["prefixItems"].empty()) out.erase("prefixItems");
    return out;
  }

  Json object(const Keywords& k, const std::string& path) {
    const bool in_marks = place_ == Place::kCall;
    const Inside inside(*this, in_marks ? Place::kBare : Place::kJson);
    Json out = {{"type", "object"}};
    const Json others = k.others.value_or(Json(false));
    Json properties = Json::object();
    for (const auto& item : k.properties.items()) {
      if (item.value() == Json(false) && !k.required.contains(item.key())) continue;
      properties[item.key()] = convert(item.value(), concat(path, ".properties.", cut(item.key())));
    }
    if (k.key_values) {
      for (const Json& name : *k.key_values) {
        if (!name.is_string() || properties.contains(name.get<std::string>())) continue;
        properties[name.get<std::string>()] =
            convert(k.others.value_or(Json(true)), path + ".additionalProperties");
      }
      for (const auto& item : k.properties.items()) {
        if (std::find(k.key_values->begin(), k.key_values->end(), item.key()) ==
            k.key_values->end()) {
          refuse(path + ".propertyNames", concat("\"", cut(item.key()), "\" is none of them"));
        }
      }
    }
    bool open = others != Json(false) && !k.key_values && !k.key_pattern;
    for (const std::string& name : k.required) {
      if (properties.contains(name)) continue;
      if (k.key_pattern || k.key_values || (k.others && *k.others == Json(false))) {
        refuse(path + ".required", concat("\"", cut(name), "\" is none of the properties"));
      }
      properties[name] = convert(k.others.value_or(Json(true)), path + ".additionalProperties");
    }
    if (in_marks) {
      if (k.key_pattern) {
        refuse(path + ".patternProperties", "is not enforced in this model's form of a call");
      }
      for (const auto& item : properties.items()) {
        if (item.key().empty() || item.key().find('<') != std::string::npos ||
            !fits_between_marks(item.key())) {
          refuse(path + ".properties", concat("\"", cut(item.key()),
                                              "\" cannot be written in this model's form of a "
                                              "call"));
        }
      }
      // The names of others could be those of the properties.
      open = open && properties.empty();
    }
    const size_t n_optional = properties.size() - k.required.size();
    if (n_optional > kMaxOptional) {
      refuse(path + ".properties",
             concat(n_optional, " are not required; at most ", kMaxOptional, " may be"));
    }
    if (k.min_properties > static_cast<int64_t>(k.required.size())) {
      refuse(path + ".minProperties", "is enforced up to the number of required properties");
    }
    const bool few =
        !open && !k.key_pattern && k.max_properties >= static_cast<int64_t>(properties.size());
    if (k.max_properties >= 0 && !few) {
      refuse(path + ".maxProperties", "is enforced where no more properties are named");
    }
    if (k.key_pattern) {
      const auto item = k.key_pattern->begin();
      const std::string place = path + ".patternProperties";
      try {
        const std::string pattern = kept(enforced_pattern(item.key()));
        out["patternProperties"] = {{pattern, convert(*item, place)}};
      } catch (const Error& e) {
        refuse(place, e.what());
      }
      out["additionalProperties"] = false;
      return out;
    }
    if (!properties.empty()) out["properties"] = std::move(properties);
    if (!k.required.empty()) out["required"] = k.required;
    out["additionalProperties"] =
        open ? convert(others, path + ".additionalProperties") : Json(false);
    return out;
  }

  // While it lives, references are no circles: something stands round them.
  class Inside {
   public:
    Inside(Checker& checker, Place place)
        : checker_(checker), outer_(checker.definition_), outer_place_(checker.place_) {
      checker_.definition_.clear();
      checker_.place_ = place;
    }
    ~Inside() {
      checker_.definition_ = outer_;
      checker_.place_ = outer_place_;
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Checker& checker_;
    const std::string outer_;
    const Place outer_place_;
  };

  // A schema that is itself by references alone says nothing. What is referred to by nothing, or
  // refers to what refers to nothing, is taken away until circles remain.
  void refuse_circles() {
    for (size_t n = circles_.size() + 1; n > circles_.size();) {
      n = circles_.size();
      std::set<std::string> from, to;
      for (const Circle& circle : circles_) {
        from.insert(circle.from);
        to.insert(circle.to);
      }
      std::erase_if(circles_, [&](const Circle& circle) {
        return !from.contains(circle.to) || !to.contains(circle.from);
      });
    }
    if (!circles_.empty()) refuse(circles_[0].place, "refers to itself and says nothing else");
  }

  // A schema that needs itself inside has no value that ends.
  void refuse_endless(const Json& definitions) const {
    std::set<std::string> ends;
    for (bool grows = true; grows;) {
      grows = false;
      for (const auto& item : definitions.items()) {
        if (!ends.contains(item.key()) && may_end(item.value(), ends)) {
          ends.insert(item.key());
          grows = true;
        }
      }
    }
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (!ends.contains(name(i))) refuse(targets_[i].path, "needs itself: no value would end");
    }
  }

  static bool may_end(const Json& schema, const std::set<std::string>& ends) {
    if (!schema.is_object()) return true;
    const auto each = [&](const Json& inner) { return may_end(inner, ends); };
    if (schema.contains("$ref")) {
      return ends.contains(
          schema["$ref"].get<std::string>().substr(std::string("#/$defs/").size()));
    }
    if (schema.contains("anyOf")) {
      return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(), each);
    }
    for (const Json& name : schema.value("required", Json::array())) {
      if (!each(schema["properties"][name.get<std::string>()])) return false;
    }
    const auto least = schema.value("minItems", size_t{0});
    const Json prefix = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < std::min(least, prefix.size()); ++i) {
      if (!each(prefix[i])) return false;
    }
    return least <= prefix.size() || each(schema.value("items", Json(true)));
  }

  struct Circle {
    std::string from, to;  // definitions
    std::string place;
  };

  const Json& root_;
  const std::string field_;
  KeywordReader reader_;
  Place place_;  // of what is converted
  std::map<std::pair<const Json*, Place>, size_t> names_;
  std::vector<Target> targets_;
  std::vector<bool> is_referred_;
  std::vector<Circle> circles_;  // references, and circles among them
  std::string definition_;       // whose schema is converted; empty inside an object or array of it
  std::set<std::string> patterns_;
  int64_t n_states_ = 0;  // of their automata
  size_t n_schemas_ = 0;
};

}  // namespace

Json checked_schema(const Json& schema, const std::string& field, Warnings& warnings,
                    StringForm form) {
  return Checker(schema, field, warnings, form).whole();
}

}  // namespace replayssm::server
