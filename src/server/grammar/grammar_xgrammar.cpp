// The grammars are xgrammar's.
#include "server/grammar/grammar.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "server/api_error.h"
#include "server/chat/bare_value.h"
#include "server/grammar/call_frame.h"
#include "server/grammar/ebnf.h"
#include "server/grammar/pattern.h"
#include "server/grammar/schema_check.h"

namespace replayssm::server {
namespace {

// Of a grammar; as many requests at once make theirs as the listener has handlers.
int compile_threads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u));
}

constexpr int64_t kCacheBytes = int64_t{64} << 20;
constexpr size_t kMaxFormatBytes = 2 * kMaxSchemaBytes;
constexpr int kMaxBlanks = 20;  // in a row, between JSON's tokens

// The processor time that an answer's masks may take: at first, and for each token. Some grammars
// cost more with every token; the engine's step, and so every other answer, waits for them.
constexpr double kGraceSeconds = 1;
constexpr double kSecondsPerCall = 0.02;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What the mask needs to know of each id beside the grammar.
struct TokenTraits {
  std::vector<bool> never;         // comes in no answer
  std::vector<bool> low_after_ed;  // begins with a byte that makes 0xED before it a surrogate
  std::vector<bool> ends_in_ed;
};

class MatcherConstraint final : public TokenConstraint {
 public:
  MatcherConstraint(xgrammar::GrammarMatcher matcher, int64_t vocab,
                    std::shared_ptr<const TokenTraits> traits, bool after_ed = false)
      : matcher_(std::move(matcher)),
        vocab_(vocab),
        traits_(std::move(traits)),
        after_ed_(after_ed),
        bits_(static_cast<size_t>(xgrammar::GetBitmaskSize(static_cast<int>(vocab)))) {}

  std::unique_ptr<TokenConstraint> clone() const override {
    auto out = std::make_unique<MatcherConstraint>(matcher_.Fork(), vocab_, traits_, after_ed_);
    out->spent_ = spent_;
    return out;
  }

  void allowed(std::span<uint8_t> allowed) override {
    const Meter meter(*this);
    std::fill(allowed.begin(), allowed.end(), uint8_t{0});
    if (matcher_.IsTerminated()) return;
    auto size = static_cast<int64_t>(bits_.size());
    DLTensor mask{bits_.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &size, nullptr, 0};
    // False: every token may come.
    const bool needed = matcher_.FillNextTokenBitmask(&mask);
    const size_t n = std::min(allowed.size(), static_cast<size_t>(vocab_));
    for (size_t id = 0; id < n; ++id) {
      const bool fits = !needed || (static_cast<uint32_t>(bits_[id / 32]) >> (id % 32) & 1) != 0;
      allowed[id] = fits && !is_refused(id);
    }
  }

  bool accept(int32_t id) override {
    if (matcher_.IsTerminated() || id < 0 || id >= vocab_) return false;
    const Meter meter(*this);
    const auto index = static_cast<size_t>(id);
    if (is_refused(index) || !matcher_.AcceptToken(id)) return false;
    after_ed_ = traits_->ends_in_ed[index];
    return true;
  }

 private:
  // Adds the time of its life to spent_; throws at first if that is too long already.
  class Meter {
   public:
    explicit Meter(MatcherConstraint& owner) : owner_(owner), begin_(thread_seconds()) {
      if (owner.spent_ > kGraceSeconds) fail("the grammar takes too long for each token");
      owner.spent_ = std::max(0.0, owner.spent_ - kSecondsPerCall);
    }
    ~Meter() { owner_.spent_ += thread_seconds() - begin_; }
    Meter(const Meter&) = delete;
    Meter& operator=(const Meter&) = delete;

   private:
    MatcherConstraint& owner_;
    const double begin_;
  };

  bool is_refused(size_t id) const {
    return traits_->never[id] || (after_ed_ && traits_->low_after_ed[id]);
  }

