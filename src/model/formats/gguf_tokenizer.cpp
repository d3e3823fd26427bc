// The tokenizer inside a GGUF file. Its split pattern is not stored, only a name for it: an unknown
// name is refused, since a wrong pattern gives other tokens without a word.
#include "model/formats/gguf_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <unordered_set>

#include "core/error.h"
#include "core/json.h"
#include "core/text_file.h"
#include "model/families/family.h"

namespace replayssm {
namespace {

constexpr int64_t kMaxTokens = 1 << 23;
constexpr size_t kMaxFileBytes = size_t{256} << 20;

// Sorted: the other kind looks a key up in time that grows with the vocabulary.
using Tree = nlohmann::json;

struct PreTokenizer {
  const char* name;
  const char* pattern;  // null: GPT-2's, which ByteLevel has
  bool nfc;
  bool ignore_merges;
  bool adds_bos;  // where the file does not say
};

constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr PreTokenizer kPreTokenizers[] = {
    {"qwen35", kQwen35, true, false, false},   {"qwen2", kQwen2, true, false, false},
    {"pixtral", kTekken, false, true, true},   {"tekken", kTekken, false, true, true},
    {"llama-bpe", kLlama3, false, true, true}, {"dbrx", kLlama3, false, false, false},
    {"gpt-2", nullptr, false, false, false},   {"mpt", nullptr, false, false, false},
};

// As in llama.cpp's token_type.
enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };

std::string json_text(std::string_view text) { return dump_json(Json(std::string(text))); }

class Writer {
 public:
  explicit Writer(const GgufFiles& files) : files_(files) {}

  std::string write() {
    const std::string model = files_.text("tokenizer.ggml.model");
    if (model != "gpt2") {
      files_.refuse("tokenizer.ggml.model", "is ", json_text(model),
                    "; only gpt2 (byte-level BPE) is supported");
    }
    pre_ = pre_tokenizer();
    tokens_ = files_.texts("tokenizer.ggml.tokens");
    types_.assign(tokens_.size(), kNormal);
    if (files_.has("tokenizer.ggml.token_type")) {
      types_ = files_.integers("tokenizer.ggml.token_type", 0, 6);
    }
    if (tokens_.empty() || tokens_.size() != types_.size() ||
        static_cast<int64_t>(tokens_.size()) > kMaxTokens) {
      files_.refuse("tokenizer.ggml.tokens", "has ", tokens_.size(), " tokens and ", types_.size(),
                    " types");
    }
    out_ = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
    write_added();
    out_ += concat(R"(],"normalizer":)", pre_->nfc ? R"({"type":"NFC"})" : "null");
    out_ += R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)";
    if (pre_->pattern != nullptr) {
      out_ += concat(R"({"type":"Split","pattern":{"Regex":)", json_text(pre_->pattern),
                     R"(},"behavior":"Isolated","invert":false},)");
    }
    out_ +=
        concat(R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":)",
               pre_->pattern == nullptr ? "true" : "false", "}]}");
    write_post_processor();
    out_ += R"(,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","ignore_merges":)";
    out_ += pre_->ignore_merges ? "true" : "false";
    write_vocab();
    write_merges();
    out_ += "}}";
    return std::move(out_);
  }

 private:
  const PreTokenizer* pre_tokenizer() const {
    const std::string name = files_.text("tokenizer.ggml.pre");
    std::string known;
    for (const PreTokenizer& row : kPreTokenizers) {
      if (name == row.name) return &row;
      known += concat(known.empty() ? "" : ", ", row.name);
    }
    files_.refuse("tokenizer.ggml.pre", "is ", json_text(name), "; known are ", known);
  }

  void write_added() {
    bool first = true;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const bool special = types_[id] == kControl || types_[id] == kUnknown;
      if (!special && types_[id] != kUserDefined) continue;
      out_ += concat(first ? "" : ",", R"({"id":)", id, R"(,"content":)", json_text(tokens_[id]),
                     R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,)",
                     R"("special":)", special ? "true}" : "false}");
      first = false;
    }
  }

  std::optional<size_t> edge_token(const char* add, const char* id, bool fallback) const {
    if (!files_.boolean_or(concat("tokenizer.ggml.", add), fallback)) return std::nullopt;
    const std::string key = concat("tokenizer.ggml.", id);
    if (!files_.has(key)) return std::nullopt;
    return static_cast<size_t>(files_.integer(key, 0, static_cast<int64_t>(tokens_.size()) - 1));
  }

  void write_post_processor() {
    const auto begin = edge_token("add_bos_token", "bos_token_id", pre_->adds_bos);
    const auto end = edge_token("add_eos_token", "eos_token_id", false);
    out_ += R"(,"post_processor":)";
    if (!begin && !end) {
      out_ += "null";
      return;
    }
    const auto piece = [&](size_t id) {
      return concat(R"({"SpecialToken":{"id":)", json_text(tokens_[id]), R"(,"type_id":0}})");
    };
    const auto entry = [&](size_t id) {
      return concat(json_text(tokens_[id]), R"(:{"ids":[)", id, "]}");
    };
    out_ += R"({"type":"TemplateProcessing","single":[)";
    if (begin) out_ += piece(*begin) + ",";
    out_ += R"({"Sequence":{"id":"A","type_id":0}})";
    if (end) out_ += "," + piece(*end);
    out_ += R"(],"special_tokens":{)";
    if (begin) out_ += entry(*begin);
    if (end && end != begin) out_ += concat(begin ? "," : "", entry(*end));
    out_ += "}}";
  }

  // Unused ids stay gaps.
  void write_vocab() {
    out_ += R"(,"vocab":{)";
    std::unordered_set<std::string_view> seen;
    bool first = true;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] != kNormal) continue;
      if (!seen.insert(tokens_[id]).second) {
        files_.refuse("tokenizer.ggml.tokens", "holds ", json_text(tokens_[id]), " twice");
      }
      out_ += concat(first ? "" : ",", json_text(tokens_[id]), ":", id);
      first = false;
    }
    out_ += "}";
  }

  void write_merges() {
    out_ += R"(,"merges":[)";
    bool first = true;
    for (const std::string_view merge : files_.texts("tokenizer.ggml.merges")) {
      out_ += concat(first ? "" : ",", json_text(merge));
      first = false;
    }
    out_ += "]";
  }

  const GgufFiles& files_;
  const PreTokenizer* pre_ = nullptr;
  std::vector<std::string_view> tokens_;
  std::vector<int64_t> types_;
  std::string out_;
};

