#include "server/chat/tool_calls.h"

#include "core/error.h"

namespace replayssm::server {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// The function's entry; null if there is none of this name.
const Json* find_tool(const Json& tools, std::string_view name) {
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    if (function.at("name").get_ref<const std::string&>() == name) return &function;
  }
  return nullptr;
}

// The parameter's schema; null if it has none.
const Json* find_schema(const Json& function, const std::string& key) {
  const auto parameters = function.find("parameters");
  if (parameters == function.end() || !parameters->is_object()) return nullptr;
  const auto properties = parameters->find("properties");
  if (properties == parameters->end() || !properties->is_object()) return nullptr;
  const auto property = properties->find(key);
  return property == properties->end() || !property->is_object() ? nullptr : &*property;
}

std::optional<ToolCall> from_json(const Json& call, const Json& tools) {
  if (!call.is_object()) return {};
  const auto name = call.find("name");
  if (name == call.end() || !name->is_string()) return {};
  if (find_tool(tools, name->get_ref<const std::string&>()) == nullptr) return {};
  auto arguments = call.find("arguments");
  if (arguments == call.end()) arguments = call.find("parameters");
  Json object = arguments == call.end() ? Json::object() : *arguments;
  if (object.is_string()) {
    object = parse_json(object.get_ref<const std::string&>());
  }
  if (!object.is_object()) return {};
  return ToolCall{name->get<std::string>(), dump_json(object)};
}

// Moves past `what`; false if the text does not go on so.
bool skip(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

// Moves past the next `end`; what stands before it.
std::optional<std::string_view> until(std::string_view& text, std::string_view end) {
  const size_t at = text.find(end);
  if (at == std::string_view::npos) return {};
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return part;
}

// The text of a value has no quotes: what it is its schema says. Blanks round it are part of a
// string that the schema leaves free, but for a line feed at each end.
Json parameter_value(std::string_view text, const Json& schema) {
  const std::string_view bare = trimmed(text);
  Json parsed(Json::value_t::discarded);
  try {
    parsed = parse_json(bare);
  } catch (const Error&) {
  }
  Json listed = schema.value("enum", Json::array());
  if (schema.contains("const")) listed.push_back(schema["const"]);
  for (const Json& value : listed) {
    if (value.is_string() ? value.get_ref<const std::string&>() == bare : value == parsed)
      return value;
  }
  const bool is_string = schema.contains("type") && schema["type"] == "string";
  if (!is_string && !parsed.is_discarded()) return parsed;
  for (const char* key : {"minLength", "maxLength", "pattern", "format"}) {
    if (schema.contains(key)) return std::string(bare);
  }
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

// <function=name> <parameter=key>value</parameter> ... </function>
std::optional<ToolCall> from_xml(std::string_view text, const Json& tools) {
  if (!skip(text, "<function=")) return {};
  const auto name = until(text, ">");
  if (!name) return {};
  const Json* function = find_tool(tools, trimmed(*name));
  if (function == nullptr) return {};
  Json arguments = Json::object();
  for (;;) {
    text = trimmed(text);
    if (skip(text, "</function>")) break;
    if (!skip(text, "<parameter=")) return {};
    const auto key = until(text, ">");
    const auto value = key ? until(text, "</parameter>") : std::nullopt;
    if (!value) return {};
    const std::string parameter(trimmed(*key));
    const Json* schema = find_schema(*function, parameter);
    arguments[parameter] = parameter_value(*value, schema == nullptr ? Json::object() : *schema);
  }
  if (!trimmed(text).empty()) return {};
  return ToolCall{std::string(trimmed(*name)), dump_json(arguments)};
}

}  // namespace

std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view body, const Json& tools) {
  const std::string_view text = trimmed(body);
  std::vector<ToolCall> calls;
  if (text.starts_with("<function=")) {
    auto call = from_xml(text, tools);
    if (!call) return {};
    calls.push_back(std::move(*call));
    return calls;
  }
  try {
    Json json = parse_json(text);
    if (!json.is_array()) json = Json::array({json});
    for (const Json& item : json) {
      auto call = from_json(item, tools);
      if (!call) return {};
      calls.push_back(std::move(*call));
    }
  } catch (const Error&) {
    return {};
  }
  if (calls.empty()) return {};
  return calls;
}

}  // namespace replayssm::server
