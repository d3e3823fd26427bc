#include "server/chat/xml_call.h"

#include <set>

#include "core/error.h"
#include "server/chat/bare_value.h"

namespace replayssm::server {
namespace {

using State = CallReading::State;

// A name up to '>', without quotes and blanks; empty if it is none.
TextReader::Part read_name(TextReader& text) {
  auto part = text.until(">", kMaxNameBytes);
  if (!part.text) return part;
  std::string_view name = trimmed(*part.text);
  if (name.size() >= 2 && (name[0] == '"' || name[0] == '\'') && name.back() == name[0]) {
    name = name.substr(1, name.size() - 2);
  }
  if (name.find_first_of("\n<") != std::string_view::npos) name = {};
  part.text = name;
  return part;
}

const Json& parameters_of(const Json& function) {
  static const Json kNone = Json::object();
  const auto parameters = function.find("parameters");
  return parameters == function.end() || !parameters->is_object() ? kNone : *parameters;
}

bool names(const Json& parameters, const std::string& name) {
  return property_schema(parameters, parameters, name).has_value();
}

// An empty one where nothing is said of the parameter.
Json schema_of(const Json& parameters, const std::string& name) {
  if (auto found = property_schema(parameters, parameters, name)) return std::move(*found);
  return parameters.value("additionalProperties", Json::object());
}

class FunctionReader {
 public:
  FunctionReader(TextReader text, const XmlMarks& marks, const Json& tools)
      : text_(text), marks_(marks), tools_(tools) {}

  // From behind the function's opening mark.
  State read(ToolCall& call) {
    const auto name = read_name(text_);
    if (!name.text) return name.open ? State::kOpen : State::kNone;
    const Json* function = find_tool(tools_, *name.text);
    if (function == nullptr) return State::kNone;
    parameters_ = &parameters_of(*function);
    call.name = *name.text;
    text_.blanks();
    Json arguments = Json::object();
    const bool json = !text_.at_end() && text_.rest()[0] == '{';
    const State state = json ? read_json(arguments) : read_parameters(arguments);
    if (state == State::kCalls) call.arguments = dump_json(arguments);
    return state;
  }

  const TextReader& text() const { return text_; }

 private:
  struct ValueEnd {
    State state = State::kNone;  // kCalls: it is known
    size_t at = 0;               // of the text: the value ends there
    size_t next = 0;             // and what follows begins here
  };

  // What the text goes on with, blanks aside, at a place.
  enum class Mark {
    kNone,
    kOpen,
    kEnd,
    kBlock,
    kBlockEnd,
    kFunction,
    kFunctionEnd,
    kParameter,
    kParameterEnd
  };
  struct Ahead {
    Mark mark = Mark::kNone;
    size_t behind = 0;  // the mark
  };

  Ahead ahead(size_t at) const {
    TextReader text = at_place(at);
    text.blanks();
    if (text.at_end()) return {text.is_open() ? Mark::kOpen : Mark::kEnd, text.at()};
    bool partial = false;
    for (const auto& [mark, kind] : {std::pair{marks_.block, Mark::kBlock},
                                     {marks_.block_end, Mark::kBlockEnd},
                                     {marks_.function, Mark::kFunction},
                                     {marks_.function_end, Mark::kFunctionEnd},
                                     {marks_.parameter, Mark::kParameter},
                                     {marks_.parameter_end, Mark::kParameterEnd}}) {
      const Found found = text.skip(mark);
      if (found == Found::kYes) return {kind, text.at()};
      partial = partial || found == Found::kPartial;
    }
    return {partial ? Mark::kOpen : Mark::kNone, text.at()};
  }

  TextReader at_place(size_t at) const {
    TextReader text = begin_;
    text.advance(at);
    return text;
  }
  std::string_view all() const { return begin_.rest(); }

