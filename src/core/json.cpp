#include "core/json.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"

namespace replayssm {
namespace {

// Counts brackets, commas and strings in one pass, for no value must be made of what is too large.
void check_size(std::string_view text) {
  std::array<size_t, kMaxJsonDepth + 1> n_commas{};
  std::array<bool, kMaxJsonDepth + 1> is_object{};
  size_t n_values = 1;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    const auto level = static_cast<size_t>(depth);
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '[':
      case '{':
        if (++depth > kMaxJsonDepth) fail("not JSON: nests deeper than ", kMaxJsonDepth, " levels");
        n_commas[level + 1] = 0;
        is_object[level + 1] = c == '{';
        ++n_values;
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      case ',':
        ++n_values;
        if (++n_commas[level] >= kMaxJsonKeys && is_object[level]) {
          fail("not accepted: an object has more than ", kMaxJsonKeys, " keys");
        }
        break;
      default:
        break;
    }
    if (n_values > kMaxJsonValues) {
      fail("not accepted: it holds more than ", kMaxJsonValues, " values");
    }
  }
}

// The library's own builder looks through an object for each key that it adds to it.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Json& root) : root_(root) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(int64_t value) override { return put(value); }
  bool number_unsigned(uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool key(std::string& value) override {
    key_ = std::move(value);
    return true;
  }
  bool start_object(size_t) override { return open(Json::value_t::object); }
  bool start_array(size_t) override { return open(Json::value_t::array); }
  bool end_object() override {
    keep_last_of_equal(members(*open_.back()));
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& e) override {
    std::string line = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t at = line.find("] "); at != std::string::npos) line.erase(0, at + 2);
    for (char& c : line) {
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    }
    fail("not JSON: ", line);
  }

 private:
  using Member = std::pair<const std::string, Json>;
  using Members = std::vector<Member>;  // what the library's ordered objects are

  static Members& members(Json& object) { return object.get_ref<Json::object_t&>(); }

  Json& add(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return parent.back();
    }
    Members& all = members(parent);
    all.emplace_back(std::move(key_), std::move(value));
    return all.back().second;
  }
  bool put(Json value) {
    add(std::move(value));
    return true;
  }
  // Pointers stay good: a container takes no further value while one of its values is open.
  bool open(Json::value_t type) {
    open_.push_back(&add(Json(type)));
    return true;
  }

  static void keep_last_of_equal(Members& all) {
    std::vector<size_t> order(all.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return all[a].first < all[b].first; });
    std::vector<bool> drop(all.size());
    bool any = false;
    for (size_t begin = 0; begin < order.size();) {
      size_t end = begin + 1;
      while (end < order.size() && all[order[end]].first == all[order[begin]].first) ++end;
      // The first keeps its place and takes the last one's value.
      if (end - begin > 1) all[order[begin]].second = std::move(all[order[end - 1]].second);
      for (size_t i = begin + 1; i < end; ++i) drop[order[i]] = any = true;
      begin = end;
    }
    if (!any) return;
    Members kept;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!drop[i]) kept.push_back(std::move(all[i]));
    }
    all = std::move(kept);
  }

  Json& root_;
  std::vector<Json*> open_;
  std::string key_;
};

}  // namespace

Json parse_json(std::string_view text) {
  check_size(text);
  Json root;
  Builder builder(root);
  Json::sax_parse(text, &builder);
  return root;
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace replayssm
