// What a model folder's files make of a served model: templates, end tokens, begin tokens. Folders
// are the demo model's with changes; no weights are needed.
#include <gtest/gtest.h>

#include "../model/testing.h"
#include "core/json_file.h"
#include "model/formats/quantize.h"
#include "model/model_source.h"
#include "server/api_error.h"
#include "server/chat/chat_template.h"
#include "server/chat/find_template.h"
#include "server/request/completion.h"
#include "server/served_model.h"

namespace replayssm::server {
namespace {

constexpr int32_t kEndOfText = 4080, kTurnBegin = 4081, kTurnEnd = 4082;

class Folder : public TempFolder {
 public:
  Folder() {
    const std::filesystem::path demo(REPLAYSSM_SOURCE_DIR "/models/demo-gdn");
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                             "tokenizer_config.json", "chat_template.jinja"}) {
      std::filesystem::copy(demo / name, file(name));
    }
  }

  void remove(const std::string& name) const { std::filesystem::remove(file(name)); }
  FileJson json(const std::string& name) const { return read_json_file(file(name)); }
  void set(const std::string& name, const std::string& field, const FileJson& value) const {
    FileJson whole = std::filesystem::exists(file(name)) ? json(name) : FileJson::object();
    whole[field] = value;
    write_text(file(name), whole.dump());
  }
  // The template's text, taken away from the folder.
  std::string take_template() const {
    const std::string text = read_text(file("chat_template.jinja"));
    remove("chat_template.jinja");
    return text;
  }
  ServedModel serve(const std::vector<int32_t>& eos_ids = {}) const {
    return load_served_model(path(), "", 4096, 1000, eos_ids);
  }
};

std::string render(const ServedModel& model, const Json& tools = Json::array()) {
  Warnings warnings;
  if (model.chat_template == nullptr) return "no template";
  return model.chat_template->render({{{"role", "user"}, {"content", "hi"}}}, tools, {}, warnings);
}

FileJson named(const std::string& name, const std::string& text) {
  return {{"name", name}, {"template", text}};
}

TEST(GgufFile, IsServedAsItsFolder) {
  const TempFolder folder;
  const std::string demo = REPLAYSSM_SOURCE_DIR "/models/demo-gdn";
  const std::string file = folder.file("demo-Q8_0.gguf");
  quantize_model(demo, QuantTarget::kQ8_0, file);
  const auto serve = [](const std::string& path) {
    const auto eos = read_source_model(path).description.spec.eos_ids;
    return load_served_model(path, "", 4096, 1000, eos);
  };
  const ServedModel want = serve(demo), got = serve(file);
  EXPECT_EQ(got.names, std::vector<std::string>{"demo-Q8_0"});
  EXPECT_EQ(got.eos_ids, want.eos_ids);
  EXPECT_EQ(render(got), render(want));
  const std::string text = "<|im_start|>user\nWhat is x[3] + 14?<|im_end|>\n";
  EXPECT_EQ(got.encode(text, true, "prompt"), want.encode(text, true, "prompt"));
}

TEST(Templates, EveryPlaceAndForm) {
  const std::string want = render(Folder().serve());
  EXPECT_NE(want.find("<|im_start|>"), want.npos);
  for (const char* file : {"chat_template.json", "tokenizer_config.json", "processor_config.json",
                           "preprocessor_config.json", "config.json"}) {
    const Folder folder;
    const std::string text = folder.take_template();
    EXPECT_EQ(render(folder.serve()), "no template");
    folder.set(file, "chat_template", text);
    EXPECT_EQ(render(folder.serve()), want) << file;
    folder.set(file, "chat_template", {{"default", text}, {"rag", "rag"}});
    EXPECT_EQ(render(folder.serve()), want) << file;
  }
  const Folder folder;
  const std::string text = folder.take_template();
  for (const FileJson& list :
       {FileJson{named("chat", text)}, FileJson{named("chat", text), named("rag", "rag")},
        FileJson{named("rag", "rag"), named("default", text)}}) {
    folder.set("tokenizer_config.json", "chat_template", list);
    EXPECT_EQ(render(folder.serve()), want) << list.dump().substr(0, 30);
  }
  folder.set("tokenizer_config.json", "chat_template", "other");
  write_text(folder.file("chat_template.jinja"), text);
  EXPECT_EQ(render(folder.serve()), want) << "the file goes first";
}

