#include "server/request/chat.h"

#include "server/api_error.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxMessages = 65536;
constexpr size_t kMaxTools = 1024;
constexpr size_t kMaxParts = 4096;

// A string, null, or parts of text, with `joiner` between them.
std::string parse_content(Fields& fields, const std::string& joiner) {
  const Json* content = fields.find("content");
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  const std::string path = fields.path_of("content");
  if (!content->is_array()) refuse(path, "must be a string or a list of parts");
  if (content->size() > kMaxParts) refuse(path, concat("has more than ", kMaxParts, " parts"));
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    if (i > 0) text += joiner;
    Fields part((*content)[i], concat(path, "[", i, "]"));
    const std::string type = part.string("type").value_or("");
    if (type != "text") {
      refuse(part.path_of("type"), concat("\"", type.substr(0, 40),
                                          "\" is not possible; this "
                                          "model reads text"));
    }
    const auto piece = part.string("text");
    if (!piece) refuse(part.path_of("text"), "is missing");
    text += *piece;
  }
  return text;
}

// Arguments come as JSON in a string; templates want the object. What a model wrote wrongly is
// served as it is.
Json parse_arguments(const Json* arguments, const std::string& path, Warnings& warnings) {
  if (arguments == nullptr) return Json::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) refuse(path, "must be a string that holds a JSON object");
  const std::string& text = arguments->get_ref<const std::string&>();
  if (text.empty()) return Json::object();
  try {
    Json object = parse_json(text);
    if (object.is_object()) return object;
  } catch (const Error&) {
  }
  warnings.push_back(path + ": is not a JSON object; the template gets the text");
  return *arguments;
}

// Templates that go through the arguments cannot go through a text: it becomes the only one of
// them.
Json with_objects(Json messages) {
  for (Json& message : messages) {
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) {
      Json& arguments = call["function"]["arguments"];
      if (arguments.is_string()) arguments = {{"arguments", arguments}};
    }
  }
  return messages;
}

Json parse_tool_calls(const Json& calls, const std::string& path, Warnings& warnings) {
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Fields call(calls[i], concat(path, "[", i, "]"));
    const Json* function = call.object("function");
    if (function == nullptr) refuse(call.path_of("function"), "is missing");
    Fields inner(*function, call.path_of("function"));
    const auto name = inner.string("name");
    if (!name) refuse(inner.path_of("name"), "is missing");
    Json entry = Json::object();
    if (const auto id = call.string("id")) entry["id"] = *id;
    entry["type"] = "function";
    entry["function"] = {{"name", *name},
                         {"arguments", parse_arguments(inner.find("arguments"),
                                                       inner.path_of("arguments"), warnings)}};
    out.push_back(std::move(entry));
  }
  return out;
}

Json parse_message(const Json& message, const std::string& path, const std::string& joiner,
                   Warnings& warnings) {
  Fields fields(message, path);
  std::string role = fields.string("role").value_or("");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    refuse(fields.path_of("role"), "must be system, developer, user, assistant or tool");
  }
  Json out = {{"role", role}, {"content", parse_content(fields, joiner)}};
  if (role == "assistant") {
    auto reasoning = fields.string("reasoning_content");
    if (const auto other = fields.string("reasoning"); !reasoning) reasoning = other;
    if (reasoning) out["reasoning_content"] = *reasoning;
    const Json* calls = fields.array("tool_calls", kMaxTools);
    if (calls != nullptr && !calls->empty()) {
      out["tool_calls"] = parse_tool_calls(*calls, fields.path_of("tool_calls"), warnings);
    }
    fields.find("refusal");
  }
  if (const auto id = fields.string("tool_call_id")) out["tool_call_id"] = *id;
  if (const auto name = fields.string("name")) out["name"] = *name;
  fields.warn_unread(warnings);
  return out;
}

Json parse_messages(Fields& fields, const ServedModel& model, Warnings& warnings) {
  const Json* messages = fields.array("messages", kMaxMessages);
  if (messages == nullptr) refuse("messages", "is missing");
  if (messages->empty()) refuse("messages", "is empty");
  const std::string joiner =
      model.chat_template == nullptr ? "" : model.chat_template->part_joiner();
  Json out = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    out.push_back(parse_message((*messages)[i], concat("messages[", i, "]"), joiner, warnings));
  }
  return out;
}

