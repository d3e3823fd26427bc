// What each field of a request becomes, and what is refused by name.
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/request/chat.h"
#include "server/request/completion.h"

namespace replayssm::server {
namespace {

const ServedModel& served() {
  static const ServedModel kModel =
      load_served_model(REPLAYSSM_SOURCE_DIR "/models/demo-gdn", "", 4096, 100, {4082, 4080});
  return kModel;
}

CompletionRequest completion(const std::string& body, bool hooks = false) {
  return parse_completion(parse_json(body), served(), hooks);
}

ChatRequest chat(const std::string& body) { return parse_chat(parse_json(body), served(), false); }

// A completion whose fields are `extra` beside a prompt.
std::string with(const std::string& extra) { return R"({"prompt": "a", )" + extra + "}"; }

std::string chat_with(const std::string& extra) {
  return R"({"messages": [{"role": "user", "content": "a"}], )" + extra + "}";
}

template <typename Body>
void expect_refused(const std::string& field, const Body& body, int status = 400) {
  try {
    body();
    ADD_FAILURE() << "not refused: " << field;
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    const Json object = e.object();
    EXPECT_EQ(object.at("param").is_null() ? "" : object.at("param").get<std::string>(), field)
        << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
  }
}

TEST(Request, Defaults) {
  const CompletionRequest request = completion(R"({"prompt": "hello"})");
  const GenerationRequest& engine = request.common.engine;
  // generation_config.json of the model's folder.
  EXPECT_FLOAT_EQ(engine.sampling.temperature, 0.7f);
  EXPECT_FLOAT_EQ(engine.sampling.top_p, 0.95f);
  EXPECT_EQ(engine.sampling.top_k, 40);
  EXPECT_EQ(engine.stop_ids, (std::vector<int32_t>{4082, 4080}));
  EXPECT_EQ(engine.logprobs, -1);
  EXPECT_EQ(*request.common.max_tokens, 16);
  EXPECT_TRUE(request.common.warnings.empty());
  EXPECT_NE(engine.sampling.seed, completion(R"({"prompt": "x"})").common.engine.sampling.seed);
}

TEST(Request, EveryFieldArrives) {
  const CompletionRequest request = completion(with(R"(
    "model": "demo-gdn", "temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": -1,
    "presence_penalty": 1, "frequency_penalty": -1.5, "repetition_penalty": 1.2,
    "logit_bias": {"5": 3, "6": -100}, "n": 3, "best_of": 3, "stop": ["x", "yy"],
    "stop_token_ids": [9], "ignore_eos": true, "max_tokens": 20, "logprobs": 2,
    "prompt_logprobs": 1, "stream": true, "stream_options": {"include_usage": true},
    "draft": "ngram", "draft_tokens": 3, "session": "a-1", "echo": true)"));
  const GenerationRequest& engine = request.common.engine;
  EXPECT_EQ(engine.sampling.temperature, 0);
  EXPECT_FLOAT_EQ(engine.sampling.top_p, 0.5f);
  EXPECT_EQ(engine.sampling.top_k, 7);
  EXPECT_FLOAT_EQ(engine.sampling.min_p, 0.1f);
  EXPECT_EQ(engine.sampling.seed, UINT64_MAX);
  EXPECT_FLOAT_EQ(engine.penalties.presence, 1);
  EXPECT_FLOAT_EQ(engine.penalties.frequency, -1.5f);
  EXPECT_FLOAT_EQ(engine.penalties.repetition, 1.2f);
  EXPECT_EQ(engine.penalties.bias,
            (std::vector<std::pair<int32_t, float>>{{5, 3.0f}, {6, -100.0f}}));
  EXPECT_EQ(engine.n, 3);
  EXPECT_EQ(request.common.stops, (std::vector<std::string>{"x", "yy"}));
  EXPECT_EQ(engine.stop_ids, std::vector<int32_t>{9});
  EXPECT_EQ(*request.common.max_tokens, 20);
  EXPECT_EQ(engine.logprobs, 2);
  EXPECT_EQ(engine.prompt_logprobs, 2);  // echo needs as many
  EXPECT_TRUE(request.common.stream);
  EXPECT_TRUE(request.common.include_usage);
  EXPECT_EQ(engine.draft, DraftMode::kNgram);
  EXPECT_EQ(engine.draft_tokens, 3);
  EXPECT_EQ(engine.session, "a-1");
  EXPECT_TRUE(request.common.warnings.empty());
}

TEST(Request, Prompts) {
  EXPECT_EQ(completion(R"({"prompt": [1, 2, 3]})").prompts,
            (std::vector<std::vector<int32_t>>{{1, 2, 3}}));
  EXPECT_EQ(completion(R"({"prompt": [[1], [2, 3]]})").prompts,
            (std::vector<std::vector<int32_t>>{{1}, {2, 3}}));
  EXPECT_EQ(completion(R"({"prompt": ["a", "b"]})").prompts.size(), 2u);
  for (const char* prompt : {"null", "\"\"", "[]", "[[]]", "[4096]", "[-1]", "[1.5]", "{}", "7",
                             "[[1], 2]", "[true]", "[\"a\", \"\"]", "[18446744073709551615]"}) {
    SCOPED_TRACE(prompt);
    expect_refused("prompt", [&] { completion(concat("{\"prompt\": ", prompt, "}")); });
  }
  expect_refused("prompt", [] { completion("{}"); });
}

TEST(Request, RefusedByName) {
  const struct {
    const char *field, *value;
  } kCases[] = {
      {"temperature", "-1"},
      {"temperature", "\"1\""},
      {"temperature", "1e300"},
      {"top_p", "0"},
      {"top_p", "1.1"},
      {"top_k", "-2"},
      {"top_k", "1.5"},
      {"min_p", "2"},
      {"n", "0"},
      {"n", "129"},
      {"n", "true"},
      {"best_of", "2"},
      {"max_tokens", "-1"},
      {"max_tokens", "0"},
      {"max_tokens", "1e20"},
      {"logprobs", "21"},
      {"logprobs", "true"},
      {"echo", "1"},
      {"stop", "\"\""},
      {"stop", "7"},
      {"stop", "[1]"},
      {"stop_token_ids", "[4096]"},
      {"logit_bias", "{\"a\": 1}"},
      {"logit_bias", "{\"1\": 101}"},
      {"logit_bias", "[]"},
      {"logit_bias", "{\"1\": null}"},
      {"presence_penalty", "3"},
      {"repetition_penalty", "0"},
      {"seed", "1.5"},
      {"seed", "\"x\""},
      {"stream", "\"true\""},
      {"suffix", "\"end\""},
      {"draft", "\"fast\""},
      {"draft_tokens", "64"},
      {"session", "\"../x\""},
      {"session", "\".x\""},
      {"scripted_drafts", "[[1]]"},
      {"stream_options", "{}"},
      {"include_stop_str_in_output", "true"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(concat(c.field, " ", c.value));
    expect_refused(c.field, [&] { completion(with(concat("\"", c.field, "\": ", c.value))); });
  }
  expect_refused("model", [] { completion(with("\"model\": \"gpt\"")); }, 404);
  expect_refused("", [] { completion("[1]"); });
  EXPECT_EQ(
      completion(with("\"scripted_drafts\": [[1], []]"), true).common.engine.scripted_drafts.size(),
      2u);
}

TEST(Request, LongPromptNamesBothNumbers) {
  const std::string ids(100 * 2, ' ');
  std::string prompt = "[1";
  for (int i = 1; i < 100; ++i) prompt += ",1";
  try {
    completion("{\"prompt\": " + prompt + "]}");
    FAIL();
  } catch (const ApiError& e) {
    EXPECT_NE(std::string(e.what()).find("100 tokens"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("at most 99"), std::string::npos) << e.what();
    EXPECT_EQ(e.object().at("code"), "context_length_exceeded");
  }
  // More than there is room for is lowered, and said.
  const CompletionRequest request = completion(R"({"prompt": [1, 2], "max_tokens": 1000})");
  EXPECT_EQ(*request.common.max_tokens, 98);
  ASSERT_EQ(request.common.warnings.size(), 1u);
}

TEST(Request, UnknownFieldsAreWarnedOf) {
  const CompletionRequest request = completion(with("\"user\": \"me\", \"best\": 1"));
  EXPECT_EQ(request.common.warnings,
            (Warnings{"user: not known, ignored", "best: not known, ignored"}));
}

TEST(Request, ChatMessages) {
  const ChatRequest request = chat(R"({"messages": [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
      "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "r"},
    {"role": "system", "content": "late"}]})");
  EXPECT_EQ(request.prompt.text,
            "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
            "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n"
            "</tool_call><|im_end|>\n<|im_start|>tool\n<tool_response>\nr\n</tool_response>"
            "<|im_end|>\n<|im_start|>system\nlate<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(request.prompt.ids, served().tokenizer->encode(request.prompt.text));
  EXPECT_EQ(*request.common.max_tokens, 100 - static_cast<int64_t>(request.prompt.ids.size()));
}

TEST(Request, ChatOptions) {
  EXPECT_FALSE(chat(chat_with("\"n\": 1")).opens_reasoning);
  EXPECT_TRUE(chat(chat_with("\"enable_thinking\": true")).opens_reasoning);
  EXPECT_TRUE(
      chat(chat_with("\"chat_template_kwargs\": {\"enable_thinking\": true}")).opens_reasoning);
  EXPECT_EQ(*chat(chat_with("\"max_tokens\": 9, \"max_completion_tokens\": 5")).common.max_tokens,
            5);
  EXPECT_EQ(chat(chat_with("\"logprobs\": true, \"top_logprobs\": 3")).common.engine.logprobs, 3);
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f"}},
                   {"type": "function", "function": {"name": "g"}}])";
  EXPECT_EQ(chat(chat_with(tools)).tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(chat(chat_with(tools + R"(, "tool_choice": "none")")).tools.empty());
  const ChatRequest named = chat(
      chat_with(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})"));
  EXPECT_EQ(named.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(named.tools.size(), 1u);
}

TEST(Request, ChatRefusedByName) {
  const struct {
    const char *field, *extra;
  } kCases[] = {
      {"top_logprobs", R"("top_logprobs": 2)"},
      {"logprobs", R"("logprobs": 5)"},
      {"functions", R"("functions": [])"},
      {"max_completion_tokens", R"("max_completion_tokens": 0)"},
      {"tools[0].function", R"("tools": [{"type": "function"}])"},
      {"tools[0].type", R"("tools": [{"type": "retrieval"}])"},
      {"tool_choice", R"("tool_choice": "required")"},
      {"tool_choice.function.name", R"("tool_choice": {"function": {"name": "x"}})"},
      {"response_format.type", R"("response_format": {"type": "xml"})"},
      {"response_format.json_schema", R"("response_format": {"type": "json_schema"})"},
      {"modalities", R"("modalities": ["text", "audio"])"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.extra);
    expect_refused(c.field, [&] { chat(chat_with(c.extra)); });
  }
  const struct {
    const char *field, *messages;
  } kMessages[] = {
      {"messages", "[]"},
      {"messages", "null"},
      {"messages[0]", "[1]"},
      {"messages[0].role", R"([{"role": "boss", "content": "a"}])"},
      {"messages[0].content", R"([{"role": "user", "content": 7}])"},
      {"messages[1].content[0].type",
       R"([{"role": "user", "content": "a"},
           {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"},
      {"messages[0].tool_calls[0].function.name",
       R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"},
  };
  for (const auto& c : kMessages) {
    SCOPED_TRACE(c.messages);
    expect_refused(c.field, [&] { chat(concat("{\"messages\": ", c.messages, "}")); });
  }
}

// A call that a model wrote wrongly is part of the history: it is served, and said.
TEST(Request, ArgumentsThatAreNoJson) {
  const std::string body = R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
      "function": {"name": "f", "arguments": "{\"a\": "}}]},
    {"role": "tool", "tool_call_id": "1", "content": "invalid"}]})";
  const ChatRequest request = chat(body);
  EXPECT_NE(request.prompt.text.find(R"("arguments": {"a": })"), std::string::npos);
  ASSERT_EQ(request.common.warnings.size(), 1u);
  EXPECT_TRUE(
      request.common.warnings[0].starts_with("messages[1].tool_calls[0].function.arguments: "));
  // A template that goes through the arguments gets an object.
  ServedModel model = served();
  model.chat_template = std::make_shared<const ChatTemplate>(
      "{%- for m in messages %}{%- for c in m.tool_calls or [] %}"
      "{%- for k, v in c.function.arguments | items %}{{- k ~ '=' ~ v ~ ';' }}{%- endfor %}"
      "{%- endfor %}{{- m.content }}{%- endfor %}",
      "strict", "", "");
  const ChatRequest strict = parse_chat(parse_json(body), model, false);
  EXPECT_EQ(strict.prompt.text, "aarguments={\"a\": ;invalid");
  EXPECT_EQ(strict.common.warnings.size(), 1u);
}

TEST(Request, TheLastMessageIsGoneOnWith) {
  const auto with_last = [](const std::string& message, const std::string& extra) {
    return R"({"messages": [{"role": "user", "content": "a"}, )" + message + "], " + extra + "}";
  };
  const std::string last = R"({"role": "assistant", "content": "The answer <|im_end|> is "})";
  const std::string go_on = "\"continue_final_message\": true";
  const std::string begun =
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nThe answer <|im_end|> is ";
  EXPECT_EQ(chat(with_last(last, go_on)).prompt.text, begun);
  EXPECT_EQ(chat(with_last(last, go_on + ", \"add_generation_prompt\": false")).prompt.text, begun);
  EXPECT_EQ(chat(with_last(last, "\"add_generation_prompt\": false")).prompt.text,
            begun + "<|im_end|>\n");
  EXPECT_FALSE(chat(with_last(last, go_on)).opens_reasoning);
  const std::string thinks = R"({"role": "assistant", "content": "<think>\nhm"})";
  EXPECT_TRUE(chat(with_last(thinks, go_on)).opens_reasoning);
  expect_refused("continue_final_message",
                 [&] { chat(with_last(last, go_on + ", \"add_generation_prompt\": true")); });
  for (const char* message :
       {R"({"role": "user", "content": "b"})", R"({"role": "assistant", "content": ""})",
        R"({"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "f"}}]})"}) {
    expect_refused("continue_final_message", [&] { chat(with_last(message, go_on)); });
  }
}

