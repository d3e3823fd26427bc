// A model's chat template: messages to a prompt.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "jinja/template.h"
#include "model/tokenizer/special_tokens.h"
#include "server/request/fields.h"

namespace replayssm::server {

// How a model writes its tool calls, by what its template shows it.
enum class ToolStyle {
  kJson,     // <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  kXml,      // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
  kList,     // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
  kGranite,  // <|tool_call|>[{"name": ..., "arguments": {...}}]
  kLfm2,     // <|tool_call_start|>[name(key="value")]<|tool_call_end|>, or JSON as in a list
  kKimi,     // <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}, in a section
  kMiniMax,  // <tool_calls>{"name": ..., "arguments": {...}}</tool_calls>
  kInvoke,   // <minimax:tool_call><invoke name="name"><parameter name="key">value</parameter>...
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

  // What the template writes behind an answer, as "<|im_end|>\n"; empty if it writes nothing or
  // cannot be rendered without a request.
  std::string turn_end() const;

  // What stands between the text parts of a message: what the template itself puts there, or a line
  // feed where it takes texts alone.
  const std::string& part_joiner() const { return part_joiner_; }

  // Another template, for requests with tools.
  void use_for_tools(std::shared_ptr<const ChatTemplate> other) { for_tools_ = std::move(other); }

  ToolStyle tool_style() const { return for_tools_ ? for_tools_->tool_style_ : tool_style_; }
  bool knows_reasoning() const { return template_.mentions("<think>"); }

 private:
  std::string joiner_of_parts() const;
  std::string render_once(const Json& messages, const Json& tools, const Options& options) const;

  const jinja::Template template_;
  const std::string bos_token_;
  const std::string eos_token_;
  ToolStyle tool_style_ = ToolStyle::kJson;
  std::string part_joiner_;
  std::shared_ptr<const ChatTemplate> for_tools_;
};

// The template of a model (find_template.h says which); null if there is none. `file`, if not
// empty, takes its place. Throws Error naming the file.
std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& path,
                                                       const std::string& file,
                                                       const model::SpecialTokens& marks);

}  // namespace replayssm::server