  xgrammar::GrammarMatcher matcher_;
  const int64_t vocab_;
  const std::shared_ptr<const TokenTraits> traits_;
  bool after_ed_;     // the last byte was 0xED
  double spent_ = 0;  // seconds, less those allowed
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

bool is_control(unsigned char c) { return c < ' '; }

// The library's classes of characters hold UTF-16's surrogates, which UTF-8 has not; and it lets
// control characters stand as they are in strings whose length a schema bounds. `is_free`: tells
// of a control character that it may.
template <typename IsFree>
std::shared_ptr<const TokenTraits> traits_of(const ServedModel& model, const IsFree& is_free) {
  auto out = std::make_shared<TokenTraits>();
  for (const auto& bytes : vocabulary(model)) {
    bool never = bytes.empty();  // the library would log it
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto c = static_cast<unsigned char>(bytes[i]);
      const auto before = static_cast<unsigned char>(i == 0 ? 0 : bytes[i - 1]);
      never = never || (is_control(c) && !is_free(c)) || (before == 0xed && c >= 0xa0);
    }
    out->never.push_back(never);
    out->low_after_ed.push_back(!bytes.empty() && static_cast<unsigned char>(bytes[0]) >= 0xa0);
    out->ends_in_ed.push_back(!bytes.empty() && static_cast<unsigned char>(bytes.back()) == 0xed);
  }
  for (const int32_t id : model.eos_ids) out->never[static_cast<size_t>(id)] = false;
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

}  // namespace

class GrammarCompiler::State {
 public:
  explicit State(const ServedModel& model)
      : vocab_(model.vocab),
        in_json_(traits_of(model, [](char c) { return c == '\n' || c == '\r'; })),
        in_xml_(traits_of(model, [](char c) { return c == '\n' || c == '\r' || c == '\t'; })),
        in_text_(traits_of(model, [](char) { return true; })),
        compiler_(xgrammar::TokenizerInfo(vocabulary(model), xgrammar::VocabType::RAW,
                                          static_cast<int>(model.vocab), model.eos_ids),
                  compile_threads(), /*cache_enabled=*/true, kCacheBytes) {}

  enum class Within { kJson, kXml, kText };