// Text parts are joined as the model's template would, if it takes them.
TEST(Request, PartsAreJoinedAsTheTemplateDoes) {
  const auto prompt = [](const std::string& source) {
    ServedModel model = served();
    model.chat_template = std::make_shared<const ChatTemplate>(source, "t", "", "");
    return parse_chat(parse_json(R"({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})"),
                      model, false)
        .prompt.text;
  };
  const std::string parts =
      "{%- for m in messages %}{%- if m.content is string %}{{- m.content }}{%- else %}"
      "{%- for p in m.content %}{{- p.text }}SEPARATOR{%- endfor %}{%- endif %}{%- endfor %}";
  const auto with_separator = [&](const std::string& separator) {
    std::string source = parts;
    source.replace(source.find("SEPARATOR"), 9, separator);
    return source;
  };
  EXPECT_EQ(prompt(with_separator("")), "ab");
  EXPECT_EQ(prompt(with_separator("{{- ' | ' }}")), "a | b");
  EXPECT_EQ(prompt("{%- for m in messages %}{{- m.content }}{%- endfor %}"), "a\nb");
  EXPECT_EQ(prompt("{%- for m in messages %}{{- 'U: ' + m.content }}{%- endfor %}"), "U: a\nb");
}

TEST(Request, ReasoningEffortReachesTheTemplate) {
  ServedModel model = served();
  model.chat_template = std::make_shared<const ChatTemplate>(
      "{{- reasoning_effort ~ ' ' ~ enable_thinking }}", "t", "", "");
  const auto prompt = [&](const std::string& extra) {
    return parse_chat(parse_json(chat_with(extra)), model, false).prompt.text;
  };
  EXPECT_TRUE(prompt("\"reasoning_effort\": \"low\"").starts_with("low "));
  EXPECT_EQ(prompt("\"reasoning_effort\": \"none\""), "none False");
  EXPECT_EQ(prompt("\"reasoning_effort\": \"none\", \"enable_thinking\": true"), "none True");
}

