// Where a model folder or GGUF file keeps its chat templates, in all the forms in which they are
// published.
#pragma once

#include <string>

namespace replayssm::server {

struct TemplateSource {
  std::string text;  // empty: none
  std::string name;  // the file, and the field in it, for messages
};

struct FoundTemplates {
  TemplateSource chat;
  TemplateSource tools;  // for requests with tools, where the folder has one for them
};

// Looks in this order: chat_template.jinja; chat_template.json; the field chat_template of
// tokenizer_config.json, processor_config.json, preprocessor_config.json and config.json. A field
// is a text or named ones, as a list of {name, template} or an object. Of named ones the chat
// template is "default", else the first, and the one for tools is "tool_use";
// additional_chat_templates/ holds further named ones. Of a GGUF file: tokenizer.chat_template and
// tokenizer.chat_template.tool_use. Throws Error naming the file.
FoundTemplates find_templates(const std::string& path);

}  // namespace replayssm::server
