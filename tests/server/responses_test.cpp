// POST /v1/responses: its form, its events, and that it is the chat route underneath.
#include "api_server.h"
#include "server/apis/response_store.h"

namespace replayssm::server {
namespace {

using Responses = ApiServer;

constexpr const char* kPath = "/v1/responses";
const std::string kTools =
    R"("tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}])";
const std::string kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";

std::string asked(const std::string& extra) {
  return R"({"input": "x")" + (extra.empty() ? "" : ", " + extra) + "}";
}

// A response without what differs from request to request.
Json without_ids(Json response) {
  for (const char* name : {"id", "created_at", "replayssm"}) response.erase(name);
  for (Json& item : response["output"]) {
    item.erase("id");
    item.erase("call_id");
  }
  return response;
}

TEST_F(Responses, Whole) {
  start();
  say("<think>\nhm\n</think>\n\nLet me see.\n" + kCall, 3);
  const Response got = post(kPath, asked(kTools + R"(, "metadata": {"a": "b"}, "temperature": 0.7,
      "instructions": "Be brief.", "max_output_tokens": 300)"));
  ASSERT_EQ(got.status, 200) << got.body;
  const Json json = got.json();
  EXPECT_TRUE(json.at("id").get<std::string>().starts_with("resp_"));
  EXPECT_EQ(json.at("object"), "response");
  EXPECT_EQ(json.at("status"), "completed");
  EXPECT_EQ(json.at("model"), "demo-gdn");
  EXPECT_EQ(json.at("metadata"), Json::parse(R"({"a": "b"})"));
  EXPECT_EQ(json.at("temperature"), 0.7);
  EXPECT_EQ(json.at("instructions"), "Be brief.");
  EXPECT_EQ(json.at("max_output_tokens"), 300);
  EXPECT_TRUE(json.at("error").is_null());
  EXPECT_TRUE(json.at("incomplete_details").is_null());
  const Json& output = json.at("output");
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0].at("type"), "reasoning");
  EXPECT_EQ(output[0].at("content"), Json::parse(R"([{"type": "reasoning_text", "text": "hm"}])"));
  EXPECT_EQ(output[1].at("type"), "message");
  EXPECT_EQ(output[1].at("role"), "assistant");
  EXPECT_EQ(output[1].at("content")[0].at("type"), "output_text");
  EXPECT_EQ(output[1].at("content")[0].at("text"), "Let me see.");
  EXPECT_EQ(output[2].at("type"), "function_call");
  EXPECT_EQ(output[2].at("name"), "f");
  EXPECT_EQ(output[2].at("arguments"), "{\"x\":1}");
  EXPECT_NE(output[2].at("call_id"), output[2].at("id"));
  const Json& usage = json.at("usage");
  const auto n = static_cast<int64_t>(engine_.script.tokens.size());
  EXPECT_EQ(usage.at("output_tokens"), n);
  EXPECT_EQ(usage.at("input_tokens"), engine_.requests()[0].prompt.size());
  EXPECT_EQ(usage.at("input_tokens_details").at("cached_tokens"), 3);
  EXPECT_EQ(usage.at("total_tokens"), engine_.requests()[0].prompt.size() + static_cast<size_t>(n));
  EXPECT_EQ(usage.at("output_tokens_details").at("reasoning_tokens"),
            tokenizer_->encode("hm").size());
}

