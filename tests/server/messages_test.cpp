// POST /v1/messages: its form, its events, and that it is the chat route underneath.
#include "api_server.h"

namespace replayssm::server {
namespace {

using Messages = ApiServer;

constexpr const char* kPath = "/v1/messages";
const std::string kTools =
    R"("tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}])";
const std::string kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";

std::string asked(const std::string& extra) {
  return R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 100)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

TEST_F(Messages, Whole) {
  start();
  say("<think>\nhm\n</think>\n\nLet me see.\n" + kCall, 3);
  const Response got = post(kPath, asked(kTools), "anthropic-version: 2023-06-01\r\n");
  ASSERT_EQ(got.status, 200) << got.body;
  const Json json = got.json();
  EXPECT_TRUE(json.at("id").get<std::string>().starts_with("msg_"));
  EXPECT_EQ(json.at("type"), "message");
  EXPECT_EQ(json.at("role"), "assistant");
  EXPECT_EQ(json.at("model"), "demo-gdn");
  EXPECT_EQ(json.at("stop_reason"), "tool_use");
  EXPECT_TRUE(json.at("stop_sequence").is_null());
  const Json& content = json.at("content");
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0].at("type"), "thinking");
  EXPECT_EQ(content[0].at("thinking"), "hm");
  EXPECT_FALSE(content[0].at("signature").get<std::string>().empty());
  EXPECT_EQ(content[1], Json::parse(R"({"type": "text", "text": "Let me see."})"));
  EXPECT_EQ(content[2].at("type"), "tool_use");
  EXPECT_EQ(content[2].at("name"), "f");
  EXPECT_EQ(content[2].at("input"), Json::parse(R"({"x": 1})"));
  EXPECT_TRUE(content[2].at("id").get<std::string>().starts_with("toolu_"));
  const Json& usage = json.at("usage");
  EXPECT_EQ(usage.at("cache_read_input_tokens"), 3);
  EXPECT_EQ(usage.at("input_tokens"), engine_.requests()[0].prompt.size() - 3);
  EXPECT_EQ(usage.at("output_tokens"), engine_.script.tokens.size());
}

// The message as a client puts it together from the events, each of which fits those before it.
Json assembled(const std::vector<Json>& events) {
  Json message = events.at(0).at("message");
  std::string partial;
  bool open = false;
  for (size_t i = 1; i < events.size(); ++i) {
    const Json& event = events[i];
    const std::string type = event.at("type");
    Json& content = message["content"];
    if (type == "content_block_start") {
      EXPECT_FALSE(open);
      EXPECT_EQ(event.at("index"), content.size());
      content.push_back(event.at("content_block"));
      partial.clear();
      open = true;
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(event.at("index"), content.size() - 1);
      const Json& delta = event.at("delta");
      if (delta.at("type") == "input_json_delta") {
        partial += delta.at("partial_json").get<std::string>();
      }
      for (const char* field : {"text", "thinking", "signature"}) {
        if (!delta.contains(field)) continue;
        EXPECT_EQ(delta.at("type"), std::string(field) + "_delta");
        Json& whole = content.back()[field];
        whole = whole.get<std::string>() + delta.at(field).get<std::string>();
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(open);
      EXPECT_EQ(event.at("index"), content.size() - 1);
      if (!partial.empty()) content.back()["input"] = Json::parse(partial);
      open = false;
    } else if (type == "message_delta") {
      EXPECT_FALSE(open);
      message.update(event.at("delta"));
      message["usage"] = event.at("usage");
    } else {
      EXPECT_TRUE(type == "ping" || type == "message_stop") << type;
    }
  }
  return message;
}

Json without_ids(Json message) {
  for (const char* name : {"id", "replayssm"}) message.erase(name);
  for (Json& block : message["content"]) block.erase("id");
  return message;
}

TEST_F(Messages, StreamEqualsWhole) {
  start();
  const struct {
    std::string text, extra;
  } cases[] = {
      {"caf\xC3\xA9 \xF0\x9F\x98\x80 and so on", ""},
      {"<think>\nhm\n</think>\n\nHi there", ""},
      {"<think>\nhm\n</think>\n\nLet me see.\n" + kCall + "\n" + kCall, kTools},
      {"<think>\nhm\n</think>\n\nLet me see.\n" + kCall + "\n" + kCall,
       kTools + R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true})"},
      {kCall + "\nafter it", kTools},
      {"a b c d e f g h", R"("max_tokens": 4)"},
      {"one STOP two", R"("stop_sequences": ["no", "STOP"])"},
      {"", ""},
  };
  for (const auto& one : cases) {
    for (const size_t step : {1, 3}) {
      SCOPED_TRACE(one.text + " " + one.extra);
      say(one.text, step);
      const Json whole = post(kPath, asked(one.extra)).json();
      const Response stream =
          post(kPath, asked(one.extra + (one.extra.empty() ? "" : ", ") + R"("stream": true)"));
      ASSERT_EQ(stream.status, 200) << stream.body;
      const auto events = named_events(stream);
      ASSERT_GE(events.size(), 4u);
      EXPECT_EQ(events[0].at("type"), "message_start");
      EXPECT_EQ(events[events.size() - 2].at("type"), "message_delta");
      EXPECT_EQ(events.back().at("type"), "message_stop");
      EXPECT_EQ(without_ids(assembled(events)), without_ids(whole));
    }
  }
}