  // `format`: as the library's structural tags have it. What it refuses is the request's fault.
  ConstraintPtr make(const std::string& field, const Json& format, Within within) {
    const std::string text = dump_json({{"type", "structural_tag"}, {"format", format}});
    if (text.size() > kMaxFormatBytes) {
      refuse(field, concat("is too large: more than ", kMaxFormatBytes, " bytes"));
    }
    try {
      return std::make_shared<MatcherConstraint>(
          xgrammar::GrammarMatcher(compiler_.CompileStructuralTag(text), std::nullopt,
                                   /*terminate_without_stop_token=*/false),
          vocab_,
          within == Within::kJson  ? in_json_
          : within == Within::kXml ? in_xml_
                                   : in_text_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      refuse(field, concat("cannot be enforced: ", message_of(e).substr(0, 400)));
    }
  }

 private:
  const int64_t vocab_;
  const std::shared_ptr<const TokenTraits> in_json_;
  const std::shared_ptr<const TokenTraits> in_xml_;
  const std::shared_ptr<const TokenTraits> in_text_;
  xgrammar::GrammarCompiler compiler_;
};

namespace {

Json json_format(Json schema) {
  return {{"type", "json_schema"},
          {"json_schema", std::move(schema)},
          {"max_whitespace_cnt", kMaxBlanks}};
}

Json any_of(Json formats) {
  if (formats.size() == 1) return formats[0];
  return {{"type", "or"}, {"elements", std::move(formats)}};
}

Json any_object() { return {{"type", "object"}, {"additionalProperties", true}}; }

Json choice_format(const Structure& structure) {
  Json formats = Json::array();
  for (const Json& text : structure.value) {
    formats.push_back({{"type", "const_string"}, {"value", text}});
  }
  return any_of(std::move(formats));
}

Json regex_format(const Structure& structure) {
  const auto& pattern = structure.value.get_ref<const std::string&>();
  if (pattern.size() > kMaxPatternBytes) {
    refuse(structure.field, concat("must have at most ", kMaxPatternBytes, " bytes"));
  }
  std::string literal;
  try {
    for (const char c : enforced_text_pattern(pattern).text) {
      if (c == '\\') literal += c;
      literal += c;
    }
  } catch (const Error& e) {
    refuse(structure.field, e.what());
  }
  return {{"type", "grammar"}, {"grammar", "root ::= Regex(\"" + literal + "\")"}};
}

Json grammar_format(const Structure& structure) {
  const auto& grammar = structure.value.get_ref<const std::string&>();
  try {
    check_ebnf(grammar);
  } catch (const Error& e) {
    refuse(structure.field, e.what());
  }
  return {{"type", "grammar"}, {"grammar", grammar}};
}

Json format_of(const Structure& structure, Warnings& warnings) {
  switch (structure.kind) {
    case Structure::Kind::kSchema:
      return json_format(checked_schema(structure.value, structure.field, warnings));
    case Structure::Kind::kRegex:
      return regex_format(structure);
    case Structure::Kind::kChoice:
      return choice_format(structure);
    case Structure::Kind::kGrammar:
      return grammar_format(structure);
    default:
      return json_format(any_object());
  }
}

bool is_json(const Structure& structure) {
  return structure.kind == Structure::Kind::kSchema ||
         structure.kind == Structure::Kind::kJsonObject;
}

// A schema's references resolved at its root, whose properties XML writes one by one.
Json object_of(Json schema, const std::string& path) {
  if (schema.contains("$ref")) {
    Json definitions = schema["$defs"];
    schema = definitions[schema["$ref"].get<std::string>().substr(std::string("#/$defs/").size())];
    schema["$defs"] = std::move(definitions);
  }
  if (schema.value("type", Json()) != "object") refuse(path, "must be the schema of an object");
  return schema;
}

// The schema of a tool's arguments. Throws ApiError if it cannot be enforced.
Json arguments_of(const Json& function, StringForm form, const std::string& path,
                  Warnings& warnings) {
  const auto parameters = function.find("parameters");
  if (parameters == function.end() || !parameters->is_object() || parameters->empty()) {
    return {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  }
  return object_of(checked_schema(*parameters, path, warnings, form), path);
}

// Refuses what the reader of the call would take for another value.
void check_bare(const std::string& name, const Json& arguments, const std::string& path) {
  if (name.find_first_of(">\"\n") != std::string::npos) {
    refuse(path, concat(name.substr(0, 64), " cannot be the name of a called function"));
  }
  const Json none = Json::object();
  const auto properties = arguments.find("properties");
  for (const auto& item : (properties == arguments.end() ? none : *properties).items()) {
    const std::string key = concat(path, ".properties.", item.key().substr(0, 64));
    if (item.key().find_first_of(">\"\n") != std::string::npos) {
      refuse(key, "cannot be the name of a parameter where values have no quotes");
    }
    const std::string reason = not_bare(item.value(), arguments, "</parameter>");
    if (!reason.empty()) refuse(key, reason);
  }
}

Json call_format(const std::string& name, ToolStyle style, Json arguments,
                 const std::string& path) {
  const CallFrame frame = call_frame(style, name);
  if (frame.bare()) check_bare(name, arguments, path);
  Json content = json_format(std::move(arguments));
  content["style"] = frame.values;
  return {
      {"type", "tag"}, {"begin", frame.begin}, {"content", std::move(content)}, {"end", frame.end}};
}

// `or_any`: a tool that cannot be enforced is called with any object, else it is left out.
Json call_formats(const Json& tools, ToolStyle style, bool or_any, Warnings& warnings) {
  Json formats = Json::array();
  const StringForm form = call_frame(style, "").bare() ? StringForm::kBare : StringForm::kQuoted;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = tools[i].at("function");
    const auto& name = function.at("name").get_ref<const std::string&>();
    const std::string path = concat("tools[", i, "].function.parameters");
    try {
      formats.push_back(
          call_format(name, style, arguments_of(function, form, path, warnings), path));
    } catch (const ApiError& e) {
      if (!or_any && tools.size() == 1) throw;
      if (or_any) formats.push_back(call_format(name, style, any_object(), path));
      warnings.push_back(concat(e.what(), "; ", name,
                                or_any ? " is called with any object" : " is not called by force"));
    }
  }
  if (formats.empty()) refuse("tools", "none of them can be enforced");
  return formats;
}

}  // namespace

GrammarCompiler::GrammarCompiler(const ServedModel& model)
    : state_(std::make_unique<State>(model)) {}
GrammarCompiler::~GrammarCompiler() = default;

ConstraintPtr GrammarCompiler::structured(const Structure& structure, Warnings& warnings) {
  if (structure.kind == Structure::Kind::kNone) return nullptr;
  return state_->make(structure.field, format_of(structure, warnings),
                      is_json(structure) ? State::Within::kJson : State::Within::kText);
}

ConstraintPtr GrammarCompiler::tool_call(const Json& tools, ToolStyle style, Warnings& warnings) {
  return state_->make("tools", any_of(call_formats(tools, style, false, warnings)),
                      call_frame(style, "").bare() ? State::Within::kXml : State::Within::kJson);
}

// In XML a bare value has no tabs then: JSON's strings have none as they stand.
ConstraintPtr GrammarCompiler::call_or(const Json& tools, ToolStyle style,
                                       const Structure& structure, Warnings& warnings) {
  Json formats = call_formats(tools, style, true, warnings);
  formats.push_back(format_of(structure, warnings));
  return state_->make(structure.field, any_of(std::move(formats)),
                      is_json(structure) ? State::Within::kJson : State::Within::kText);
}

}  // namespace replayssm::server