// The output as a client puts it together from the events, each of which fits those before it.
Json assembled(const std::vector<Json>& events) {
  Json output = Json::array();
  std::vector<std::string> texts;
  std::vector<bool> done;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i];
    EXPECT_EQ(event.at("sequence_number"), i);
    const std::string type = event.at("type");
    if (type == "response.output_item.added") {
      EXPECT_EQ(event.at("output_index"), output.size());
      EXPECT_EQ(event.at("item").at("status"), "in_progress");
      EXPECT_TRUE(output.empty() || done.back()) << "two items at once";
      output.push_back(event.at("item"));
      texts.emplace_back();
      done.push_back(false);
      continue;
    }
    if (!event.contains("output_index")) continue;
    EXPECT_EQ(event.at("output_index"), output.size() - 1);
    EXPECT_FALSE(done.back()) << type;
    Json& item = output.back();
    if (event.contains("item_id")) {
      EXPECT_EQ(event.at("item_id"), item.at("id"));
    }
    if (event.contains("content_index")) {
      EXPECT_EQ(event.at("content_index"), 0);
    }
    if (type.ends_with(".delta")) texts.back() += event.at("delta").get<std::string>();
    for (const char* whole : {"text", "arguments", "input"}) {
      if (type.ends_with(".done") && event.contains(whole)) {
        EXPECT_EQ(event.at(whole), texts.back()) << type;
      }
    }
    if (type == "response.content_part.added") {
      EXPECT_EQ(event.at("part").at("text"), "");
    }
    if (type == "response.content_part.done") {
      EXPECT_EQ(event.at("part").at("text"), texts.back());
      item["content"].push_back(event.at("part"));
    }
    if (type == "response.output_item.done") {
      if (item.contains("arguments")) item["arguments"] = texts.back();
      if (item.contains("input")) item["input"] = texts.back();
      item["status"] = event.at("item").at("status");
      EXPECT_EQ(event.at("item"), item);
      done.back() = true;
    }
  }
  EXPECT_TRUE(output.empty() || done.back());
  return output;
}

TEST_F(Responses, StreamEqualsWhole) {
  start();
  const std::string custom = R"("tools": [{"type": "custom", "name": "f"}])";
  const struct {
    std::string text, extra;
  } cases[] = {
      {"caf\xC3\xA9 \xF0\x9F\x98\x80 and so on", ""},
      {"<think>\nhm\n</think>\n\nHi there", ""},
      {"<think>\nhm\n</think>\n\nLet me see.\n" + kCall + "\n" + kCall, kTools},
      {"<think>\nhm\n</think>\n\nLet me see.\n" + kCall + "\n" + kCall,
       kTools + R"(, "parallel_tool_calls": false)"},
      {kCall + "\nafter it", kTools},
      {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"input\": \"a\\nb\"}}\n</tool_call>",
       custom},
      {"a b c d e f g h", R"("max_output_tokens": 4)"},
      {"<think>\na b c d e f g h", R"("max_output_tokens": 7)"},
      {"one STOP two", R"("stop": "STOP")"},
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
      ASSERT_GE(events.size(), 3u);
      EXPECT_EQ(events[0].at("type"), "response.created");
      EXPECT_EQ(events[1].at("type"), "response.in_progress");
      EXPECT_EQ(events[0].at("response").at("status"), "in_progress");
      EXPECT_EQ(events[0].at("response").at("output"), Json::array());
      const std::string status = whole.at("status");
      EXPECT_EQ(events.back().at("type"), "response." + status);
      const Json& last = events.back().at("response");
      EXPECT_EQ(assembled(events), last.at("output"));
      EXPECT_EQ(last.at("id"), events[0].at("response").at("id"));
      EXPECT_EQ(without_ids(last), without_ids(whole));
    }
  }
}

TEST_F(Responses, OrderOfEvents) {
  start();
  say("<think>\nhm\n</think>\n\nHi\n" + kCall, 100);
  const auto types = types_of(named_events(post(kPath, asked(kTools + R"(, "stream": true)"))));
  const std::vector<std::string> expected = {"response.created",
                                             "response.in_progress",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.reasoning_text.delta",
                                             "response.reasoning_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.output_text.delta",
                                             "response.output_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.function_call_arguments.delta",
                                             "response.function_call_arguments.done",
                                             "response.output_item.done",
                                             "response.completed"};
  EXPECT_EQ(types, expected);
}