TEST_F(Messages, OrderOfEvents) {
  start();
  say("<think>\nhm\n</think>\n\nHi\n" + kCall, 100);
  const auto types = types_of(named_events(post(kPath, asked(kTools + R"(, "stream": true)"))));
  const std::vector<std::string> expected = {"message_start",       "ping",
                                             "content_block_start", "content_block_delta",
                                             "content_block_delta", "content_block_stop",
                                             "content_block_start", "content_block_delta",
                                             "content_block_stop",  "content_block_start",
                                             "content_block_delta", "content_block_stop",
                                             "message_delta",       "message_stop"};
  EXPECT_EQ(types, expected);
}

TEST_F(Messages, StopReasons) {
  start();
  say("one STOP two");
  Json json = post(kPath, asked(R"("stop_sequences": ["no", "STOP"])")).json();
  EXPECT_EQ(json.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(json.at("stop_sequence"), "STOP");
  EXPECT_EQ(json.at("content")[0].at("text"), "one ");
  json = post(kPath, R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})").json();
  EXPECT_EQ(json.at("stop_reason"), "max_tokens");
  EXPECT_EQ(post(kPath, asked("")).json().at("stop_reason"), "end_turn");
}

// The engine sees what it sees of the same chat.
TEST_F(Messages, BlocksAreTheChatsMessages) {
  start({}, 4000);
  say("ok");
  const std::string chat = prompt_of("/v1/chat/completions", R"({"messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": [{"type": "text", "text": "one "},
                                   {"type": "text", "text": "two"}]},
      {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
        {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "r1"},
      {"role": "tool", "tool_call_id": "c2", "content": "Error: r2"},
      {"role": "user", "content": "y"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
      "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]})");
  const std::string blocks = prompt_of(kPath, R"({"max_tokens": 9, "system": [
      {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=a1b2c;"},
      {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two",
       "cache_control": {"type": "ephemeral"}}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "zz"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "c2", "name": "f", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": "r1"},
        {"type": "tool_result", "tool_use_id": "c2", "is_error": true,
         "content": [{"type": "text", "text": "r2"}]},
        {"type": "text", "text": "y"}]}],
    "tools": [{"name": "f", "description": "d", "cache_control": {"type": "ephemeral"},
      "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}]})");
  EXPECT_EQ(blocks, chat);
}

TEST_F(Messages, ThinkingReachesTheTemplate) {
  start();
  say("a");
  const auto thinks = [&](const std::string& thinking) {
    return prompt_of(kPath, asked("\"thinking\": " + thinking)).ends_with("<think>\n");
  };
  EXPECT_TRUE(thinks(R"({"type": "enabled", "budget_tokens": 1024})"));
  EXPECT_TRUE(thinks(R"({"type": "adaptive"})"));
  EXPECT_FALSE(thinks(R"({"type": "disabled"})"));
}

TEST_F(Messages, ToolChoice) {
  start({}, 4000);
  say(kCall);
  EXPECT_EQ(prompt_of(kPath, asked(kTools + R"(, "tool_choice": {"type": "none"})")).find("\"f\""),
            std::string::npos);
#ifdef REPLAYSSM_GRAMMARS
  for (const std::string forced : {R"({"type": "any"})", R"({"type": "tool", "name": "f"})"}) {
    EXPECT_EQ(post(kPath, asked(kTools + ", \"tool_choice\": " + forced)).status, 200);
    EXPECT_NE(engine_.requests().back().constraint, nullptr);
  }
  const std::string schema = R"({"type": "json_schema", "schema": {"type": "object",
      "properties": {"a": {"type": "integer"}}, "required": ["a"],
      "additionalProperties": false}})";
  for (const std::string& field :
       {"\"output_format\": " + schema, "\"output_config\": {\"format\": " + schema + "}"}) {
    EXPECT_EQ(post(kPath, asked(field)).status, 200);
    EXPECT_NE(engine_.requests().back().constraint, nullptr);
  }