  State read_json(Json& arguments) {
    LooseValue value = read_loose(text_.rest(), text_.end());
    if (value.state == LooseValue::State::kOpen) return State::kOpen;
    if (value.state == LooseValue::State::kBad) return State::kNone;
    text_.advance(value.length);
    arguments = std::move(value.value);
    begin_ = text_;
    const Ahead next = ahead(0);
    if (next.mark == Mark::kOpen) return State::kOpen;
    if (next.mark == Mark::kFunctionEnd) text_.advance(next.behind - begin_.at());
    return State::kCalls;
  }

  State read_parameters(Json& arguments) {
    std::set<std::string> given;
    for (;;) {
      begin_ = text_;
      const Ahead next = ahead(0);
      switch (next.mark) {
        case Mark::kOpen:
          return State::kOpen;
        case Mark::kNone:
          return State::kNone;
        case Mark::kEnd:
          return text_.end() == TextEnd::kEnded ? State::kCalls : State::kNone;
        case Mark::kFunctionEnd:
          text_.advance(next.behind - begin_.at());
          return State::kCalls;
        case Mark::kBlock:
        case Mark::kBlockEnd:
        case Mark::kFunction:
          return State::kCalls;  // its own end is missing
        case Mark::kParameterEnd:
          text_.advance(next.behind - begin_.at());
          continue;
        case Mark::kParameter:
          text_.advance(next.behind - begin_.at());
          break;
      }
      const auto name = read_name(text_);
      if (!name.text) return name.open ? State::kOpen : State::kNone;
      if (name.text->empty()) return State::kNone;
      const std::string key(*name.text);
      given.insert(key);
      const ValueEnd end = find_end(given);
      if (end.state != State::kCalls) return end.state;
      const auto value =
          bare_value(all().substr(0, end.at), schema_of(*parameters_, key), *parameters_);
      if (value) {
        arguments[key] = *value;
      } else if (requires_property(*parameters_, *parameters_, key)) {
        arguments[key] = "";
      }
      text_.advance(end.next);
    }
  }

  // Places are counted from the value's beginning.
  ValueEnd find_end(const std::set<std::string>& given) {
    begin_ = text_;
    const ValueEnd end = find_end(given, true);
    return end.state == State::kNone ? find_end(given, false) : end;
  }

  // `calls`: whole calls within the value are passed over.
  ValueEnd find_end(const std::set<std::string>& given, bool calls) const {
    const std::string_view text = all();
    const TextEnd known = begin_.end();
    std::optional<ValueEnd> maybe;
    for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
      const Ahead here = ahead(at);
      const size_t behind = here.behind - begin_.at();
      std::optional<ValueEnd> found;
      switch (here.mark) {
        case Mark::kOpen:
          return {State::kOpen};
        case Mark::kParameterEnd: {
          const Mark next = ahead(behind).mark;
          if (next == Mark::kOpen) return {State::kOpen};
          if (next != Mark::kNone && next != Mark::kParameterEnd) {
            return {State::kCalls, at, behind};
          }
          found = {State::kCalls, at, behind};
          break;
        }
        case Mark::kFunction: {
          if (!calls) break;
          size_t end = whole_call(behind);
          if (end == kUnknown) return {State::kOpen};
          if (end == 0) break;
          if (trimmed(text.substr(0, at)).ends_with(marks_.block)) {
            const Ahead next = ahead(end);
            if (next.mark == Mark::kOpen) return {State::kOpen};
            if (next.mark == Mark::kBlockEnd) end = next.behind - begin_.at();
          }
          at = end - 1;
          break;
        }
        case Mark::kParameter: {
          if (!at_line_start(at)) break;
          const auto [mark, end] = other_parameter(behind, given);
          if (mark == Mark::kOpen) return {State::kOpen};
          if (mark != Mark::kNone && mark != Mark::kParameterEnd) return {State::kCalls, at, at};
          if (end != 0) at = end - 1;
          break;
        }
        case Mark::kFunctionEnd: {
          Ahead next = ahead(behind);
          if (next.mark == Mark::kBlockEnd) next = ahead(next.behind - begin_.at());
          if (next.mark == Mark::kOpen) return {State::kOpen};
          found = {State::kCalls, at, at};
          if (next.mark == Mark::kFunction || next.mark == Mark::kBlock ||
              next.mark == Mark::kEnd) {
            return *found;
          }
          break;
        }
        case Mark::kBlockEnd: {
          const Mark next = ahead(behind).mark;
          if (next == Mark::kOpen) return {State::kOpen};
          found = {State::kCalls, at, at};
          if ((next == Mark::kBlock || next == Mark::kEnd) && at_line_start(at)) return *found;
          break;
        }
        default:
          break;
      }
      if (found && !maybe) maybe = found;
    }
    if (known == TextEnd::kMore) return {State::kOpen};
    if (known == TextEnd::kCut || calls) return {};
    return maybe ? *maybe : ValueEnd{State::kCalls, text.size(), text.size()};
  }