TEST_F(Responses, IncompleteNamesTheReason) {
  start();
  say("a b c d e f g h");
  const Json json = post(kPath, asked(R"("max_output_tokens": 4)")).json();
  EXPECT_EQ(json.at("status"), "incomplete");
  EXPECT_EQ(json.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(json.at("output")[0].at("status"), "incomplete");
}

TEST_F(Responses, AnEngineThatFails) {
  start();
  say("a b");
  engine_.script.reason = FinishReason::kError;
  engine_.script.error = "a kernel failed";
  const Response whole = post(kPath, asked(""));
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json().at("error").at("message"), "a kernel failed");
  const auto events = named_events(post(kPath, asked(R"("stream": true)")));
  EXPECT_EQ(events.back().at("type"), "response.failed");
  EXPECT_EQ(events.back().at("response").at("status"), "failed");
  EXPECT_EQ(events.back().at("response").at("error").at("message"), "a kernel failed");
}

// The engine sees what it sees of the same chat.
TEST_F(Responses, ItemsAreTheChatsMessages) {
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
      {"role": "tool", "tool_call_id": "c2", "content": "r2"},
      {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c3", "type": "function", "function": {"name": "g", "arguments": "{\"input\": \"i\"}"}}]},
      {"role": "tool", "tool_call_id": "c3", "content": "r3"},
      {"role": "assistant", "content": "Done."}, {"role": "user", "content": "y"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
      "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]})");
  const std::string items = prompt_of(kPath, R"({"instructions": "Be brief.", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "one "},
                                   {"type": "input_text", "text": "two"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [],
       "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
       "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"},
      {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c1", "output": "r1"},
      {"type": "function_call_output", "call_id": "c2",
       "output": [{"type": "input_text", "text": "r2"}]},
      {"type": "custom_tool_call", "call_id": "c3", "name": "g", "input": "i"},
      {"type": "custom_tool_call_output", "call_id": "c3", "output": "r3"},
      {"role": "assistant", "content": "Done."}, {"role": "user", "content": "y"}],
    "tools": [{"type": "function", "name": "f", "description": "d", "strict": false,
      "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}]})");
  EXPECT_EQ(items, chat);
  EXPECT_NE(items.find("hm"), std::string::npos);
}

TEST_F(Responses, GoesOnFromAStoredOne) {
  start({}, 4000);
  say("<think>\nhm\n</think>\n\nHi\n" + kCall);
  const std::string tools = "\"instructions\": \"Be brief.\", " + kTools;
  const Json first = post(kPath, asked(tools)).json();
  const std::string id = first.at("id");
  EXPECT_EQ(fetch(port_, "GET", "/v1/responses/" + id).json(), first);

  // The same as all of it sent again.
  Json all = Json::array({{{"role", "user"}, {"content", "x"}}});
  for (const Json& item : first.at("output")) all.push_back(item);
  const Json result = {{"type", "function_call_output"},
                       {"call_id", first.at("output")[2].at("call_id")},
                       {"output", "1"}};
  all.push_back(result);
  const std::string sent = prompt_of(kPath, "{\"input\": " + all.dump() + ", " + tools + "}");
  const std::string next = "{\"input\": " + Json::array({result}).dump() + ", " + tools +
                           ", \"previous_response_id\": \"" + id + "\", \"stream\": true}";
  EXPECT_EQ(prompt_of(kPath, next), sent);
  // And on from that one.
  const Json second = named_events(post(kPath, next)).back().at("response");
  EXPECT_EQ(second.at("previous_response_id"), id);
  const std::string third =
      prompt_of(kPath, asked("\"previous_response_id\": " + second.at("id").dump()));
  EXPECT_EQ(third.find("Be brief."), std::string::npos) << "instructions are not carried on";
  EXPECT_NE(third.find("<tool_response>\n1\n"), std::string::npos);

  EXPECT_EQ(fetch(port_, "DELETE", "/v1/responses/" + id).json().at("deleted"), true);
  EXPECT_EQ(fetch(port_, "GET", "/v1/responses/" + id).status, 404);
  EXPECT_EQ(fetch(port_, "DELETE", "/v1/responses/" + id).status, 404);
  const Response gone = post(kPath, next);
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(gone.json().at("error").at("param"), "previous_response_id");
}

TEST_F(Responses, IsNotStoredUnasked) {
  start();
  say("Hi");
  const Json json = post(kPath, asked(R"("store": false)")).json();
  EXPECT_EQ(json.at("store"), false);
  EXPECT_EQ(fetch(port_, "GET", "/v1/responses/" + json.at("id").get<std::string>()).status, 404);
}

// A client that stores nothing gets the reasoning to carry, and only our own is read back.
TEST_F(Responses, CarriedReasoning) {
  start({}, 4000);
  say("<think>\nhm\n</think>\n\nHi");
  const Json first =
      post(kPath, asked(R"("store": false, "include": ["reasoning.encrypted_content"])")).json();
  const auto next = [&](const std::string& encrypted) {
    const Json input = {
        {{"role", "user"}, {"content", "x"}},
        {{"type", "reasoning"}, {"summary", Json::array()}, {"encrypted_content", encrypted}},
        {{"role", "assistant"}, {"content", "Hi"}},
        {{"role", "user"}, {"content", "y"}}};
    return prompt_of(kPath, "{\"input\": " + input.dump() + "}");
  };
  EXPECT_NE(next(first.at("output")[0].at("encrypted_content")).find("<think>\nhm\n</think>"),
            std::string::npos);
  EXPECT_EQ(next("gAAAA").find("gAAAA"), std::string::npos);
}

TEST_F(Responses, OddToolsDoNotBlockTheOthers) {
  start();
  say("Hi");
  const std::string function = R"({"type": "function", "name": "f", "parameters": null})";
  for (const std::string odd : {R"({"type": "web_search"})", R"({"type": "local_shell"})",
                                R"({"type": "mcp", "server_label": "a"})",
                                R"({"type": "image_generation"})", R"({"type": "tool_search"})"}) {
    SCOPED_TRACE(odd);
    for (const std::string& tools : {odd + ", " + function, function + ", " + odd}) {
      const Response got = post(kPath, asked("\"tools\": [" + tools + "]"));
      EXPECT_EQ(got.status, 200) << got.body;
      EXPECT_NE(got.header("x-replayssm-warning").find("not a tool of this server"),
                std::string::npos);
    }
    const Response alone = post(kPath, asked("\"tools\": [" + odd + "]"));
    EXPECT_EQ(alone.status, 400);
    EXPECT_EQ(alone.json().at("error").at("param"), "tools[0].type");
  }
}

// The input of a custom tool is a text, whatever the model wrote.
TEST_F(Responses, CustomInputsAreTexts) {
  start();
  const std::string tools = R"("tools": [{"type": "custom", "name": "f"}])";
  for (const auto& [arguments, input] :
       {std::pair{R"({"input": "a\nb"})", "a\nb"}, std::pair{R"({"input": {"a": 1}})", "{\"a\":1}"},
        std::pair{"{}", ""}}) {
    say(concat("<tool_call>\n{\"name\": \"f\", \"arguments\": ", arguments, "}\n</tool_call>"));
    const Json item = post(kPath, asked(tools)).json().at("output")[0];
    EXPECT_EQ(item.at("type"), "custom_tool_call");
    EXPECT_EQ(item.at("input"), input);
  }
}

// Tools of a namespace come and go by their own name beside the namespace's.
TEST_F(Responses, Namespaces) {
  start({}, 4000);
  say("<tool_call>\n{\"name\": \"n__f\", \"arguments\": {\"x\": 1}}\n</tool_call>");
  const std::string tools = R"("tools": [{"type": "namespace", "name": "n", "tools": [
      {"type": "function", "name": "f"}, {"type": "function", "name": "g"}]}])";
  const Json call = post(kPath, asked(tools)).json().at("output")[0];
  EXPECT_EQ(call.at("type"), "function_call");
  EXPECT_EQ(call.at("name"), "f");
  EXPECT_EQ(call.at("namespace"), "n");
  const std::string next =
      prompt_of(kPath, "{\"input\": " + Json::array({call}).dump() + ", " + tools + "}");
  EXPECT_NE(next.find("{\"name\": \"n__f\", \"arguments\""), std::string::npos) << next;
  const Response wrong = post(kPath, asked(R"("tools": [{"type": "namespace", "name": "n",
      "tools": [{"type": "function"}]}])"));
  EXPECT_EQ(wrong.json().at("error").at("param"), "tools[0].tools[0].name");
}