#endif
}

TEST_F(Messages, OddToolsDoNotBlockTheOthers) {
  start();
  say("Hi");
  const std::string tool = R"({"name": "f", "input_schema": {"type": "object"}})";
  for (const std::string odd : {R"({"type": "web_search_20250305", "name": "web_search"})",
                                R"({"type": "bash_20250124", "name": "bash"})"}) {
    for (const std::string& tools : {odd + ", " + tool, tool + ", " + odd}) {
      const Response got = post(kPath, asked("\"tools\": [" + tools + "]"));
      EXPECT_EQ(got.status, 200) << got.body;
      EXPECT_NE(got.header("x-replayssm-warning").find("not a tool of this server"),
                std::string::npos);
    }
    const Response alone = post(kPath, asked("\"tools\": [" + odd + "]"));
    EXPECT_EQ(alone.status, 400);
    EXPECT_NE(alone.body.find("tools[0].type"), std::string::npos);
  }
}

TEST_F(Messages, CountsWhatIsSent) {
  start({}, 4000);
  say("Hi");
  for (const std::string& extra :
       {std::string(), kTools, R"("system": "Be brief.")" + (", " + kTools),
        std::string(R"("thinking": {"type": "adaptive"})"),
        kTools + R"(, "tool_choice": {"type": "none"})"}) {
    const Response counted = post("/v1/messages/count_tokens", asked(extra));
    ASSERT_EQ(counted.status, 200) << counted.body;
    ASSERT_EQ(post(kPath, asked(extra)).status, 200);
    EXPECT_EQ(counted.json().at("input_tokens"), engine_.requests().back().prompt.size()) << extra;
  }
  EXPECT_EQ(post("/v1/messages/count_tokens",
                 R"({"messages": [{"role": "user", "content": "x"}], "model": "demo-gdn"})")
                .status,
            200);
}

TEST_F(Messages, ErrorsHaveAnthropicsForm) {
  AppOptions options;
  options.api_key = "secret";
  start(options);
  say("a b");
  const auto error = [&](const std::string& path, const std::string& body, int status,
                         const std::string& type, const std::string& headers) {
    const Response got = post(path, body, headers);
    EXPECT_EQ(got.status, status) << got.body;
    const Json json = got.json();
    EXPECT_EQ(json.at("type"), "error");
    EXPECT_EQ(json.at("error").at("type"), type);
    EXPECT_EQ(json.at("request_id"), got.header("x-request-id"));
    EXPECT_EQ(json.at("request_id"), got.header("request-id"));
    return json.at("error").at("message").get<std::string>();
  };
  const std::string key = "x-api-key: secret\r\n";
  error(kPath, asked(""), 401, "authentication_error", "");
  error(kPath, asked(""), 401, "authentication_error", "x-api-key: other\r\n");
  EXPECT_EQ(post(kPath, asked(""), key).status, 200);
  EXPECT_EQ(post(kPath, asked(""), "Authorization: Bearer secret\r\n").status, 200);
  error(kPath, asked(R"("model": "other")"), 404, "not_found_error", key);
  error("/v1/messages/other", "{}", 404, "not_found_error", key);
  error(kPath, "[", 400, "invalid_request_error", key);
  engine_.refusal = Refusal{Refusal::Kind::kBusy, "", "256 wait"};
  error(kPath, asked(""), 429, "rate_limit_error", key);
  engine_.refusal = {};
  engine_.script.reason = FinishReason::kError;
  engine_.script.error = "a kernel failed";
  EXPECT_EQ(error(kPath, asked(""), 500, "api_error", key), "a kernel failed");
  const auto events = named_events(post(kPath, asked(R"("stream": true)"), key));
  EXPECT_EQ(events.back().at("type"), "error");
  EXPECT_EQ(events.back().at("error").at("message"), "a kernel failed");
}

