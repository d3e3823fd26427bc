#include "server/apis/messages_request.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxBlocks = 4096;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
// A client's own header in the disguise of a system text. It differs from request to request, so
// that no prompt would have a prefix in common with the one before.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

[[noreturn]] void refuse_block(Fields& block, const std::string& type) {
  refuse(block.path_of("type"),
         concat("\"", type.substr(0, 64), "\" is not possible; this model reads text"));
}

std::string need(Fields& fields, const std::string& name) {
  auto value = fields.string(name);
  if (!value) refuse(fields.path_of(name), "is missing");
  return *value;
}

// Adds the messages of one of the client's: results of tools are messages of their own in a chat.
class BlockFolder {
 public:
  BlockFolder(InnerChat& chat, std::string path) : chat_(chat), path_(std::move(path)) {}

  void user(const Json& content) {
    each(content, [&](Fields& block, const std::string& type) {
      if (type == "text") {
        parts_.push_back({{"type", "text"}, {"text", need(block, "text")}});
      } else if (type == "tool_result") {
        flush("user");
        result(block);
      } else {
        refuse_block(block, type);
      }
    });
    flush("user");
  }

  // Returns whether it may be gone on with: it calls no tool.
  bool assistant(const Json& content) {
    Json reasoning, calls;
    each(content, [&](Fields& block, const std::string& type) {
      if (type == "text") {
        parts_.push_back({{"type", "text"}, {"text", need(block, "text")}});
      } else if (type == "thinking") {
        if (reasoning.is_null()) reasoning = "";
        reasoning = reasoning.get<std::string>() + need(block, "thinking");
      } else if (type == "redacted_thinking") {
        chat_.warnings.push_back(block.path_of("type") + ": redacted_thinking is left out");
      } else if (type == "tool_use") {
        const Json* input = block.object("input");
        if (calls.is_null()) calls = Json::array();
        calls.push_back({{"id", need(block, "id")},
                         {"type", "function"},
                         {"function",
                          {{"name", need(block, "name")},
                           {"arguments", dump_json(input == nullptr ? Json::object() : *input)}}}});
      } else {
        refuse_block(block, type);
      }
    });
    Json message = {{"role", "assistant"}, {"content", take_parts()}};
    if (!reasoning.is_null()) message["reasoning_content"] = std::move(reasoning);
    const bool plain = calls.is_null();
    if (!plain) message["tool_calls"] = std::move(calls);
    push(std::move(message));
    return plain;
  }

  void push(Json message) {
    Json& messages = chat_.body["messages"];
    chat_.names.add(concat("messages[", messages.size(), "]"), path_);
    messages.push_back(std::move(message));
  }

 private:
  template <typename Take>
  void each(const Json& content, const Take& take) {
    if (content.is_string()) {
      parts_.push_back({{"type", "text"}, {"text", content}});
      return;
    }
    const std::string path = path_ + ".content";
    if (!content.is_array()) refuse(path, "must be a string or a list of blocks");
    if (content.size() > kMaxBlocks) refuse(path, concat("has more than ", kMaxBlocks, " blocks"));
    for (size_t i = 0; i < content.size(); ++i) {
      Fields block(content[i], concat(path, "[", i, "]"));
      take(block, block.string("type").value_or(""));
    }
  }

  void result(Fields& block) {
    const Json* content = block.find("content");
    Json text =
        content == nullptr ? Json("") : text_content(*content, block.path_of("content"), {"text"});
    if (block.boolean("is_error").value_or(false)) {
      if (text.is_string()) text = Json::array({{{"type", "text"}, {"text", text}}});
      text[0]["text"] = "Error: " + text[0]["text"].get<std::string>();
      if (text.size() == 1) text = Json(text[0]["text"]);
    }
    push({{"role", "tool"},
          {"tool_call_id", need(block, "tool_use_id")},
          {"content", std::move(text)}});
  }

  void flush(const char* role) {
    if (!parts_.empty()) push({{"role", role}, {"content", take_parts()}});
  }

  Json take_parts() {
    const Json parts = std::exchange(parts_, Json::array());
    if (parts.empty()) return "";
    return parts.size() == 1 ? parts[0].at("text") : parts;
  }

  InnerChat& chat_;
  const std::string path_;
  Json parts_ = Json::array();
};

void translate_system(Fields& fields, InnerChat& chat) {
  const Json* system = fields.find("system");
  if (system == nullptr) return;
  Json content = text_content(*system, "system", {"text"});
  if (content.is_string()) content = Json::array({{{"type", "text"}, {"text", content}}});
  Json kept = Json::array();
  for (Json& part : content) {
    const auto& text = part.at("text").get_ref<const std::string&>();
    if (!text.empty() && !text.starts_with(kBillingHeader)) kept.push_back(std::move(part));
  }
  if (kept.empty()) return;
  BlockFolder(chat, "system")
      .push({{"role", "system"},
             {"content", kept.size() == 1 ? Json(kept[0].at("text")) : std::move(kept)}});
}

