#include "server/apis/inner_chat.h"

#include <algorithm>

namespace replayssm::server {
namespace {

constexpr size_t kMaxParts = 4096;

// Fields of a chat request that this API has under another name, or has not.
constexpr std::string_view kChatFields[] = {"add_generation_prompt",
                                            "continue_final_message",
                                            "function_call",
                                            "functions",
                                            "logprobs",
                                            "max_completion_tokens",
                                            "max_tokens",
                                            "messages",
                                            "n",
                                            "prompt_logprobs",
                                            "reasoning_effort",
                                            "response_format",
                                            "stream_options",
                                            "top_logprobs"};

}  // namespace

void FieldNames::add(std::string inner, std::string outer) {
  names_.emplace_back(std::move(inner), std::move(outer));
}

std::string FieldNames::outer(const std::string& field) const {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& name : names_) {
    const size_t n = name.first.size();
    const bool whole =
        field.starts_with(name.first) && (field.size() == n || field[n] == '.' || field[n] == '[');
    if (whole && (best == nullptr || n > best->first.size())) best = &name;
  }
  return best == nullptr ? field : best->second + field.substr(best->first.size());
}

ApiError FieldNames::outer(const ApiError& error) const {
  const std::string field = outer(error.param());
  std::string message = error.what();
  if (!field.empty() && message.starts_with(error.param() + ": ")) {
    message.replace(0, error.param().size(), field);
  }
  return {error.status(), message, field, error.code()};
}

void FieldNames::rename(Warnings& warnings) const {
  for (std::string& warning : warnings) {
    const size_t end = warning.find(": ");
    if (end != std::string::npos) warning.replace(0, end, outer(warning.substr(0, end)));
  }
}

Json text_content(const Json& content, const std::string& path,
                  const std::set<std::string>& types) {
  if (content.is_string()) return content;
  if (!content.is_array()) refuse(path, "must be a string or a list");
  if (content.size() > kMaxParts) refuse(path, concat("has more than ", kMaxParts, " parts"));
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], concat(path, "[", i, "]"));
    const std::string type = part.string("type").value_or("");
    if (!types.contains(type)) {
      refuse(part.path_of("type"),
             concat("\"", type.substr(0, 40), "\" is not possible; this model reads text"));
    }
    const std::string name = type == "refusal" ? "refusal" : "text";
    const auto text = part.string(name);
    if (!text) refuse(part.path_of(name), "is missing");
    parts.push_back({{"type", "text"}, {"text", *text}});
  }
  if (parts.empty()) return "";
  return parts.size() == 1 ? parts[0].at("text") : parts;
}

void add_tool(InnerChat& chat, const std::string& outer, const char* schema,
              const std::string& name, const std::string& description, const Json* parameters) {
  if (name.empty() || name.size() > 256) refuse(outer + ".name", "must be 1 to 256 bytes");
  Json& tools = chat.body["tools"];
  if (tools.is_null()) tools = Json::array();
  const std::string inner = concat("tools[", tools.size(), "]");
  chat.names.add(inner + ".function.parameters", concat(outer, ".", schema));
  chat.names.add(inner + ".function", outer);
  chat.names.add(inner, outer);
  Json function = {{"name", name}};
  if (!description.empty()) function["description"] = description;
  function["parameters"] = parameters != nullptr
                               ? *parameters
                               : Json{{"type", "object"}, {"properties", Json::object()}};
  tools.push_back({{"type", "function"}, {"function", std::move(function)}});
}

void drop_tool(InnerChat& chat, const std::string& path, const std::string& type, bool last) {
  const std::string what = concat("\"", type.substr(0, 64), "\" is not a tool of this server");
  if (last && !chat.body.contains("tools")) {
    refuse(path + ".type", what + "; send functions, which the client runs");
  }
  chat.warnings.push_back(concat(path, ": ", what, ", left out"));
}

void pass_on(InnerChat& chat, const Fields& fields) {
  const Json rest = fields.unread();
  for (const auto& item : rest.items()) {
    const std::string& name = item.key();
    if (std::ranges::find(kChatFields, name) != std::end(kChatFields)) {
      refuse(name, "is a field of /v1/chat/completions, not of this API");
    }
    chat.body[name] = item.value();
  }
}

}  // namespace replayssm::server
