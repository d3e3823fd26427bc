// The grammars are xgrammar's.
#include "server/grammar/grammar.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <string_view>

#include "server/api_error.h"
#include "server/grammar/schema_check.h"

namespace replayssm::server {
namespace {

constexpr int kCompileThreads = 1;
constexpr int64_t kCacheBytes = int64_t{64} << 20;
constexpr int kMaxBlanks = 20;  // in a row, between JSON's tokens

class MatcherConstraint final : public TokenConstraint {
 public:
  MatcherConstraint(xgrammar::GrammarMatcher matcher, int64_t vocab,
                    std::shared_ptr<const std::vector<bool>> never)
      : matcher_(std::move(matcher)),
        vocab_(vocab),
        never_(std::move(never)),
        bits_(static_cast<size_t>(xgrammar::GetBitmaskSize(static_cast<int>(vocab)))) {}

  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<MatcherConstraint>(matcher_.Fork(), vocab_, never_);
  }

  void allowed(std::span<uint8_t> allowed) override {
    std::fill(allowed.begin(), allowed.end(), uint8_t{0});
    if (matcher_.IsTerminated()) return;
    auto size = static_cast<int64_t>(bits_.size());
    DLTensor mask{bits_.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &size, nullptr, 0};
    // False: every token may come.
    const bool needed = matcher_.FillNextTokenBitmask(&mask);
    const size_t n = std::min(allowed.size(), static_cast<size_t>(vocab_));
    for (size_t id = 0; id < n; ++id) {
      const bool fits = !needed || (static_cast<uint32_t>(bits_[id / 32]) >> (id % 32) & 1) != 0;
      allowed[id] = fits && !(*never_)[id];
    }
  }

  bool accept(int32_t id) override {
    if (matcher_.IsTerminated() || id < 0 || id >= vocab_) return false;
    if ((*never_)[static_cast<size_t>(id)]) return false;
    return matcher_.AcceptToken(id);
  }

 private:
  xgrammar::GrammarMatcher matcher_;
  const int64_t vocab_;
  const std::shared_ptr<const std::vector<bool>> never_;  // ids that come in no answer
  std::vector<int32_t> bits_;
};

// The bytes of each id. Special tokens, and ids that are no token, have none: the grammars never
// allow them.
std::vector<std::string> vocabulary(const ServedModel& model) {
  std::vector<std::string> bytes(static_cast<size_t>(model.vocab));
  const int64_t n = std::min<int64_t>(model.vocab, model.tokenizer->vocab_size());
  for (int32_t id = 0; id < n; ++id) {
    if (!model.tokenizer->is_special(id)) {
      bytes[static_cast<size_t>(id)] = std::string(model.tokenizer->token_bytes(id));
    }
  }
  return bytes;
}

// The ids of no text (the library would log them), and those with a control character other than
// `blanks`: the library lets them stand as they are in strings whose length a schema bounds.
std::shared_ptr<const std::vector<bool>> never(const ServedModel& model, std::string_view blanks) {
  auto out = std::make_shared<std::vector<bool>>();
  for (const auto& bytes : vocabulary(model)) {
    const bool has_control = std::any_of(bytes.begin(), bytes.end(), [&](unsigned char c) {
      return c < ' ' && blanks.find(static_cast<char>(c)) == std::string_view::npos;
    });
    out->push_back(bytes.empty() || has_control);
  }
  for (const int32_t id : model.eos_ids) (*out)[static_cast<size_t>(id)] = false;
  return out;
}

// Without the time and the place in the library's sources: "[12:00:00] file:1: message".
std::string message_of(const std::exception& error) {
  std::string text = error.what();
  text.resize(std::min(text.find('\n'), text.size()));
  const size_t at = text.find(": ");
  if (text.starts_with('[') && at != std::string::npos) text.erase(0, at + 2);
  return text;
}

// Between <parameter=...> and </parameter> a string has no quotes, and blanks round it are no part
// of it. So one of bounded length begins and ends with something else, and has no '<'.
void bound_bare_strings(Json& parameters) {
  const auto properties = parameters.find("properties");
  if (properties == parameters.end()) return;
  for (Json& property : *properties) {
    if (!property.is_object()) continue;
    const bool bounded = property.contains("minLength") || property.contains("maxLength");
    if (!bounded || property.value("type", Json()) != "string") continue;
    const auto least = property.value("minLength", int64_t{0});
    const auto most = property.value("maxLength", int64_t{-1});
    const std::string inner =
        concat("[^<]{", std::max<int64_t>(0, least - 2), ",",
               most < 0 ? "" : std::to_string(std::max<int64_t>(0, most - 2)), "}");
    std::string pattern = most == 0   ? ""
                          : most == 1 ? "[^<\\s]"
                                      : concat("[^<\\s]", inner, "[^<\\s]");
    if (most != 0 && most != 1 && least < 2) pattern = concat("[^<\\s]|", pattern);
    if (least == 0) pattern = concat("(", pattern, ")?");
    property.erase("minLength");
    property.erase("maxLength");
    property["pattern"] = pattern;
  }
}

}  // namespace

