// A model's chat template: messages to a prompt.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "jinja/template.h"
#include "server/request/fields.h"

namespace replayssm::server {

// How a model writes its tool calls, by what its template shows it.
enum class ToolStyle {
  kJson,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  kXml,   // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
  kList,  // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
};

class ChatTemplate {
 public:
  // Throws Error naming the template's line. `name` stands for the file.
  ChatTemplate(std::string_view source, const std::string& name, std::string bos_token,
               std::string eos_token);

  // The template's variables beside messages, tools, bos_token and eos_token.
  struct Options {
    bool add_generation_prompt = true;
    Json kwargs = Json::object();
  };

  // Throws ApiError (400) if the template refuses the messages. Templates that want one system
  // message in front get all of them joined there, with a warning.
  std::string render(const Json& messages, const Json& tools, const Options& options,
                     Warnings& warnings) const;

  ToolStyle tool_style() const { return tool_style_; }
  bool knows_reasoning() const { return template_.mentions("<think>"); }

 private:
  std::string render_once(const Json& messages, const Json& tools, const Options& options) const;

  const jinja::Template template_;
  const std::string bos_token_;
  const std::string eos_token_;
  ToolStyle tool_style_ = ToolStyle::kJson;
};

// The template of a model folder: chat_template.jinja, else tokenizer_config.json's; null if there
// is none. `file`, if not empty, takes its place. Throws Error naming the file.
std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& folder,
                                                       const std::string& file);

}  // namespace replayssm::server