TEST_F(Responses, ToolChoice) {
  start({}, 4000);
  say(kCall);
  const std::string two = R"("tools": [{"type": "function", "name": "f"},
      {"type": "function", "name": "g"}], "tool_choice": )";
  EXPECT_EQ(prompt_of(kPath, asked(two + "\"none\"")).find("\"name\""), std::string::npos);
  const std::string only_f =
      prompt_of(kPath, asked(two + R"({"type": "allowed_tools", "mode": "auto",
                             "tools": [{"type": "function", "name": "f"}]})"));
  EXPECT_NE(only_f.find("\"f\""), std::string::npos);
  EXPECT_EQ(only_f.find("\"g\""), std::string::npos);
#ifdef REPLAYSSM_GRAMMARS
  for (const std::string forced : {"\"required\"", R"({"type": "function", "name": "f"})"}) {
    EXPECT_EQ(post(kPath, asked(two + forced)).status, 200);
    EXPECT_NE(engine_.requests().back().constraint, nullptr);
  }
#endif
}

#ifdef REPLAYSSM_GRAMMARS
TEST_F(Responses, FormatsReachTheEngine) {
  start();
  say("{}");
  for (const std::string format :
       {R"({"type": "json_object"})",
        R"({"type": "json_schema", "name": "n", "strict": true, "schema": {"type": "object",
            "properties": {"a": {"type": "integer"}}, "required": ["a"],
            "additionalProperties": false}})"}) {
    const Response got = post(kPath, asked("\"text\": {\"format\": " + format + "}"));
    ASSERT_EQ(got.status, 200) << got.body;
    EXPECT_NE(engine_.requests().back().constraint, nullptr);
    EXPECT_EQ(got.json().at("text").at("format"), Json::parse(format));
  }
  post(kPath, asked(R"("text": {"format": {"type": "text"}})"));
  EXPECT_EQ(engine_.requests().back().constraint, nullptr);
}
#endif