  bool at_line_start(size_t at) const {
    const std::string_view before = all().substr(0, at);
    const size_t last = before.find_last_not_of(" \t\r");
    return last == std::string_view::npos || before[last] == '\n';
  }

  static constexpr size_t kUnknown = std::string_view::npos;

  // The end of a whole call whose opening mark ends at a place; 0 if there is none.
  size_t whole_call(size_t at) const {
    TextReader text = at_place(at);
    auto name = read_name(text);
    if (!name.text) return name.open ? kUnknown : 0;
    for (;;) {
      const Ahead next = ahead(text.at() - begin_.at());
      if (next.mark == Mark::kOpen) return kUnknown;
      if (next.mark == Mark::kFunctionEnd) return next.behind - begin_.at();
      if (next.mark != Mark::kParameter) return 0;
      text.advance(next.behind - text.at());
      const auto value = text.until(marks_.parameter_end, std::string_view::npos / 2);
      if (!value.text) return value.open ? kUnknown : 0;
    }
  }

  // Behind a parameter's opening mark within a value: if the function has one of this name that was
  // not given yet, what follows its value and where that ends.
  std::pair<Mark, size_t> other_parameter(size_t at, const std::set<std::string>& given) const {
    TextReader text = at_place(at);
    const auto name = read_name(text);
    if (!name.text) return {name.open ? Mark::kOpen : Mark::kNone, 0};
    const std::string key(*name.text);
    if (given.contains(key) || !names(*parameters_, key)) return {Mark::kNone, 0};
    const auto value = text.until(marks_.parameter_end, std::string_view::npos / 2);
    if (!value.text) return {value.open ? Mark::kOpen : Mark::kEnd, 0};
    const size_t end = text.at() - begin_.at();
    return {ahead(end).mark, end};
  }

  TextReader text_;
  TextReader begin_ = text_;
  const XmlMarks& marks_;
  const Json& tools_;
  const Json* parameters_ = nullptr;
};

}  // namespace

CallReading read_xml(TextReader text, const XmlMarks& marks, const Json& tools) {
  const bool block = text.skip(marks.block) == Found::kYes;
  if (!block && !text.rest().starts_with(marks.function)) return {};
  std::vector<ToolCall> calls;
  for (TextReader behind = text;; behind = text) {
    behind.blanks();
    const Found found = behind.skip(marks.function);
    if (found == Found::kPartial) return {State::kOpen, {}, 0};
    if (found == Found::kNo) break;
    FunctionReader function(behind, marks, tools);
    ToolCall call;
    const State state = function.read(call);
    if (state == State::kOpen) return {State::kOpen, {}, 0};
    if (state == State::kNone) break;
    calls.push_back(std::move(call));
    text = function.text();
  }
  if (calls.empty()) return {};
  TextReader end = text;
  end.blanks();
  const Found found = end.skip(marks.block_end);
  if (found == Found::kPartial) return {State::kOpen, {}, 0};
  if (found == Found::kYes) text = end;
  return {State::kCalls, std::move(calls), text.at()};
}

}  // namespace replayssm::server
