#include "server/chat/tool_calls.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "server/chat/call_text.h"
#include "server/chat/xml_call.h"

namespace replayssm::server {
namespace {

using State = CallReading::State;

struct BlockMarks {
  std::string_view begin, end;
};

// Blocks of calls in JSON.
constexpr BlockMarks kBlocks[] = {
    {"<tool_call>", "</tool_call>"},               // Qwen, Hermes, Granite 4, Falcon
    {"<TOOLCALL>", "</TOOLCALL>"},                 // Nemotron
    {"<tool_calls>", "</tool_calls>"},             // MiniMax
    {"<|tool_call_start|>", "<|tool_call_end|>"},  // LFM2
    {"<|tool_call|>", ""},                         // Granite 3
};

// Kimi's.
constexpr std::string_view kSection = "<|tool_calls_section_begin|>";
constexpr std::string_view kSectionEnd = "<|tool_calls_section_end|>";
constexpr std::string_view kNumbered = "<|tool_call_begin|>";
constexpr std::string_view kArguments = "<|tool_call_argument_begin|>";
constexpr std::string_view kNumberedEnd = "<|tool_call_end|>";

std::vector<std::string_view> all_openers() {
  std::vector<std::string_view> marks = {kSection, kNumbered};
  for (const BlockMarks& block : kBlocks) marks.push_back(block.begin);
  for (const XmlMarks& xml : kXmlMarks) {
    if (!xml.block.empty() && xml.block != kBlocks[0].begin) marks.push_back(xml.block);
    marks.push_back(xml.function);
  }
  return marks;
}

const std::vector<std::string_view>& openers() {
  static const std::vector<std::string_view> kMarks = all_openers();
  return kMarks;
}

// A call in JSON: {"name", "arguments"}, as some write it within "function".
std::optional<ToolCall> from_json(const Json& json, const Json& tools) {
  if (!json.is_object()) return {};
  const auto inner = json.find("function");
  const Json& call = inner != json.end() && inner->is_object() ? *inner : json;
  const auto name = call.find("name");
  if (name == call.end() || !name->is_string()) return {};
  if (find_tool(tools, name->get_ref<const std::string&>()) == nullptr) return {};
  auto arguments = call.find("arguments");
  if (arguments == call.end()) arguments = call.find("parameters");
  Json object = arguments == call.end() || arguments->is_null() ? Json::object() : *arguments;
  if (object.is_string()) {
    const std::string text = object.get<std::string>();
    LooseValue value = read_loose(text, TextEnd::kCut);
    if (value.state != LooseValue::State::kValue || value.length != trimmed_end(text)) return {};
    object = std::move(value.value);
  }
  if (!object.is_object()) return {};
  return ToolCall{name->get<std::string>(), dump_json(object), {}};
}

// All of a value's calls, or none.
bool add_json(const Json& value, const Json& tools, std::vector<ToolCall>& calls) {
  std::vector<ToolCall> found;
  for (const Json& one : value.is_array() ? value : Json::array({value})) {
    auto call = from_json(one, tools);
    if (!call) return false;
    found.push_back(std::move(*call));
  }
  std::move(found.begin(), found.end(), std::back_inserter(calls));
  return !found.empty();
}

bool is_identifier(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

// LFM2's: [name(key="value", ...), ...], as Python writes it; the brackets may be missing.
State read_python(TextReader& text, const Json& tools, std::vector<ToolCall>& calls) {
  std::vector<ToolCall> found;
  text.blanks();
  const bool listed = text.skip("[") == Found::kYes;
  for (;;) {
    text.blanks();
    if (text.at_end() && text.end() == TextEnd::kEnded && !found.empty()) break;
    if (text.at_end()) return text.is_open() ? State::kOpen : State::kNone;
    if (listed && text.skip("]") == Found::kYes) break;
    const auto name = text.until("(", kMaxNameBytes);
    if (!name.text) return name.open ? State::kOpen : State::kNone;
    if (find_tool(tools, trimmed(*name.text)) == nullptr) return State::kNone;
    Json arguments = Json::object();
    for (;;) {
      text.blanks();
      if (text.at_end()) return text.is_open() ? State::kOpen : State::kNone;
      if (text.skip(")") == Found::kYes) break;
      const auto key = text.until("=", kMaxNameBytes);
      if (!key.text) return key.open ? State::kOpen : State::kNone;
      const std::string name_of_value(trimmed(*key.text));
      if (!is_identifier(name_of_value)) return State::kNone;
      LooseValue value = read_loose(text.rest(), text.is_open() ? TextEnd::kMore : TextEnd::kCut);
      if (value.state == LooseValue::State::kOpen) return State::kOpen;
      if (value.state == LooseValue::State::kBad) return State::kNone;
      text.advance(value.length);
      arguments[name_of_value] = std::move(value.value);
      text.blanks();
      text.skip(",");
    }
    found.push_back({std::string(trimmed(*name.text)), dump_json(arguments), {}});
    TextReader ahead = text;
    ahead.blanks();
    if (ahead.at_end() && ahead.is_open()) return State::kOpen;
    if (ahead.skip(",") == Found::kYes) {
      text = ahead;
    } else if (!listed) {
      break;
    }
  }
  std::move(found.begin(), found.end(), std::back_inserter(calls));
  return found.empty() ? State::kNone : State::kCalls;
}

// Behind a call: the block's end mark, and brackets too many before it. False if that is not known.
bool skip_end(TextReader& text, std::string_view mark) {
  TextReader ahead = text;
  while (!ahead.at_end() &&
         std::string_view(" \t\r\n}],").find(ahead.rest()[0]) != std::string::npos)
    ahead.advance(1);
  if (ahead.at_end()) return !ahead.is_open();
  const Found found = ahead.skip(mark);
  if (found == Found::kYes) text = ahead;
  return found != Found::kPartial;
}

// Whether one more of a block's values follows: then the text goes on with it.
Found goes_on(TextReader& text) {
  TextReader ahead = text;
  ahead.blanks();
  if (ahead.skip(",") == Found::kYes) ahead.blanks();
  if (ahead.at_end()) return ahead.is_open() ? Found::kPartial : Found::kNo;
  if (std::string_view("{[").find(ahead.rest()[0]) == std::string_view::npos) return Found::kNo;
  text = ahead;
  return Found::kYes;
}

CallReading finished(const TextReader& text, std::vector<ToolCall> calls) {
  return {State::kCalls, std::move(calls), text.at()};
}

CallReading read_block(TextReader text, const BlockMarks& marks, const Json& tools) {
  text.advance(marks.begin.size());
  text.blanks();
  if (text.at_end()) return {text.is_open() ? State::kOpen : State::kNone, {}, 0};
  std::vector<ToolCall> calls;
  const char first = text.rest()[0];
  TextReader inner = text;
  inner.advance(first == '[' ? 1 : 0);
  inner.blanks();
  if (inner.at_end() && inner.is_open()) return {State::kOpen, {}, 0};
  const bool json =
      first == '{' || (first == '[' && !inner.at_end() &&
                       std::string_view("{]").find(inner.rest()[0]) != std::string::npos);
  if (!json) {
    const State state = read_python(text, tools, calls);
    if (state != State::kCalls) return {state, {}, 0};
    if (!skip_end(text, marks.end)) return {State::kOpen, {}, 0};
    return finished(text, std::move(calls));
  }
  do {
    TextReader behind = text;
    LooseValue value = read_loose(text.rest(), text.end());
    if (value.state == LooseValue::State::kOpen) return {State::kOpen, {}, 0};
    if (value.state == LooseValue::State::kBad || !add_json(value.value, tools, calls)) break;
    behind.advance(value.length);
    text = behind;
    if (marks.end.empty()) break;
    if (!skip_end(behind, marks.end)) return {State::kOpen, {}, 0};
    if (behind.at() != text.at()) return finished(behind, std::move(calls));
  } while (goes_on(text) == Found::kYes);
  if (calls.empty()) return {};
  return finished(text, std::move(calls));
}

// functions.NAME:NUMBER, or NAME alone.
std::string numbered_name(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  return std::string(id.substr(0, id.rfind(':')));
}

CallReading read_numbered(TextReader text, const Json& tools) {
  std::vector<ToolCall> calls;
  const bool section = text.skip(kSection) == Found::kYes;
  TextReader behind = text;
  for (;;) {
    text = behind;
    text.blanks();
    const Found begin = text.skip(kNumbered);
    if (begin == Found::kPartial) return {State::kOpen, {}, 0};
    if (begin == Found::kNo) break;
    const auto id = text.until(kArguments, kMaxNameBytes);
    if (!id.text && id.open) return {State::kOpen, {}, 0};
    if (!id.text) break;
    LooseValue value = read_loose(text.rest(), text.end());
    if (value.state == LooseValue::State::kOpen) return {State::kOpen, {}, 0};
    const std::string name = numbered_name(trimmed(*id.text));
    if (value.state == LooseValue::State::kBad || !value.value.is_object() ||
        find_tool(tools, name) == nullptr) {
      break;
    }
    text.advance(value.length);
    if (!skip_end(text, kNumberedEnd)) return {State::kOpen, {}, 0};
    calls.push_back({name, dump_json(value.value), std::string(trimmed(*id.text))});
    behind = text;
  }
  if (calls.empty()) return {};
  if (section && !skip_end(behind, kSectionEnd)) return {State::kOpen, {}, 0};
  return finished(behind, std::move(calls));
}

// An object with a call's keys and no other.
bool is_bare_call(const LooseValue& value) {
  constexpr std::array<std::string_view, 5> kKeys = {"name", "arguments", "parameters", "type",
                                                     "id"};
  if (value.state != LooseValue::State::kValue || !value.value.is_object()) return false;
  for (const auto& item : value.value.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), item.key()) == kKeys.end()) return false;
  }
  return value.value.contains("arguments") || value.value.contains("parameters");
}