class GrammarCompiler::State {
 public:
  explicit State(const ServedModel& model)
      : vocab_(model.vocab),
        never_in_json_(never(model, "\n\r")),
        never_in_xml_(never(model, "\n\r\t")),
        compiler_(xgrammar::TokenizerInfo(vocabulary(model), xgrammar::VocabType::RAW,
                                          static_cast<int>(model.vocab), model.eos_ids),
                  kCompileThreads, /*cache_enabled=*/true, kCacheBytes) {}

  // What the library refuses is the request's fault.
  template <typename Compile>
  ConstraintPtr make(const std::string& field, bool xml, const Compile& compile) {
    try {
      return std::make_shared<MatcherConstraint>(
          xgrammar::GrammarMatcher(compile(compiler_), std::nullopt,
                                   /*terminate_without_stop_token=*/false),
          vocab_, xml ? never_in_xml_ : never_in_json_);
    } catch (const ApiError&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      refuse(field, concat("cannot be enforced: ", message_of(e).substr(0, 400)));
    }
  }

 private:
  const int64_t vocab_;
  const std::shared_ptr<const std::vector<bool>> never_in_json_;
  const std::shared_ptr<const std::vector<bool>> never_in_xml_;
  xgrammar::GrammarCompiler compiler_;
};

GrammarCompiler::GrammarCompiler(const ServedModel& model)
    : state_(std::make_unique<State>(model)) {}
GrammarCompiler::~GrammarCompiler() = default;

ConstraintPtr GrammarCompiler::json_object() {
  return state_->make("response_format", false, [](xgrammar::GrammarCompiler& compiler) {
    return compiler.CompileJSONSchema(R"({"type":"object","additionalProperties":true})", true,
                                      std::nullopt, std::nullopt, false, kMaxBlanks);
  });
}

ConstraintPtr GrammarCompiler::json_schema(const Json& schema, const std::string& field,
                                           Warnings& warnings) {
  const std::string text = dump_json(checked_schema(schema, field, warnings));
  return state_->make(field, false, [&](xgrammar::GrammarCompiler& compiler) {
    return compiler.CompileJSONSchema(text, true, std::nullopt, std::nullopt, true, kMaxBlanks);
  });
}

ConstraintPtr GrammarCompiler::tool_call(const Json& tools, ToolStyle style, Warnings& warnings) {
  Json calls = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = tools[i].at("function");
    const std::string name = function.at("name").get<std::string>();
    Json schema = {{"type", "object"}, {"properties", Json::object()}};
    if (function.contains("parameters") && function.at("parameters").is_object()) {
      schema = checked_schema(function.at("parameters"),
                              concat("tools[", i, "].function.parameters"), warnings);
    }
    if (style == ToolStyle::kXml) bound_bare_strings(schema);
    std::string begin, end;
    if (style == ToolStyle::kXml) {
      begin = concat("<tool_call>\n<function=", name, ">\n");
      end = "\n</function>\n</tool_call>";
    } else if (style == ToolStyle::kList) {
      begin = concat("<TOOLCALL>[{\"name\": ", dump_json(name), ", \"arguments\": ");
      end = "}]</TOOLCALL>";
    } else {
      begin = concat("<tool_call>\n{\"name\": ", dump_json(name), ", \"arguments\": ");
      end = "}\n</tool_call>";
    }
    const char* type = style == ToolStyle::kXml ? "qwen_xml_parameter" : "json_schema";
    calls.push_back(
        {{"type", "tag"},
         {"begin", begin},
         {"content", {{"type", type}, {"json_schema", schema}, {"max_whitespace_cnt", kMaxBlanks}}},
         {"end", end}});
  }
  const Json format =
      calls.size() == 1 ? calls[0] : Json{{"type", "or"}, {"elements", std::move(calls)}};
  const std::string text = dump_json({{"type", "structural_tag"}, {"format", format}});
  if (text.size() > 2 * kMaxSchemaBytes) {
    refuse("tools", concat("to be called by force they are too large: more than ",
                           2 * kMaxSchemaBytes, " bytes"));
  }
  return state_->make("tools", style == ToolStyle::kXml, [&](xgrammar::GrammarCompiler& compiler) {
    return compiler.CompileStructuralTag(text);
  });
}

}  // namespace replayssm::server