void translate_conversation(Fields& fields, InnerChat& chat) {
  const Json* messages = fields.array("messages", kMaxInputItems);
  if (messages == nullptr) refuse("messages", "is missing");
  if (messages->empty()) refuse("messages", "is empty");
  bool prefill = false;
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = concat("messages[", i, "]");
    Fields message((*messages)[i], path);
    const std::string role = message.string("role").value_or("");
    const Json* content = message.find("content");
    if (content == nullptr) refuse(path + ".content", "is missing");
    prefill = false;
    if (role == "user") {
      BlockFolder(chat, path).user(*content);
    } else if (role == "assistant") {
      prefill = BlockFolder(chat, path).assistant(*content);
    } else if (role == "system") {
      BlockFolder(chat, path)
          .push({{"role", "system"},
                 {"content", text_content(*content, path + ".content", {"text"})}});
    } else {
      refuse(path + ".role", "must be user, assistant or system");
    }
  }
  if (chat.body["messages"].empty()) refuse("messages", "holds no text");
  if (prefill) {
    chat.body["continue_final_message"] = true;
    chat.body["add_generation_prompt"] = false;
  }
}

void translate_tools(Fields& fields, InnerChat& chat) {
  const Json* tools = fields.array("tools", kMaxInputTools);
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string path = concat("tools[", i, "]");
    Fields tool((*tools)[i], path);
    const std::string type = tool.string("type").value_or("custom");
    if (type == "custom") {
      const Json* schema = tool.object("input_schema");
      if (schema == nullptr) refuse(path + ".input_schema", "is missing");
      add_tool(chat, path, "input_schema", tool.string("name").value_or(""),
               tool.string("description").value_or(""), schema);
    } else {
      drop_tool(chat, path, type, i + 1 == tools->size());
    }
  }
}

void translate_tool_choice(Fields& fields, MessagesRequest& request) {
  const Json* choice = fields.object("tool_choice");
  if (choice == nullptr) return;
  Fields inner(*choice, "tool_choice");
  const std::string type = inner.string("type").value_or("");
  Json out;
  if (type == "auto") {
    out = type;
  } else if (type == "none") {
    request.chat.body.erase("tools");
  } else if (type == "any") {
    out = "required";
  } else if (type == "tool") {
    out = {{"type", "function"}, {"function", {{"name", need(inner, "name")}}}};
  } else {
    refuse("tool_choice.type", "must be auto, any, tool or none");
  }
  request.chat.body["tool_choice"] = std::move(out);
  request.parallel_calls = !inner.boolean("disable_parallel_tool_use").value_or(false);
}

void translate_thinking(Fields& fields, InnerChat& chat) {
  const Json* thinking = fields.object("thinking");
  if (thinking == nullptr) return;
  Fields inner(*thinking, "thinking");
  const std::string type = inner.string("type").value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    refuse("thinking.type", "must be enabled, disabled or adaptive");
  }
  chat.body["enable_thinking"] = type != "disabled";
  if (inner.integer("budget_tokens", 1, INT32_MAX)) {
    chat.warnings.emplace_back(
        "thinking.budget_tokens: ignored; max_tokens bounds the whole answer");
  }
  inner.find("display");
  inner.warn_unread(chat.warnings);
}

// output_config, and output_format as it was called before.
void translate_output(Fields& fields, InnerChat& chat) {
  const Json* format = fields.object("output_format");
  std::string path = "output_format";
  if (const Json* config = fields.object("output_config")) {
    Fields inner(*config, "output_config");
    if (const auto effort = inner.string("effort")) {
      chat.body["chat_template_kwargs"]["reasoning_effort"] = *effort;
    }
    if (const Json* newer = inner.object("format")) {
      format = newer;
      path = "output_config.format";
    }
    inner.warn_unread(chat.warnings);
  }
  if (format == nullptr) return;
  Fields inner(*format, path);
  if (inner.string("type").value_or("") != "json_schema") {
    refuse(path + ".type", "must be json_schema");
  }
  const Json* schema = inner.object("schema");
  if (schema == nullptr) refuse(path + ".schema", "is missing");
  chat.names.add("response_format", path);
  chat.names.add("response_format.json_schema.schema", path + ".schema");
  chat.body["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"name", "answer"}, {"schema", *schema}}}};
}

// Things that run at the other end at Anthropic's.
void refuse_unserved(Fields& fields, InnerChat& chat) {
  const Json* servers = fields.array("mcp_servers", kMaxInputTools);
  if (servers != nullptr && !servers->empty()) {
    refuse("mcp_servers", "is not possible here; send the servers' tools as tools");
  }
  if (fields.find("container") != nullptr) refuse("container", "is not possible here");
  if (fields.find("context_management") != nullptr) {
    chat.warnings.emplace_back("context_management: ignored; nothing is left out of the messages");
  }
}

}  // namespace

MessagesRequest translate_messages(const Json& body, bool counting) {
  MessagesRequest request;
  InnerChat& chat = request.chat;
  Fields fields(body, "");
  refuse_unserved(fields, chat);
  chat.names.add("stop", "stop_sequences");
  chat.names.add("continue_final_message", "messages");
  chat.names.add("tool_choice.function", "tool_choice");
  chat.body["messages"] = Json::array();
  translate_system(fields, chat);
  translate_conversation(fields, chat);
  translate_tools(fields, chat);
  translate_tool_choice(fields, request);
  if (const Json* kwargs = fields.object("chat_template_kwargs")) {
    chat.body["chat_template_kwargs"] = *kwargs;
  }
  translate_thinking(fields, chat);
  translate_output(fields, chat);
  const auto most = fields.integer("max_tokens", 1, INT32_MAX);
  if (!most && !counting) refuse("max_tokens", "is missing");
  if (most) chat.body["max_tokens"] = *most;
  const auto stops = fields.strings("stop_sequences", kMaxStops, kMaxStopBytes);
  if (!stops.empty()) chat.body["stop"] = stops;
  pass_on(chat, fields);
  return request;
}

}  // namespace replayssm::server
