#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "core/utf8.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/split_pattern.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "model/tokenizer/unicode_additions.h"

namespace replayssm::model {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = (1 << 22) - 1;  // bounds the tables indexed by id
constexpr size_t kMaxPatternBytes = 16 << 10;
constexpr size_t kMaxAddedTokenBytes = 1 << 10;
constexpr size_t kQuotedBytes = 60;

// A string from the file, fit for one line of a message.
std::string quote(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : to_valid_utf8(text.substr(0, kQuotedBytes))) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + (text.size() > kQuotedBytes ? "...\"" : "\"");
}

// A value together with the path to it, for messages.
class Field {
 public:
  Field(const json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }

  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(path_, ": ", parts...);
  }

  // The member, or a null where it is missing.
  Field get(const char* key) const {
    if (!value_->is_object()) refuse("must be an object");
    static const json null;
    const auto it = value_->find(key);
    return Field(it == value_->end() ? null : *it,
                 concat(path_, path_.ends_with(':') ? " " : ".", key));
  }

  std::vector<Field> items() const {
    if (!value_->is_array()) refuse("must be an array");
    std::vector<Field> fields;
    for (size_t i = 0; i < value_->size(); ++i) {
      fields.emplace_back((*value_)[i], concat(path_, "[", i, "]"));
    }
    return fields;
  }

  const std::string& text() const {
    if (!value_->is_string()) refuse("must be a string");
    return value_->get_ref<const std::string&>();
  }

  bool flag(bool missing) const {
    if (is_null()) return missing;
    if (!value_->is_boolean()) refuse("must be true or false");
    return value_->get<bool>();
  }

  int32_t id() const {
    if (!value_->is_number_integer()) refuse("must be an integer");
    const bool in_range = value_->is_number_unsigned()
                              ? value_->get<uint64_t>() <= static_cast<uint64_t>(kMaxId)
                              : value_->get<int64_t>() >= 0 && value_->get<int64_t>() <= kMaxId;
    if (!in_range) refuse("the id ", value_->dump(), " is not in 0 .. ", kMaxId);
    return value_->get<int32_t>();
  }

  // Refuses anything here but one of these strings.
  void expect_one_of(std::initializer_list<std::string_view> allowed) const {
    if (std::find(allowed.begin(), allowed.end(), text()) != allowed.end()) return;
    std::string list;
    for (const std::string_view one : allowed) list += concat(list.empty() ? "" : ", ", one);
    refuse(quote(text()), " is not supported (supported: ", list, ")");
  }

 private:
  const json* value_;
  std::string path_;
};

class SpecReader {
 public:
  explicit SpecReader(const Field& root) : root_(root) {}

  TokenizerSpec read() {
    const Field model = root_.get("model");
    if (model.is_null()) model.refuse("is missing");
    read_model(model);
    read_normalizer(root_.get("normalizer"));
    const Field pre_tokenizer = root_.get("pre_tokenizer");
    read_pre_tokenizer(pre_tokenizer);
    if (!has_byte_level_)
      pre_tokenizer.refuse("has no ByteLevel; only byte-level BPE is supported");
    read_decoder(root_.get("decoder"));
    const Field added = root_.get("added_tokens");
    if (!added.is_null()) read_added_tokens(added);
    read_post_processor(root_.get("post_processor"));
    return std::move(spec_);
  }

 private:
  void read_model(const Field& model) {
    const Field type = model.get("type");
    // Old files do not name the type; what has merges is BPE.
    if (!type.is_null() || model.get("merges").is_null()) type.expect_one_of({"BPE"});
    if (model.get("byte_fallback").flag(false)) {
      model.get("byte_fallback").refuse("is not supported; only byte-level BPE is");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Field affix = model.get(key);
      if (!affix.is_null() && !affix.text().empty()) affix.refuse("is not supported");
    }
    const Field dropout = model.get("dropout");
    if (!dropout.is_null() && dropout.value() != 0) dropout.refuse("is not supported");
    spec_.ignore_merges = model.get("ignore_merges").flag(false);
    read_vocab(model.get("vocab"));
    read_unknown(model);
    read_merges(model.get("merges"));
  }

  // Makes `content` the token of `id`.
  void put_token(const Field& where, const std::string& content, int32_t id) {
    if (static_cast<size_t>(id) >= spec_.tokens.size()) {
      spec_.tokens.resize(static_cast<size_t>(id) + 1);
      spec_.in_model.resize(static_cast<size_t>(id) + 1);
      taken_.resize(static_cast<size_t>(id) + 1);
    }
    if (taken_[id]) {
      where.refuse(quote(content), " has the id ", id, " of ", quote(spec_.tokens[id]));
    }
    taken_[id] = true;
    spec_.tokens[id] = content;
    ids_.emplace(content, id);
  }