Json parse_tools(Fields& fields) {
  const Json* tools = fields.array("tools", kMaxTools);
  if (tools == nullptr) return Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    Fields tool((*tools)[i], concat("tools[", i, "]"));
    if (tool.string("type").value_or("function") != "function") {
      refuse(tool.path_of("type"), "must be function");
    }
    const Json* function = tool.object("function");
    if (function == nullptr) refuse(tool.path_of("function"), "is missing");
    Fields inner(*function, tool.path_of("function"));
    const std::string name = inner.string("name").value_or("");
    if (name.empty() || name.size() > 256) {
      refuse(inner.path_of("name"), "must be 1 to 256 bytes");
    }
    inner.object("parameters");
  }
  return *tools;
}

void parse_tool_choice(Fields& fields, ChatRequest& request) {
  const Json* choice = fields.find("tool_choice");
  request.tool_choice = request.tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const auto& name = choice->get_ref<const std::string&>();
    if (name == "none") {
      request.tools = Json::array();
      request.tool_choice = ToolChoice::kNone;
      return;
    }
    if (name == "auto") return;
    if (name != "required") refuse("tool_choice", "must be none, auto, required or a function");
  } else {
    Fields named(*choice, "tool_choice");
    const Json* function = named.object("function");
    if (function == nullptr) refuse("tool_choice.function", "is missing");
    Fields inner(*function, "tool_choice.function");
    const std::string name = inner.string("name").value_or("");
    Json kept = Json::array();
    for (const Json& tool : request.tools) {
      if (tool.at("function").at("name") == name) kept.push_back(tool);
    }
    if (kept.empty()) refuse("tool_choice.function.name", "is not one of the tools");
    request.tools = kept;
  }
  if (request.tools.empty()) refuse("tool_choice", "needs tools");
  request.tool_choice = ToolChoice::kRequired;
}

ChatTemplate::Options parse_template_options(Fields& fields) {
  ChatTemplate::Options options;
  options.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  if (const Json* kwargs = fields.object("chat_template_kwargs")) options.kwargs = *kwargs;
  if (const auto thinking = fields.boolean("enable_thinking")) {
    options.kwargs["enable_thinking"] = *thinking;
  }
  if (const auto effort = fields.string("reasoning_effort")) {
    options.kwargs["reasoning_effort"] = *effort;
    if (*effort == "none" && !options.kwargs.contains("enable_thinking")) {
      options.kwargs["enable_thinking"] = false;
    }
  }
  return options;
}

// Stands behind the last message's text while it is rendered, to find its end again.
constexpr std::string_view kEndOfText = "\uE000 the text ends here \uE001";

ChatPrompt render(Json messages, const Json& tools, const ChatTemplate::Options& options,
                  const ServedModel& model, bool goes_on, Warnings& warnings) {
  if (model.chat_template == nullptr) {
    refuse("messages",
           "the model's folder has no chat template; use /v1/completions, or start "
           "the server with --chat-template");
  }
  ChatPrompt prompt;
  if (goes_on) {
    Json& content = messages.back()["content"];
    content = concat(content.get<std::string>(), kEndOfText);
  }
  try {
    prompt.text = model.chat_template->render(messages, tools, options, warnings);
  } catch (const ApiError&) {
    const Json objects = with_objects(messages);
    if (objects == messages) throw;
    prompt.text = model.chat_template->render(objects, tools, options, warnings);
  }
  if (goes_on) {
    const size_t end = prompt.text.rfind(kEndOfText);
    if (end == std::string::npos) {
      refuse("continue_final_message", "the chat template does not show the last message's text");
    }
    prompt.text.resize(end);
  }
  prompt.ids = model.encode(prompt.text, false, "messages");
  return prompt;
}

