#include "server/chat/chat_template.h"

#include <filesystem>

#include "core/text_file.h"
#include "server/api_error.h"

namespace replayssm::server {
namespace {

// All system messages as one, in front.
Json joined_system(const Json& messages) {
  std::string text;
  Json rest = Json::array();
  for (const Json& message : messages) {
    if (message.at("role") == "system") {
      if (!text.empty()) text += "\n\n";
      text += message.at("content").get<std::string>();
    } else {
      rest.push_back(message);
    }
  }
  Json out = Json::array({{{"role", "system"}, {"content", text}}});
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

bool has_late_system(const Json& messages) {
  for (size_t i = 1; i < messages.size(); ++i) {
    if (messages[i].at("role") == "system") return true;
  }
  return false;
}

// A token of tokenizer_config.json: a string, or an object that holds one.
std::string special_token(const Json& config, const char* name) {
  const auto at = config.find(name);
  if (at == config.end()) return {};
  if (at->is_string()) return at->get<std::string>();
  if (at->is_object() && at->contains("content") && at->at("content").is_string()) {
    return at->at("content").get<std::string>();
  }
  return {};
}

// "chat_template": a string, or a list of named ones.
std::string template_of(const Json& config) {
  const auto at = config.find("chat_template");
  if (at == config.end()) return {};
  if (at->is_string()) return at->get<std::string>();
  if (!at->is_array()) return {};
  for (const Json& entry : *at) {
    if (entry.is_object() && entry.value("name", "") == "default") {
      return entry.value("template", "");
    }
  }
  return {};
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& name, std::string bos_token,
                           std::string eos_token)
    : template_(jinja::Template::parse(source, name)),
      bos_token_(std::move(bos_token)),
      eos_token_(std::move(eos_token)) {
  if (template_.mentions("<function=")) {
    tool_style_ = ToolStyle::kXml;
  } else if (template_.mentions("<TOOLCALL>")) {
    tool_style_ = ToolStyle::kList;
  }
}

std::string ChatTemplate::render_once(const Json& messages, const Json& tools,
                                      const Options& options) const {
  Json context = options.kwargs;
  context["messages"] = messages;
  if (!tools.empty()) context["tools"] = tools;
  context["add_generation_prompt"] = options.add_generation_prompt;
  context["bos_token"] = bos_token_;
  context["eos_token"] = eos_token_;
  return template_.render(context);
}

std::string ChatTemplate::render(const Json& messages, const Json& tools, const Options& options,
                                 Warnings& warnings) const {
  try {
    try {
      return render_once(messages, tools, options);
    } catch (const jinja::Raised&) {
      if (!has_late_system(messages)) throw;
    }
    std::string text = render_once(joined_system(messages), tools, options);
    warnings.emplace_back("messages: the chat template takes one system message; all were joined");
    return text;
  } catch (const jinja::Raised& e) {
    refuse("messages", concat("the chat template refuses them: ", e.what()));
  } catch (const ApiError&) {
    throw;
  } catch (const Error& e) {
    refuse("messages", concat("the chat template fails on them: ", e.what()));
  }
}

std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& folder,
                                                       const std::string& file) {
  constexpr size_t kMaxBytes = size_t{4} << 20;
  const std::string config_path = folder + "/tokenizer_config.json";
  Json config = Json::object();
  if (std::filesystem::exists(config_path)) {
    try {
      config = parse_json(read_text_file(config_path));
    } catch (const Error& e) {
      const std::string what = e.what();
      fail(what.find(config_path) == std::string::npos ? config_path + ": " : "", what);
    }
    if (!config.is_object()) fail(config_path, ": must hold an object");
  }
  std::string name = file.empty() ? folder + "/chat_template.jinja" : file;
  std::string source;
  if (!file.empty() || std::filesystem::exists(name)) {
    source = read_text_file(name, kMaxBytes);
  } else {
    name = config_path + ": chat_template";
    source = template_of(config);
    if (source.empty()) return nullptr;
  }
  return std::make_shared<ChatTemplate>(source, name, special_token(config, "bos_token"),
                                        special_token(config, "eos_token"));
}

}  // namespace replayssm::server