// Without marks: objects {"name": KNOWN, "arguments": ...}, and nothing else but an end mark.
CallReading read_bare(TextReader text, const Json& tools) {
  TextReader ahead = text;
  for (const std::string_view token : {"{", "\"name\"", ":"}) {
    ahead.blanks();
    const Found found = ahead.skip(token);
    if (found != Found::kYes)
      return {found == Found::kPartial ? State::kOpen : State::kNone, {}, 0};
  }
  std::vector<ToolCall> calls;
  for (Found found = Found::kYes; found == Found::kYes; found = goes_on(text)) {
    const LooseValue value =
        read_loose(text.rest(), text.is_open() ? TextEnd::kMore : TextEnd::kCut);
    if (value.state == LooseValue::State::kOpen) return {State::kOpen, {}, 0};
    if (!is_bare_call(value) || !add_json(value.value, tools, calls)) return {};
    text.advance(value.length);
  }
  if (goes_on(text) == Found::kPartial) return {State::kOpen, {}, 0};
  text.blanks();
  if (text.at_end()) {
    return text.is_open() ? CallReading{State::kOpen, {}, 0} : finished(text, std::move(calls));
  }
  for (const std::string_view mark : {kBlocks[0].end, kBlocks[1].end}) {
    const Found found = text.skip(mark);
    if (found == Found::kPartial) return {State::kOpen, {}, 0};
    if (found == Found::kYes) return finished(text, std::move(calls));
  }
  return {};
}

}  // namespace