bool ends_inside_think(const std::string& prompt, const Json& messages, bool goes_on) {
  if (goes_on) {
    const auto& text = messages.back().at("content").get_ref<const std::string&>();
    const size_t opened = text.rfind("<think>"), closed = text.rfind("</think>");
    return opened != std::string::npos && (closed == std::string::npos || closed < opened);
  }
  const size_t end = prompt.find_last_not_of(" \t\r\n");
  return end != std::string::npos &&
         std::string_view(prompt).substr(0, end + 1).ends_with("<think>");
}

// Whether the answer goes on with the last message's text.
bool goes_on_with(const Json& messages, Fields& fields) {
  if (!fields.boolean("continue_final_message").value_or(false)) return false;
  if (fields.boolean("add_generation_prompt").value_or(false)) {
    refuse("continue_final_message", "cannot go with add_generation_prompt");
  }
  const Json& last = messages.back();
  const bool text = last.at("role") == "assistant" && !last.contains("tool_calls") &&
                    !last.at("content").get_ref<const std::string&>().empty();
  if (!text) {
    refuse("continue_final_message",
           "needs a last message of the assistant with text and no calls");
  }
  return true;
}

void refuse_old_fields(Fields& fields) {
  for (const char* name : {"functions", "function_call"}) {
    if (fields.find(name) != nullptr) refuse(name, "is the old form; use tools and tool_choice");
  }
  const Json* modalities = fields.array("modalities", 8);
  if (modalities != nullptr && *modalities != Json::array({"text"})) {
    refuse("modalities", "must be [\"text\"]");
  }
  if (fields.find("audio") != nullptr) refuse("audio", "is not possible; this model writes text");
}

}  // namespace

ChatRequest parse_chat(const Json& body, const ServedModel& model, bool test_hooks) {
  ChatRequest request;
  Fields fields(body, "");
  request.common = parse_common(fields, model, true, test_hooks);
  Warnings& warnings = request.common.warnings;
  refuse_old_fields(fields);
  const Json messages = parse_messages(fields, model, warnings);
  request.tools = parse_tools(fields);
  parse_tool_choice(fields, request);
  if (request.tool_choice == ToolChoice::kRequired &&
      request.common.structure.kind != Structure::Kind::kNone) {
    refuse(request.common.structure.field, "cannot go with tool_choice required");
  }
  const bool goes_on = goes_on_with(messages, fields);
  ChatTemplate::Options options = parse_template_options(fields);
  options.add_generation_prompt = options.add_generation_prompt && !goes_on;
  request.prompt = render(messages, request.tools, options, model, goes_on, warnings);
  request.opens_reasoning = ends_inside_think(request.prompt.text, messages, goes_on);

  GenerationRequest& engine = request.common.engine;
  request.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxLogprobs);
  if (top.value_or(0) > 0 && !request.logprobs) refuse("top_logprobs", "needs logprobs");
  if (request.logprobs) engine.logprobs = static_cast<int32_t>(top.value_or(0));
  const auto newer = fields.integer("max_completion_tokens", 0, INT32_MAX);
  const auto asked = newer ? newer : request.common.max_tokens;
  if (asked && *asked == 0)
    refuse(newer ? "max_completion_tokens" : "max_tokens", "must be above 0");
  const int64_t rest = model.max_positions - static_cast<int64_t>(request.prompt.ids.size());
  request.common.max_tokens =
      fit_length(request.prompt.ids.size(), asked.value_or(rest), model, "messages", warnings);
  check_min_tokens(request.common);
  request.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  fields.warn_unread(warnings);
  return request;
}

ChatPrompt chat_prompt(const Json& body, const ServedModel& model) {
  Fields fields(body, "");
  Warnings warnings;
  if (fields.find("messages") == nullptr) refuse("prompt", "is missing, and so is messages");
  const Json messages = parse_messages(fields, model, warnings);
  const bool goes_on = goes_on_with(messages, fields);
  ChatTemplate::Options options = parse_template_options(fields);
  options.add_generation_prompt = options.add_generation_prompt && !goes_on;
  return render(messages, parse_tools(fields), options, model, goes_on, warnings);
}

}  // namespace replayssm::server