// What is refused before the application has seen it has the same form.
TEST_F(Messages, EarlyErrorsHaveAnthropicsForm) {
  start();
  const auto expect = [](const Response& got, int status, const std::string& type) {
    EXPECT_EQ(got.status, status) << got.body;
    const Json json = got.json();
    ASSERT_EQ(json.value("type", ""), "error") << got.body;
    EXPECT_EQ(json.at("error").at("type"), type);
    EXPECT_EQ(json.at("request_id"), got.header("request-id"));
  };
  expect(post(kPath, asked(""), "Content-Type: text/plain\r\n"), 415, "invalid_request_error");
  expect(fetch(port_, "GET", kPath), 405, "invalid_request_error");
  expect(post(kPath, "{"), 400, "invalid_request_error");
  expect(post(kPath, asked(""), "Origin: https://other.example\r\n"), 403, "permission_error");
  const auto raw = [&](const std::string& text) {
    Client client(port_);
    client.send(text);
    return client.read();
  };
  const std::string head = concat("POST ", kPath, "?beta=true HTTP/1.1\r\nHost: localhost\r\n");
  expect(raw(head + "Content-Length: 99999999999\r\n\r\n"), 413, "request_too_large");
  expect(raw(head + "Transfer-Encoding: xchunked\r\n\r\n"), 400, "invalid_request_error");
  expect(raw(head + "x: " + std::string(20000, 'x') + "\r\n\r\n"), 431, "invalid_request_error");
  // Other paths have OpenAI's.
  const Response other = post("/v1/messagesx", "{}", "Content-Type: text/plain\r\n");
  EXPECT_TRUE(other.json().at("error").contains("param")) << other.body;
}

// A last message of the assistant is the answer's beginning.
TEST_F(Messages, PrefillIsGoneOnWith) {
  start();
  say("b");
  const std::string prompt = prompt_of(kPath, R"({"max_tokens": 10, "messages": [
      {"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is"}]})");
  EXPECT_TRUE(prompt.ends_with("<|im_start|>assistant\nThe answer is")) << prompt;
}

TEST_F(Messages, ErrorsNameTheClientsFields) {
  start();
  const auto blocks = [](const std::string& role, const std::string& block) {
    return R"({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}, {"role": ")" + role +
           R"(", "content": [)" + block + "]}]}";
  };
  const struct {
    std::string body, field;
  } cases[] = {
      {R"({"max_tokens": 5})", "messages"},
      {R"({"max_tokens": 5, "messages": []})", "messages"},
      {R"({"messages": [{"role": "user", "content": "x"}]})", "max_tokens"},
      {R"({"max_tokens": 5, "messages": [{"role": "tool", "content": "x"}]})", "messages[0].role"},
      {blocks("user", R"({"type": "image", "source": {}})"), "messages[1].content[0].type"},
      {blocks("user", R"({"type": "document", "source": {}})"), "messages[1].content[0].type"},
      {blocks("user", R"({"type": "tool_result", "content": "x"})"),
       "messages[1].content[0].tool_use_id"},
      {blocks("user", R"({"type": "tool_result", "tool_use_id": "a",
                          "content": [{"type": "image"}]})"),
       "messages[1].content[0].content[0].type"},
      {blocks("assistant", R"({"type": "tool_use", "id": "a", "name": "f", "input": 5})"),
       "messages[1].content[0].input"},
      {asked(R"("system": [{"type": "image"}])"), "system[0].type"},
      {asked(R"("tools": [{"name": "f"}])"), "tools[0].input_schema"},
      {asked(kTools + R"(, "tool_choice": {"type": "tool", "name": "g"})"), "tool_choice.name"},
      {asked(kTools + R"(, "tool_choice": {"type": "all"})"), "tool_choice.type"},
      {asked(R"("tool_choice": {"type": "any"})"), "tool_choice"},
      {asked(R"("temperature": -1)"), "temperature"},
      {asked(R"("top_k": "x")"), "top_k"},
      {asked(R"("stop_sequences": [""])"), "stop_sequences"},
      {asked(R"("thinking": {"type": "deep"})"), "thinking.type"},
      {asked(R"("mcp_servers": [{"name": "m"}])"), "mcp_servers"},
      {asked(R"("container": "c")"), "container"},
      {asked(R"("n": 2)"), "n"},
#ifdef REPLAYSSM_GRAMMARS
      {asked(R"("tool_choice": {"type": "any"}, "tools": [{"name": "f", "input_schema": {
          "type": "object", "properties": {"a": {"type": "string", "not": {}}}}}])"),
       "tools[0].input_schema"},
#endif
  };
  for (const auto& one : cases) {
    const Response got = post(kPath, one.body);
    EXPECT_EQ(got.status, 400) << one.body << got.body;
    const std::string message = got.json().at("error").at("message");
    EXPECT_EQ(message.find(one.field), 0u) << message;
  }
  EXPECT_TRUE(engine_.requests().empty());
}

}  // namespace
}  // namespace replayssm::server