TEST(Templates, OfRequestsWithTools) {
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const Folder folder;
  const std::string want = render(folder.serve());
  const std::string text = folder.take_template();
  folder.set(
      "tokenizer_config.json", "chat_template",
      FileJson{named("default", text), named("tool_use", "tools <function={{ tools|length }}")});
  const ServedModel listed = folder.serve();
  EXPECT_EQ(render(listed), want);
  EXPECT_EQ(render(listed, tools), "tools <function=1");
  EXPECT_EQ(listed.chat_template->tool_style(), ToolStyle::kXml);
  folder.set("tokenizer_config.json", "chat_template", text);
  std::filesystem::create_directory(folder.file("additional_chat_templates"));
  write_text(folder.file("additional_chat_templates/tool_use.jinja"), "from a file");
  EXPECT_EQ(render(folder.serve(), tools), "from a file");
  EXPECT_EQ(render(folder.serve()), want);
}

TEST(Templates, BadOnesAreNamed) {
  const Folder folder;
  folder.take_template();
  for (const FileJson& bad : {FileJson(3), FileJson{{{"name", "x"}}}, FileJson{{"default", 3}}}) {
    folder.set("tokenizer_config.json", "chat_template", bad);
    expect_refusal({folder.file("tokenizer_config.json"), "chat_template"},
                   [&] { folder.serve(); });
  }
  folder.set("tokenizer_config.json", "chat_template", "{% if %}");
  expect_refusal({folder.file("tokenizer_config.json") + ": chat_template"},
                 [&] { folder.serve(); });
}

TEST(EndTokens, OfAllFiles) {
  using Ids = std::vector<int32_t>;
  const Folder folder;
  EXPECT_EQ(folder.serve({kEndOfText}).eos_ids, Ids({kEndOfText, kTurnEnd}));
  folder.remove("chat_template.jinja");  // by tokenizer_config.json alone
  EXPECT_EQ(folder.serve({kEndOfText}).eos_ids, Ids({kEndOfText, kTurnEnd}));
  folder.set("tokenizer_config.json", "eos_token", {{"content", "<|im_end|>"}, {"special", true}});
  EXPECT_EQ(folder.serve({kEndOfText}).eos_ids, Ids({kEndOfText, kTurnEnd}));
  folder.set("tokenizer_config.json", "eos_token", nullptr);
  EXPECT_EQ(folder.serve({kEndOfText}).eos_ids, Ids({kEndOfText}));
  folder.set("special_tokens_map.json", "eos_token", "<|im_end|>");
  EXPECT_EQ(folder.serve({kEndOfText}).eos_ids, Ids({kEndOfText, kTurnEnd}));
  folder.remove("special_tokens_map.json");
  // By the template: the special token behind an answer.
  const auto ends_with = [&](const std::string& text) {
    write_text(folder.file("chat_template.jinja"), text);
    return folder.serve().eos_ids;
  };
  EXPECT_EQ(ends_with("{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}"),
            Ids({kTurnEnd}));
  EXPECT_EQ(ends_with("{% for m in messages %}{{ m.content }}\n<|im_start|>{% endfor %}"),
            Ids({kTurnBegin}));
  EXPECT_EQ(ends_with("{% for m in messages %}{{ m.content }}</think>{% endfor %}"), Ids())
      << "no special token";
  EXPECT_EQ(ends_with("{{ raise_exception('no') }}"), Ids());
  EXPECT_EQ(ends_with("{% for m in messages %}{{ m.content }}{% endfor %}"), Ids());
}

// A tokenizer that puts <|endoftext|> first, as Nemotron-H's does its own.
TEST(BeginTokens, OfTextPromptsAlone) {
  const Folder folder;
  FileJson tokenizer = folder.json("tokenizer.json");
  tokenizer["post_processor"] = FileJson::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<|endoftext|>":
      {"id": "<|endoftext|>", "ids": [4080], "tokens": ["<|endoftext|>"]}}})");
  write_text(folder.file("tokenizer.json"), tokenizer.dump());
  const ServedModel model = folder.serve({kTurnEnd});
  const auto prompts = [&](const std::string& body) {
    return parse_completion(parse_json(body), model, false).prompts;
  };
  const std::vector<int32_t> words = model.tokenizer->encode("The purpose");
  std::vector<int32_t> begun = {kEndOfText};
  begun.insert(begun.end(), words.begin(), words.end());
  EXPECT_EQ(prompts(R"({"prompt": "The purpose"})").front(), begun);
  EXPECT_EQ(prompts(R"({"prompt": ["x", "The purpose"]})").back(), begun);
  EXPECT_EQ(prompts(R"({"prompt": "The purpose", "add_special_tokens": false})").front(), words);
  EXPECT_EQ(prompts(R"({"prompt": [5, 6]})").front(), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(prompts(R"({"prompt": "The purpose", "session": "s"})").front(), words)
      << "in the middle of a text";
  EXPECT_EQ(prompts(R"({"prompt": ""})").front(), std::vector<int32_t>{kEndOfText});
}

}  // namespace
}  // namespace replayssm::server