TEST_F(Responses, EffortReachesTheTemplate) {
  start();
  say("a");
  const auto thinks = [&](const std::string& effort) {
    return prompt_of(kPath, asked("\"reasoning\": {\"effort\": \"" + effort + "\"}"))
        .ends_with("<think>\n");
  };
  EXPECT_TRUE(thinks("low"));
  EXPECT_TRUE(thinks("high"));
  EXPECT_FALSE(thinks("none"));
}

// Each error names the field that the client sent.
TEST_F(Responses, ErrorsNameTheClientsFields) {
  start();
  const struct {
    std::string body, param;
  } cases[] = {
      {R"({})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": 5})", "input"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]})",
       "input[0].content[0].type"},
      {R"({"input": [{"role": "who", "content": "x"}]})", "input[0].role"},
      {R"({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "a"}]})",
       "input[1].type"},
      {R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})",
       "input[0].call_id"},
      {R"({"input": [{"type": "function_call_output", "call_id": "f"}]})", "input[0].output"},
      {asked(R"("max_output_tokens": 0)"), "max_output_tokens"},
      {asked(R"("temperature": -1)"), "temperature"},
      {asked(R"("tools": [{"type": "function"}])"), "tools[0].name"},
      {asked(R"("tools": 5)"), "tools"},
      {asked(kTools + R"(, "tool_choice": {"type": "function", "name": "g"})"), "tool_choice.name"},
      {asked(kTools + R"(, "tool_choice": {"type": "web_search_preview"})"), "tool_choice.type"},
      {asked(R"("tool_choice": "required")"), "tool_choice"},
      {asked(R"("text": {"format": {"type": "yaml"}})"), "text.format.type"},
      {asked(R"("text": {"format": {"type": "json_schema"}})"), "text.format.schema"},
      {asked(R"("reasoning": {"effort": "much"})"), "reasoning.effort"},
      {asked(R"("include": ["message.output_text.logprobs"])"), "include"},
      {asked(R"("top_logprobs": 2)"), "top_logprobs"},
      {asked(R"("background": true)"), "background"},
      {asked(R"("conversation": "c")"), "conversation"},
      {asked(R"("prompt": {"id": "p"})"), "prompt"},
      {asked(R"("messages": [])"), "messages"},
      {asked(R"("n": 2)"), "n"},
      {asked(R"("response_format": {"type": "json_object"})"), "response_format"},
      {asked(R"("max_tokens": 5)"), "max_tokens"},
