#include "server/apis/responses_request.h"

#include <set>

namespace replayssm::server {
namespace {

constexpr size_t kMaxIncludes = 32;
constexpr size_t kMaxMetadata = 16;
constexpr std::string_view kCarried = "replayssm:";

const std::set<std::string> kTextParts = {"input_text", "output_text", "text", "refusal"};

// A function of a namespace as the chat knows it.
std::string joined_name(const std::string& name_space, const std::string& name) {
  return name_space.empty() ? name : concat(name_space, "__", name);
}

std::string need(Fields& fields, const std::string& name) {
  auto value = fields.string(name);
  if (!value) refuse(fields.path_of(name), "is missing");
  return *value;
}

// Turns items into messages: the reasoning, the text and the calls of one turn of the assistant,
// which are items of their own here, share a message.
class ItemFolder {
 public:
  ItemFolder(Json& messages, Warnings& warnings, FieldNames* names)
      : messages_(messages), warnings_(warnings), names_(names) {}

  void add(const Json& item, const std::string& path) {
    path_ = path;
    Fields fields(item, path);
    const std::string type = fields.string("type").value_or("message");
    if (type == "message") {
      message(fields);
    } else if (type == "reasoning") {
      reasoning(fields);
    } else if (type == "function_call") {
      call(fields, Json(fields.string("arguments").value_or("")));
    } else if (type == "custom_tool_call") {
      call(fields, Json(dump_json({{"input", need(fields, "input")}})));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      const Json* output = fields.find("output");
      if (output == nullptr) refuse(fields.path_of("output"), "is missing");
      Json content = text_content(*output, fields.path_of("output"), kTextParts);
      push({{"role", "tool"},
            {"tool_call_id", need(fields, "call_id")},
            {"content", std::move(content)}});
      turn_ = false;
    } else {
      refuse(fields.path_of("type"),
             concat("\"", type.substr(0, 64),
                    "\" is not possible; there are message, reasoning, function_call, "
                    "function_call_output, custom_tool_call and custom_tool_call_output"));
    }
  }

 private:
  void push(Json message) {
    if (names_ != nullptr) names_->add(concat("messages[", messages_.size(), "]"), path_);
    messages_.push_back(std::move(message));
  }

  // The message of the assistant's turn under way, if it has none of these fields yet.
  Json& turn(std::initializer_list<const char*> fields) {
    for (const char* field : fields) turn_ = turn_ && !messages_.back().contains(field);
    if (!turn_) push({{"role", "assistant"}});
    turn_ = true;
    return messages_.back();
  }

  void message(Fields& fields) {
    const std::string role = need(fields, "role");
    const Json* content = fields.find("content");
    if (content == nullptr) refuse(fields.path_of("content"), "is missing");
    Json text = text_content(*content, fields.path_of("content"), kTextParts);
    if (role == "assistant") {
      turn({"content", "tool_calls"})["content"] = std::move(text);
      return;
    }
    if (role != "user" && role != "system" && role != "developer") {
      refuse(fields.path_of("role"), "must be user, assistant, system or developer");
    }
    turn_ = false;
    push({{"role", role}, {"content", std::move(text)}});
  }

  void reasoning(Fields& fields) {
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json* parts = fields.array(name, kMaxIncludes);
      if (parts == nullptr || !text.empty()) continue;
      const Json got =
          text_content(*parts, fields.path_of(name), {"reasoning_text", "summary_text"});
      for (const Json& part : got.is_array() ? got : Json::array({{{"text", got}}})) {
        text += part.at("text").get<std::string>();
      }
    }
    const std::string encrypted = fields.string("encrypted_content").value_or("");
    if (text.empty()) text = carried_reasoning(encrypted);
    if (text.empty()) {
      if (!encrypted.empty()) {
        warnings_.push_back(fields.path_of("encrypted_content") + ": not of this server, ignored");
      }
      return;
    }
    turn({"reasoning_content", "content", "tool_calls"})["reasoning_content"] = text;
  }