const std::vector<std::string>& chat_marks() {
  static const std::vector<std::string> kMarks = {
      "<think>",
      "</think>",
      "<tool_call>",
      "</tool_call>",
      "<TOOLCALL>",
      "</TOOLCALL>",
      "<tool_response>",
      "</tool_response>",
      "<tool_calls>",
      "</tool_calls>",
      "<minimax:tool_call>",
      "</minimax:tool_call>",
      "<|tool_call|>",
      "<|tool_call_start|>",
      "<|tool_call_end|>",
      "<|tool_calls_section_begin|>",
      "<|tool_calls_section_end|>",
      "<|tool_call_begin|>",
      "<|tool_call_argument_begin|>",
  };
  return kMarks;
}

CallPlace find_call(std::string_view text, bool bare, bool line_start) {
  CallPlace place;
  const auto begins_line = [&](size_t at) {
    const size_t before = at == 0 ? std::string_view::npos : text.find_last_not_of(" \t\r", at - 1);
    return before == std::string_view::npos ? line_start : text[before] == '\n';
  };
  for (size_t at = text.find_first_of("<{"); at != std::string_view::npos;
       at = text.find_first_of("<{", at + 1)) {
    if (text[at] == '{') {
      if (bare && begins_line(at)) return {at, 1, 0};
      continue;
    }
    for (const std::string_view mark : openers()) {
      if (text.substr(at).starts_with(mark)) return {at, mark.size(), 0};
      if (mark.starts_with(text.substr(at))) place.partial = text.size() - at;
    }
  }
  return place;
}

CallReading read_calls(std::string_view text, const Json& tools, TextEnd end) {
  const TextReader reader(text, end);
  if (text.starts_with('{')) return read_bare(reader, tools);
  if (text.starts_with(kSection) || text.starts_with(kNumbered))
    return read_numbered(reader, tools);
  for (const XmlMarks& marks : kXmlMarks) {
    CallReading reading = read_xml(reader, marks, tools);
    if (reading.state != State::kNone) return reading;
  }
  for (const BlockMarks& marks : kBlocks) {
    if (text.starts_with(marks.begin)) return read_block(reader, marks, tools);
  }
  return {};
}

}  // namespace replayssm::server