// The pattern of the one Split that a tokenizer.json has; empty for GPT-2's by ByteLevel.
std::string split_pattern(const Tree& tokenizer) {
  std::string pattern;
  const auto visit = [&](const auto& self, const Tree& step) -> void {
    if (!step.is_object()) return;
    if (step.contains("pretokenizers")) {
      for (const Tree& inner : step["pretokenizers"]) self(self, inner);
    }
    if (step.contains("pattern") && step["pattern"].contains("Regex")) {
      pattern += step["pattern"]["Regex"].get<std::string>();
    }
  };
  if (tokenizer.contains("pre_tokenizer")) visit(visit, tokenizer["pre_tokenizer"]);
  return pattern;
}

const PreTokenizer& pre_tokenizer_of(const std::string& path, const Tree& tokenizer) {
  const std::string pattern = split_pattern(tokenizer);
  for (const PreTokenizer& row : kPreTokenizers) {
    if (pattern == (row.pattern == nullptr ? "" : row.pattern)) return row;
  }
  fail(path, ": field pre_tokenizer has a pattern that GGUF has no name for");
}

struct Vocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
};

Vocabulary read_vocabulary(const std::string& path, const Tree& json, int64_t vocab) try {
  Vocabulary out;
  auto& [tokens, merges, types] = out;
  tokens.resize(static_cast<size_t>(vocab));
  types.assign(tokens.size(), kUnused);
  for (size_t id = 0; id < tokens.size(); ++id) tokens[id] = concat("[PAD", id, "]");
  const auto put = [&](const std::string& text, const Tree& id, int32_t type) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab) {
      fail(path, ": token ", json_text(text), " has no id below vocab_size ", vocab);
    }
    tokens[id.get<size_t>()] = text;
    types[id.get<size_t>()] = type;
  };
  for (const auto& [text, id] : json["model"]["vocab"].items()) put(text, id, kNormal);
  if (json.contains("added_tokens")) {
    for (const Tree& added : json["added_tokens"]) {
      const bool special = added.value("special", false);
      put(added.at("content").get<std::string>(), added.at("id"),
          static_cast<int32_t>(special ? kControl : kUserDefined));
    }
  }
  for (const Tree& merge : json["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  }
  return out;
} catch (const Tree::exception&) {
  fail(path, ": its tokens or merges are not as in a tokenizer.json");
}

std::string chat_template_of(const std::string& folder) {
  const std::string path = folder + "/chat_template.jinja";
  if (std::filesystem::exists(path)) return read_text_file(path);
  const std::string config = folder + "/tokenizer_config.json";
  if (!std::filesystem::exists(config)) return "";
  const Json json = parse_json(read_text_file(config));
  const auto it = json.find("chat_template");
  return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}

}  // namespace

std::string gguf_tokenizer_json(const GgufFiles& files) { return Writer(files).write(); }

std::string gguf_chat_template(const GgufFiles& files) {
  return files.text_or("tokenizer.chat_template", "");
}

void write_gguf_tokenizer(const std::string& folder, int64_t vocab, GgufWriter& writer) {
  const std::string path = folder + "/tokenizer.json";
  const Tree json = Tree::parse(read_text_file(path, kMaxFileBytes), nullptr, false);
  const bool bpe = json.is_object() && json.contains("model") && json["model"].is_object() &&
                   json["model"].contains("vocab") && json["model"]["vocab"].is_object() &&
                   json["model"].contains("merges") && json["model"]["merges"].is_array();
  if (!bpe) fail(path, ": field model must be BPE with vocab and merges");
  const Vocabulary vocabulary = read_vocabulary(path, json, vocab);
  writer.text("tokenizer.ggml.model", "gpt2");
  writer.text("tokenizer.ggml.pre", pre_tokenizer_of(path, json).name);
  writer.texts("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.i32s("tokenizer.ggml.token_type", vocabulary.types);
  writer.texts("tokenizer.ggml.merges", vocabulary.merges);
  const std::vector<int32_t> ends = describe_model(folder).spec.eos_ids;
  if (!ends.empty()) writer.u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(ends[0]));
  if (ends.size() > 1) writer.u32("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(ends[1]));
  writer.boolean("tokenizer.ggml.add_bos_token", false);
  const std::string chat = chat_template_of(folder);
  if (!chat.empty()) writer.text("tokenizer.chat_template", chat);
}

}  // namespace replayssm
