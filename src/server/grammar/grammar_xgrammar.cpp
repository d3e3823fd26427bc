// The grammars are xgrammar's.
#include "server/grammar/grammar.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>

#include "server/api_error.h"
#include "server/grammar/schema_check.h"

namespace replayssm::server {
namespace {

constexpr int kCompileThreads = 1;
constexpr int64_t kCacheBytes = int64_t{64} << 20;
constexpr int kMostBlanks = 20;  // in a row, between JSON's tokens

class MatcherConstraint final : public TokenConstraint {
 public:
  // `textless`: ids that no grammar allows.
  MatcherConstraint(xgrammar::GrammarMatcher matcher, int64_t vocab,
                    std::shared_ptr<const std::vector<bool>> textless)
      : matcher_(std::move(matcher)),
        vocab_(vocab),
        textless_(std::move(textless)),
        bits_(static_cast<size_t>(xgrammar::GetBitmaskSize(static_cast<int>(vocab)))) {}

  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<MatcherConstraint>(matcher_.Fork(), vocab_, textless_);
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
      allowed[id] = !needed || (static_cast<uint32_t>(bits_[id / 32]) >> (id % 32) & 1) != 0;
    }
  }

  bool accept(int32_t id) override {
    if (matcher_.IsTerminated() || id < 0 || id >= vocab_) return false;
    if ((*textless_)[static_cast<size_t>(id)]) return false;  // the library would log it
    return matcher_.AcceptToken(id);
  }

 private:
  xgrammar::GrammarMatcher matcher_;
  const int64_t vocab_;
  const std::shared_ptr<const std::vector<bool>> textless_;
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

// Without bytes and no end of the text.
std::shared_ptr<const std::vector<bool>> textless(const ServedModel& model) {
  auto out = std::make_shared<std::vector<bool>>();
  for (const auto& bytes : vocabulary(model)) out->push_back(bytes.empty());
  for (const int32_t id : model.eos_ids) (*out)[static_cast<size_t>(id)] = false;
  return out;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

class GrammarCompiler::State {
 public:
  explicit State(const ServedModel& model)
      : vocab_(model.vocab),
        textless_(textless(model)),
        compiler_(xgrammar::TokenizerInfo(vocabulary(model), xgrammar::VocabType::RAW,
                                          static_cast<int>(model.vocab), model.eos_ids),
                  kCompileThreads, /*cache_enabled=*/true, kCacheBytes) {}

  // What the library refuses is the request's fault.
  template <typename Compile>
  ConstraintPtr make(const std::string& field, const Compile& compile) {
    try {
      return std::make_shared<MatcherConstraint>(
          xgrammar::GrammarMatcher(compile(compiler_), std::nullopt,
                                   /*terminate_without_stop_token=*/false),
          vocab_, textless_);
    } catch (const ApiError&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      refuse(field, concat("cannot be enforced: ", first_line(e.what()).substr(0, 400)));
    }
  }

 private:
  const int64_t vocab_;
  const std::shared_ptr<const std::vector<bool>> textless_;
  xgrammar::GrammarCompiler compiler_;
};

GrammarCompiler::GrammarCompiler(const ServedModel& model)
    : state_(std::make_unique<State>(model)) {}
GrammarCompiler::~GrammarCompiler() = default;

ConstraintPtr GrammarCompiler::json_object() {
  return state_->make("response_format", [](xgrammar::GrammarCompiler& compiler) {
    return compiler.CompileJSONSchema(R"({"type":"object","additionalProperties":true})", true,
                                      std::nullopt, std::nullopt, false, kMostBlanks);
  });
}

ConstraintPtr GrammarCompiler::json_schema(const Json& schema, const std::string& field,
                                           Warnings& warnings) {
  const std::string text = dump_json(checked_schema(schema, field, warnings));
  return state_->make(field, [&](xgrammar::GrammarCompiler& compiler) {
    return compiler.CompileJSONSchema(text, true, std::nullopt, std::nullopt, true, kMostBlanks);
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
    calls.push_back({{"type", "tag"},
                     {"begin", begin},
                     {"content", {{"type", type}, {"json_schema", schema}}},
                     {"end", end}});
  }
  const Json format =
      calls.size() == 1 ? calls[0] : Json{{"type", "or"}, {"elements", std::move(calls)}};
  const std::string text = dump_json({{"type", "structural_tag"}, {"format", format}});
  return state_->make("tools", [&](xgrammar::GrammarCompiler& compiler) {
    return compiler.CompileStructuralTag(text);
  });
}

}  // namespace replayssm::server