  void read_vocab(const Field& vocab) {
    if (!vocab.value().is_object()) vocab.refuse("must be an object");
    ids_.reserve(vocab.value().size() * 2);
    for (const auto& [content, value] : vocab.value().items()) {
      const Field field(value, vocab.path());
      if (!value.is_number_integer())
        field.refuse("the id of ", quote(content), " must be an integer");
      const int32_t id = field.id();
      put_token(field, content, id);
      spec_.in_model[id] = true;
    }
    for (int byte = 0; byte < 256; ++byte) {
      const auto it = ids_.find(byte_char(static_cast<uint8_t>(byte)));
      spec_.byte_ids[byte] = it == ids_.end() ? Bpe::kNoToken : it->second;
    }
  }

  // What stands for bytes without a token; without such they are dropped.
  void read_unknown(const Field& model) {
    const Field unknown = model.get("unk_token");
    if (unknown.is_null() || unknown.text().empty()) return;
    const auto it = ids_.find(unknown.text());
    const bool needed = std::find(spec_.byte_ids.begin(), spec_.byte_ids.end(), Bpe::kNoToken) !=
                        spec_.byte_ids.end();
    if (it == ids_.end() && needed) {
      unknown.refuse(quote(unknown.text()), " is not in model.vocab, which lacks bytes");
    }
    if (it != ids_.end()) spec_.unknown = it->second;
    spec_.fuse_unknown = model.get("fuse_unk").flag(false);
  }

  void read_merges(const Field& merges) {
    if (!merges.value().is_array()) merges.refuse("must be an array");
    spec_.merges.reserve(merges.value().size());
    std::string joined;
    for (size_t i = 0; i < merges.value().size(); ++i) {
      const json& entry = merges.value()[i];
      const auto where = [&] { return Field(entry, concat(merges.path(), "[", i, "]")); };
      const auto token = [&](std::string_view content) {
        const auto it = ids_.find(content);
        if (it == ids_.end()) where().refuse(quote(content), " is not in model.vocab");
        return it->second;
      };
      std::string_view left, right;
      if (entry.is_string()) {
        const std::string_view text = entry.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != text.npos && text.find(' ', space + 1) == text.npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                 entry[1].is_string()) {
        left = entry[0].get_ref<const std::string&>();
        right = entry[1].get_ref<const std::string&>();
      }
      if (left.empty() || right.empty()) where().refuse("must be \"left right\" or [left, right]");
      joined.assign(left).append(right);
      spec_.merges.push_back({token(left), token(right), token(joined)});
    }
  }

  void read_normalizer(const Field& normalizer) {
    if (normalizer.is_null()) return;
    const Field type = normalizer.get("type");
    type.expect_one_of({"NFC", "Sequence"});
    if (type.text() == "NFC") {
      spec_.normalization = Normalization::kNfc;
      return;
    }
    for (const Field& item : normalizer.get("normalizers").items()) read_normalizer(item);
  }

  void read_pre_tokenizer(const Field& step) {
    if (step.is_null()) return;
    const Field type = step.get("type");
    type.expect_one_of({"Sequence", "Split", "ByteLevel", "Digits", "Punctuation"});
    const std::string& name = type.text();
    if (name == "Sequence") {
      for (const Field& item : step.get("pretokenizers").items()) read_pre_tokenizer(item);
    } else if (name == "Split") {
      read_split(step);
    } else if (name == "Digits") {
      const bool each = step.get("individual_digits").flag(false);
      put_split(step, pcre2_pattern(each ? R"(\p{N})" : R"(\p{N}+)", step.path()));
    } else if (name == "Punctuation") {
      const Field behavior = step.get("behavior");
      behavior.expect_one_of({"Isolated", "Contiguous"});
      const bool each = behavior.text() == "Isolated";
      put_split(step, concat("[", kPunctuationClass, each ? "]" : "]+"));
    } else {
      read_byte_level(step);
    }
  }

  void read_split(const Field& step) {
    const Field pattern = step.get("pattern");
    const Field regex = pattern.get("Regex");
    const Field behavior = step.get("behavior");
    behavior.expect_one_of({"Isolated", "Removed"});
    const bool invert = step.get("invert").flag(false);
    // Removing what does not match leaves the matches alone.
    const bool removed = behavior.text() == "Removed";
    if (removed != invert) {
      step.refuse("behavior ", behavior.text(), " with invert ", invert ? "true" : "false",
                  " is not supported (supported: Isolated with false, Removed with true)");
    }
    if (regex.is_null()) {
      const std::string& literal = pattern.get("String").text();
      if (literal.empty()) pattern.refuse("is empty");
      std::string escaped;
      for (const char c : literal) {
        if (std::ispunct(static_cast<unsigned char>(c))) escaped += '\\';
        escaped += c;
      }
      put_split(step, std::move(escaped), removed);
      return;
    }
    if (regex.text().size() > kMaxPatternBytes) regex.refuse("is longer than ", kMaxPatternBytes);
    put_split(step, pcre2_pattern(regex.text(), regex.path()), removed);
  }

  void put_split(const Field& step, std::string pattern, bool matches_only = false) {
    PreTokenizerStep split{PreTokenizerStep::Kind::kSplit, step.path(), std::move(pattern)};
    split.matches_only = matches_only;
    spec_.pre_tokenizer.push_back(std::move(split));
  }