TEST(Request, OtherNamesAndLeastTokens) {
  EXPECT_FLOAT_EQ(completion(with("\"repeat_penalty\": 1.5")).common.engine.penalties.repetition,
                  1.5f);
  expect_refused("repeat_penalty",
                 [] { completion(with("\"repeat_penalty\": 1.5, \"repetition_penalty\": 1.4")); });
  expect_refused("repeat_last_n",
                 [] { completion(with("\"repeat_penalty\": 1.5, \"repeat_last_n\": 64")); });
  completion(with("\"repeat_penalty\": 1, \"repeat_last_n\": 64"));
  EXPECT_EQ(completion(with("\"min_tokens\": 9")).common.min_tokens, 9);
  expect_refused("min_tokens", [] { completion(with("\"min_tokens\": 17")); });
  EXPECT_FALSE(chat(chat_with("\"parallel_tool_calls\": false")).parallel_calls);
}

TEST(Request, DeepJsonIsRefused) {
  const std::string deep(100000, '[');
  EXPECT_THROW(parse_json(deep), Error);
  EXPECT_THROW(parse_json("{\"a\": \"\xff\"}"), Error);
  EXPECT_THROW(parse_json(""), Error);
}

// A template that takes one system message in front still serves agents that send more.
TEST(Request, LateSystemMessagesAreJoined) {
  const ChatTemplate strict(
      "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}"
      "{{- raise_exception('system first') }}{%- endif %}{{- m.role ~ ':' ~ m.content ~ ';' }}"
      "{%- endfor %}",
      "strict", "", "");
  Warnings warnings;
  const Json messages = Json::parse(R"([{"role": "user", "content": "a"},
    {"role": "system", "content": "b"}, {"role": "system", "content": "c"}])");
  EXPECT_EQ(strict.render(messages, Json::array(), {}, warnings), "system:b\n\nc;user:a;");
  EXPECT_EQ(warnings.size(), 1u);
}

}  // namespace
}  // namespace replayssm::server