#ifdef REPLAYSSM_GRAMMARS
      {asked(R"("text": {"format": {"type": "json_schema", "schema": {"type": "object",
          "not": {}}}})"),
       "text.format.schema.not"},
#endif
  };
  for (const auto& one : cases) {
    const Response got = post(kPath, one.body);
    EXPECT_EQ(got.status, 400) << one.body << got.body;
    EXPECT_EQ(got.json().at("error").at("param"), one.param) << got.body;
    EXPECT_EQ(got.json().at("error").at("message").get<std::string>().find(one.param), 0u)
        << got.body;
  }
  EXPECT_TRUE(engine_.requests().empty());
  const std::string long_input(4000, 'x');
  const Json error = post(kPath, R"({"input": ")" + long_input + "\"}").json().at("error");
  EXPECT_EQ(error.at("param"), "input");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
}

TEST_F(Responses, WhatHasNoEffectIsWarnedOf) {
  start();
  say("a");
  const std::string warning =
      post(kPath, asked(R"("user": "u", "truncation": "auto", "max_output_tokens": 1000,
                           "text": {"verbosity": "low"}, "reasoning": {"summary": "auto"})"))
          .header("x-replayssm-warning");
  for (const char* name : {"user: ", "truncation: ", "max_output_tokens: ", "text.verbosity: ",
                           "reasoning.summary: "}) {
    EXPECT_NE(warning.find(name), std::string::npos) << name << " in " << warning;
  }
}

TEST(ResponseStore, KeepsTheLastUsedWithinItsBytes) {
  ResponseStore store(nullptr, 1000);
  const Json text = std::string(200, 'x');
  for (int i = 0; i < 4; ++i) store.put("r" + std::to_string(i), text, Json::array());
  EXPECT_TRUE(store.response("r0"));
  store.put("r4", text, Json::array());
  EXPECT_FALSE(store.response("r1")) << "the one that was not used longest goes";
  EXPECT_TRUE(store.response("r0"));
  EXPECT_TRUE(store.messages("r4"));
  EXPECT_LE(store.bytes(), 1000u);
  store.put("large", std::string(2000, 'x'), Json::array());
  EXPECT_FALSE(store.response("large"));
  EXPECT_TRUE(store.response("r4")) << "one that is too large drives no other out";
  ResponseStore many(nullptr);
  for (size_t i = 0; i <= ResponseStore::kMaxResponses; ++i) {
    many.put(std::to_string(i), 1, Json::array());
  }
  EXPECT_FALSE(many.response("0"));
  EXPECT_TRUE(many.response("1"));
  EXPECT_TRUE(many.erase("1"));
  EXPECT_FALSE(many.erase("1"));
}

TEST(ResponseStore, GivesWayToRequests) {
  const auto memory = std::make_shared<RequestMemory>(int64_t{1} << 20);
  {
    ResponseStore store(memory);
    const Json text = std::string(size_t{60} << 10, 'x');
    for (const char* id : {"r0", "r1", "r2"}) store.put(id, text, Json::array());
    EXPECT_FALSE(store.response("r0")) << "an eighth of the memory is for two";
    EXPECT_TRUE(store.response("r1"));
    EXPECT_EQ(memory->used(), static_cast<int64_t>(store.bytes()));
    MemoryShare request(memory);
    ASSERT_TRUE(request.set(memory->limit() - memory->used()));
    store.put("r3", text, Json::array());
    EXPECT_FALSE(store.response("r2"));
    EXPECT_TRUE(store.response("r3"));
    EXPECT_LE(memory->used(), memory->limit());
  }
  EXPECT_EQ(memory->used(), 0) << "it gives back what it held";
}

}  // namespace
}  // namespace replayssm::server