  void read_byte_level(const Field& step) {
    if (has_byte_level_) step.refuse("a second ByteLevel is not supported");
    has_byte_level_ = true;
    PreTokenizerStep byte_level{PreTokenizerStep::Kind::kByteLevel, step.path(), ""};
    byte_level.add_prefix_space = step.get("add_prefix_space").flag(true);
    byte_level.use_regex = step.get("use_regex").flag(true);
    if (byte_level.use_regex) {
      byte_level.pattern = pcre2_pattern(
          R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
          step.path());
    }
    spec_.pre_tokenizer.push_back(std::move(byte_level));
  }

  void read_decoder(const Field& decoder) {
    if (decoder.is_null()) decoder.refuse("is missing; ByteLevel is needed");
    const Field type = decoder.get("type");
    type.expect_one_of({"ByteLevel", "Sequence"});
    if (type.text() == "ByteLevel") return;
    const std::vector<Field> items = decoder.get("decoders").items();
    if (items.size() != 1) decoder.refuse("must be ByteLevel alone");
    items[0].get("type").expect_one_of({"ByteLevel"});
  }

  void read_added_tokens(const Field& added) {
    for (const Field& item : added.items()) {
      const Field content = item.get("content");
      AddedToken token{};
      token.content = content.text();
      token.id = item.get("id").id();
      token.special = item.get("special").flag(false);
      token.normalized = item.get("normalized").flag(!token.special);
      token.lstrip = item.get("lstrip").flag(false);
      token.rstrip = item.get("rstrip").flag(false);
      token.single_word = item.get("single_word").flag(false);
      if (token.content.empty()) content.refuse("is empty");
      if (token.content.size() > kMaxAddedTokenBytes) {
        content.refuse("is longer than ", kMaxAddedTokenBytes, " bytes");
      }
      const auto known = ids_.find(token.content);
      if (known == ids_.end()) {
        put_token(item, token.content, token.id);
      } else if (known->second != token.id) {
        item.refuse(quote(token.content), " has the id ", token.id, " here and ", known->second,
                    " elsewhere");
      }
      spec_.added.push_back(std::move(token));
    }
  }

  void read_post_processor(const Field& processor) {
    if (processor.is_null()) return;
    const Field type = processor.get("type");
    type.expect_one_of(
        {"ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "Sequence"});
    if (type.text() == "Sequence") {
      for (const Field& item : processor.get("processors").items()) read_post_processor(item);
    } else if (type.text() == "TemplateProcessing") {
      read_template(processor);
    } else if (type.text() != "ByteLevel") {
      const int32_t begin = mark_id(processor.get("cls")), end = mark_id(processor.get("sep"));
      put_marks(processor, {begin}, {end});
    }
  }

  void put_marks(const Field& processor, std::vector<int32_t> before, std::vector<int32_t> behind) {
    if (has_marks_) processor.refuse("a second processor that adds tokens is not supported");
    has_marks_ = true;
    spec_.prefix = std::move(before);
    spec_.suffix = std::move(behind);
  }

  int32_t known_id(const Field& id) const {
    const int32_t token = id.id();
    if (static_cast<size_t>(token) >= taken_.size() || !taken_[token]) {
      id.refuse("there is no token ", token);
    }
    return token;
  }

  // [text, id] of BertProcessing and RobertaProcessing.
  int32_t mark_id(const Field& pair) const {
    const std::vector<Field> items = pair.items();
    if (items.size() != 2) pair.refuse("must be [token, id]");
    return known_id(items[1]);
  }

  // The pattern for one text: special tokens round one Sequence.
  void read_template(const Field& processor) {
    const Field single = processor.get("single");
    std::vector<int32_t> before, behind;
    bool seen_text = false;
    for (const Field& piece : single.items()) {
      const Field special = piece.get("SpecialToken");
      if (special.is_null()) {
        piece.get("Sequence").get("id").expect_one_of({"A"});
        if (seen_text) piece.refuse("a second Sequence is not supported");
        seen_text = true;
        continue;
      }
      const Field table = processor.get("special_tokens");
      const std::string& name = special.get("id").text();
      if (!table.value().is_object()) table.refuse("must be an object");
      const auto it = table.value().find(name);
      if (it == table.value().end()) special.refuse(quote(name), " is not declared");
      const Field entry(*it, concat(table.path(), "[", quote(name), "]"));
      for (const Field& id : entry.get("ids").items()) {
        (seen_text ? behind : before).push_back(known_id(id));
      }
    }
    if (!seen_text) single.refuse("has no Sequence");
    put_marks(processor, std::move(before), std::move(behind));
  }

  const Field root_;
  TokenizerSpec spec_;
  std::vector<bool> taken_;                            // by id
  std::unordered_map<std::string_view, int32_t> ids_;  // the keys are in the JSON
  bool has_byte_level_ = false;
  bool has_marks_ = false;
};

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& name) {
  if (text.size() > kMaxTokenizerJsonBytes) {
    fail(name, ": ", text.size(), " bytes are more than the ", kMaxTokenizerJsonBytes, " allowed");
  }
  const json root = parse_json_file(text, name);
  return SpecReader(Field(root, name + ":")).read();
}

}  // namespace replayssm::model
