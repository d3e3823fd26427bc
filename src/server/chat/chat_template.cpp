#include "server/chat/chat_template.h"

#include "core/text_file.h"
#include "server/api_error.h"
#include "server/chat/find_template.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

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

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& name, std::string bos_token,
                           std::string eos_token)
    : template_(jinja::Template::parse(source, name)),
      bos_token_(std::move(bos_token)),
      eos_token_(std::move(eos_token)) {
  constexpr std::pair<std::string_view, ToolStyle> kMarks[] = {
      {"<minimax:tool_call>", ToolStyle::kInvoke},
      {"<|tool_calls_section_begin|>", ToolStyle::kKimi},
      {"<|tool_call_start|>", ToolStyle::kLfm2},
      {"<|tool_list_start|>", ToolStyle::kLfm2},
      {"<function=", ToolStyle::kXml},
      {"<TOOLCALL>", ToolStyle::kList},
      {"<tool_calls>", ToolStyle::kMiniMax},
      {"<|tool_call|>", ToolStyle::kGranite},
  };
  for (const auto& [mark, style] : kMarks) {
    if (!template_.mentions(mark)) continue;
    tool_style_ = style;
    break;
  }
  part_joiner_ = joiner_of_parts();
}

std::string ChatTemplate::joiner_of_parts() const {
  constexpr std::string_view kFirst = "the first part", kSecond = "the second part";
  const Json parts = {{{"type", "text"}, {"text", kFirst}}, {{"type", "text"}, {"text", kSecond}}};
  try {
    const std::string text =
        render_once(Json::array({Json{{"role", "user"}, {"content", parts}}}), Json::array(), {});
    const size_t first = text.rfind(kFirst), second = text.rfind(kSecond);
    if (first != text.npos && second != text.npos && first < second) {
      const size_t end = first + kFirst.size();
      const std::string between = text.substr(end, second - end);
      // A template that takes texts alone may have written out the list.
      if (between.find("text") == between.npos) return between;
    }
  } catch (const Error&) {
  }
  return "\n";
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
  if (for_tools_ != nullptr && !tools.empty()) {
    return for_tools_->render(messages, tools, options, warnings);
  }
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

std::string ChatTemplate::turn_end() const {
  constexpr std::string_view kWords = "an answer of this model";
  const Json messages = {{{"role", "user"}, {"content", "x"}},
                         {{"role", "assistant"}, {"content", kWords}}};
  Options options;
  options.add_generation_prompt = false;
  try {
    const std::string text = render_once(messages, Json::array(), options);
    const size_t at = text.rfind(kWords);
    return at == text.npos ? std::string() : text.substr(at + kWords.size());
  } catch (const Error&) {
    return {};
  }
}

std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& path,
                                                       const std::string& file,
                                                       const model::SpecialTokens& marks) {
  FoundTemplates found;
  if (file.empty()) {
    found = find_templates(path);
  } else {
    found.chat = {read_text_file(file, kMaxTemplateBytes), file};
  }
  if (found.chat.text.empty()) return nullptr;
  auto chat =
      std::make_shared<ChatTemplate>(found.chat.text, found.chat.name, marks.bos, marks.eos);
  if (!found.tools.text.empty()) {
    chat->use_for_tools(
        std::make_shared<ChatTemplate>(found.tools.text, found.tools.name, marks.bos, marks.eos));
  }
  return chat;
}

}  // namespace replayssm::server