  void call(Fields& fields, Json arguments) {
    Json& message = turn({});
    Json& calls = message["tool_calls"];
    if (calls.is_null()) calls = Json::array();
    const std::string name =
        joined_name(fields.string("namespace").value_or(""), need(fields, "name"));
    calls.push_back({{"id", need(fields, "call_id")},
                     {"type", "function"},
                     {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  }

  Json& messages_;
  Warnings& warnings_;
  FieldNames* names_;
  std::string path_;   // of the item
  bool turn_ = false;  // the last message is the assistant's, of these items
};

void translate_input(Fields& fields, ResponsesRequest& request) {
  const Json* input = fields.find("input");
  if (input == nullptr) refuse("input", "is missing");
  if (input->is_string()) {
    request.messages.push_back({{"role", "user"}, {"content", *input}});
    return;
  }
  append_items(request.messages, *fields.array("input", kMaxInputItems), request.chat.warnings,
               &request.chat.names);
}

void translate_tool(const Json& json, const std::string& path, const std::string& name_space,
                    bool last, ResponsesRequest& request) {
  InnerChat& chat = request.chat;
  Fields tool(json, path);
  const std::string type = tool.string("type").value_or("");
  const std::string name = tool.string("name").value_or("");
  const std::string inner = joined_name(name_space, name);
  const std::string description = tool.string("description").value_or("");
  if (type == "function") {
    add_tool(chat, path, "parameters", name.empty() ? name : inner, description,
             tool.object("parameters"));
    if (!name_space.empty()) request.origins[inner] = {name, name_space, false};
  } else if (type == "custom") {
    const Json schema = {{"type", "object"},
                         {"properties", {{"input", {{"type", "string"}}}}},
                         {"required", Json::array({"input"})}};
    add_tool(chat, path, "format", name.empty() ? name : inner, description, &schema);
    request.origins[inner] = {name, name_space, true};
    const Json* format = tool.object("format");
    if (format != nullptr && format->value("type", Json("text")) != "text") {
      chat.warnings.push_back(path + ".format: the input is free text, its grammar is ignored");
    }
  } else if (type == "namespace" && name_space.empty()) {
    const Json* tools = tool.array("tools", kMaxInputTools);
    if (name.empty()) refuse(path + ".name", "is missing");
    for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
      translate_tool((*tools)[i], concat(path, ".tools[", i, "]"), name, false, request);
    }
  } else {
    drop_tool(chat, path, type, last);
  }
}

void translate_tools(Fields& fields, ResponsesRequest& request) {
  const Json* tools = fields.array("tools", kMaxInputTools);
  request.echo["tools"] = tools == nullptr ? Json::array() : *tools;
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    translate_tool((*tools)[i], concat("tools[", i, "]"), "", i + 1 == tools->size(), request);
  }
}

// The chat's tool_choice for one that names a tool.
Json named_choice(Fields& choice) {
  const std::string name =
      joined_name(choice.string("namespace").value_or(""), need(choice, "name"));
  return {{"type", "function"}, {"function", {{"name", name}}}};
}

// Only the tools that the list names stay.
void keep_allowed(Fields& choice, ResponsesRequest& request) {
  const Json* allowed = choice.array("tools", kMaxInputTools);
  if (allowed == nullptr) refuse("tool_choice.tools", "is missing");
  std::set<std::string> names;
  for (size_t i = 0; i < allowed->size(); ++i) {
    Fields tool((*allowed)[i], concat("tool_choice.tools[", i, "]"));
    names.insert(joined_name(tool.string("namespace").value_or(""), need(tool, "name")));
  }
  Json kept = Json::array();
  if (request.chat.body.contains("tools")) {
    for (const Json& tool : request.chat.body["tools"]) {
      if (names.contains(tool.at("function").at("name").get<std::string>())) kept.push_back(tool);
    }
  }
  if (kept.empty()) refuse("tool_choice.tools", "names none of the tools");
  request.chat.body["tools"] = std::move(kept);
}

void translate_tool_choice(Fields& fields, ResponsesRequest& request) {
  const Json* choice = fields.find("tool_choice");
  request.echo["tool_choice"] = choice == nullptr ? Json("auto") : *choice;
  if (choice == nullptr) return;
  Json& inner = request.chat.body["tool_choice"];
  if (choice->is_string()) {
    inner = *choice;
    return;
  }
  Fields named(*choice, "tool_choice");
  const std::string type = named.string("type").value_or("");
  if (type == "function" || type == "custom") {
    inner = named_choice(named);
  } else if (type == "allowed_tools") {
    keep_allowed(named, request);
    inner = named.string("mode").value_or("auto");
  } else {
    refuse("tool_choice.type", "must be function, custom or allowed_tools");
  }
}

void translate_text(Fields& fields, ResponsesRequest& request) {
  request.echo["text"] = {{"format", {{"type", "text"}}}};
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  Fields inner(*text, "text");
  if (const Json* format = inner.object("format")) {
    Fields kind(*format, "text.format");
    const std::string type = kind.string("type").value_or("");
    Json& out = request.chat.body["response_format"];
    out = {{"type", type}};
    if (type == "json_schema") {
      const Json* schema = kind.object("schema");
      if (schema == nullptr) refuse("text.format.schema", "is missing");
      out["json_schema"] = {{"name", kind.string("name").value_or("answer")}, {"schema", *schema}};
      if (const auto strict = kind.boolean("strict")) out["json_schema"]["strict"] = *strict;
    } else if (type != "text" && type != "json_object") {
      refuse("text.format.type", "must be text, json_object or json_schema");
    }
    request.echo["text"]["format"] = *format;
  }
  inner.warn_unread(request.chat.warnings);
}

void translate_reasoning(Fields& fields, ResponsesRequest& request) {
  request.echo["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* reasoning = fields.object("reasoning");
  if (reasoning == nullptr) return;
  Fields inner(*reasoning, "reasoning");
  if (const auto effort = inner.string("effort")) {
    static const std::set<std::string> kEfforts = {"none",   "minimal", "low",
                                                   "medium", "high",    "xhigh"};
    if (!kEfforts.contains(*effort)) {
      refuse("reasoning.effort", "must be none, minimal, low, medium, high or xhigh");
    }
    request.echo["reasoning"]["effort"] = *effort;
    request.chat.body["enable_thinking"] = *effort != "none";
    if (*effort != "none") {
      request.chat.body["chat_template_kwargs"]["reasoning_effort"] = *effort;
    }
  }
  inner.warn_unread(request.chat.warnings);
}

void translate_include(Fields& fields, ResponsesRequest& request) {
  const Json* include = fields.array("include", kMaxIncludes);
  if (include == nullptr) return;
  for (const Json& name : *include) {
    if (name == "reasoning.encrypted_content") {
      request.carry_reasoning = true;
    } else if (name == "message.output_text.logprobs") {
      refuse("include", "message.output_text.logprobs is not possible; use /v1/chat/completions");
    } else if (!name.is_string()) {
      refuse("include", "must hold strings");
    } else {
      request.chat.warnings.push_back(
          concat("include: ", name.get<std::string>().substr(0, 64), " is ignored"));
    }
  }
}

// What this server does not do and may not leave out in silence.
void refuse_unserved(Fields& fields) {
  for (const char* name : {"conversation", "prompt"}) {
    if (fields.find(name) != nullptr) refuse(name, "is not possible here; send input");
  }
  if (fields.boolean("background").value_or(false)) {
    refuse("background", "is not possible here; use stream");
  }
  if (fields.integer("top_logprobs", 0, 20).value_or(0) > 0) {
    refuse("top_logprobs", "is not possible here; use /v1/chat/completions");
  }
}

}  // namespace

std::string carry_reasoning(const std::string& reasoning) {
  return std::string(kCarried) + reasoning;
}

std::string carried_reasoning(const std::string& encrypted) {
  return encrypted.starts_with(kCarried) ? encrypted.substr(kCarried.size()) : std::string();
}

void append_items(Json& messages, const Json& items, Warnings& warnings, FieldNames* names) {
  ItemFolder folder(messages, warnings, names);
  for (size_t i = 0; i < items.size(); ++i) folder.add(items[i], concat("input[", i, "]"));
}

ResponsesRequest translate_responses(const Json& body, const Json& previous) {
  ResponsesRequest request;
  InnerChat& chat = request.chat;
  Fields fields(body, "");
  refuse_unserved(fields);
  chat.names.add("messages", "input");
  chat.names.add("max_tokens", "max_output_tokens");
  chat.names.add("response_format", "text.format");
  chat.names.add("response_format.json_schema.schema", "text.format.schema");
  chat.names.add("tool_choice.function", "tool_choice");

  // Names count from the messages that come before.
  const auto instructions = fields.string("instructions");
  Json messages = Json::array();
  if (instructions && !instructions->empty()) {
    chat.names.add("messages[0]", "instructions");
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  const size_t n_before = messages.size();
  for (const Json& message : previous) messages.push_back(message);
  request.messages = std::move(messages);
  translate_input(fields, request);
  if (request.messages.empty()) refuse("input", "is empty");
  chat.body["messages"] = request.messages;
  request.messages.erase(request.messages.begin(),
                         request.messages.begin() + static_cast<std::ptrdiff_t>(n_before));

  translate_tools(fields, request);
  translate_tool_choice(fields, request);
  translate_text(fields, request);
  if (const Json* kwargs = fields.object("chat_template_kwargs")) {
    chat.body["chat_template_kwargs"] = *kwargs;
  }
  translate_reasoning(fields, request);
  translate_include(fields, request);
  request.store = fields.boolean("store").value_or(true);
  request.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const auto most = fields.integer("max_output_tokens", 1, INT32_MAX);
  if (most) chat.body["max_tokens"] = *most;
  if (const Json* options = fields.object("stream_options")) {
    Fields inner(*options, "stream_options");
    inner.find("include_obfuscation");  // there is none
    inner.warn_unread(chat.warnings);
  }
  if (fields.string("truncation").value_or("disabled") != "disabled") {
    chat.warnings.emplace_back("truncation: nothing is left out; what is too long is refused");
  }
  const Json* metadata = fields.object("metadata");
  if (metadata != nullptr && metadata->size() > kMaxMetadata) {
    refuse("metadata", concat("has more than ", kMaxMetadata, " entries"));
  }
  const auto previous_id = fields.string("previous_response_id");
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(); };
  request.echo["instructions"] = or_null(instructions);
  request.echo["max_output_tokens"] = or_null(most);
  request.echo["metadata"] = metadata == nullptr ? Json::object() : *metadata;
  request.echo["previous_response_id"] = or_null(previous_id);
  pass_on(chat, fields);
  return request;
}

}  // namespace replayssm::server
