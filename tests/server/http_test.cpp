// The server over sockets, beside an engine of scripted tokens.
#include <gtest/gtest.h>

#include <future>

#include "http_fixture.h"

namespace replayssm::server {
namespace {

TEST_F(HttpTest, RoutesAndMethods) {
  start();
  EXPECT_EQ(fetch(port_, "GET", "/health").json().at("status"), "ok");
  EXPECT_EQ(fetch(port_, "GET", "http://127.0.0.1/health?x").json().at("status"), "ok");
  EXPECT_EQ(fetch(port_, "GET", "https://127.0.0.1").status, 200);
  EXPECT_EQ(fetch(port_, "GET", "/v1/models").json().at("data")[0].at("id"), "demo-gdn");
  EXPECT_EQ(fetch(port_, "GET", "/v1/models/demo-gdn").status, 200);
  EXPECT_EQ(fetch(port_, "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(fetch(port_, "GET", "/nothing").status, 404);
  EXPECT_EQ(fetch(port_, "GET", "/nothing").json().at("error").at("code"), "not_found");
  const Response wrong = fetch(port_, "GET", "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "post");
  EXPECT_EQ(fetch(port_, "POST", "/v1/embeddings", "{}").status, 501);
  EXPECT_EQ(fetch(port_, "POST", "/test/preempt", "{}").status, 404);
  const Response page = fetch(port_, "GET", "/");
  EXPECT_NE(page.body.find("<!DOCTYPE html>"), std::string::npos);
  EXPECT_EQ(page.body.find("://"), std::string::npos) << "the page asks for something outside";
}

TEST_F(HttpTest, Completion) {
  start();
  say("one two three", 2);
  const Response response = complete("\"max_tokens\": 50, \"who\": 1", "x-request-id: my-1\r\n");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.header("x-request-id"), "my-1");
  EXPECT_EQ(response.header("x-replayssm-warning"), "who: not known, ignored");
  const Json json = response.json();
  EXPECT_EQ(json.at("object"), "text_completion");
  EXPECT_EQ(json.at("choices")[0].at("text"), "one two three");
  EXPECT_EQ(json.at("choices")[0].at("finish_reason"), "stop");
  const auto n = static_cast<int64_t>(engine_.script.tokens.size());
  EXPECT_EQ(json.at("usage").at("completion_tokens"), n);
  EXPECT_EQ(json.at("usage").at("prompt_tokens_details").at("cached_tokens"), 3);
  EXPECT_EQ(json.at("usage").at("completion_tokens_details").at("accepted_prediction_tokens"),
            n / 2);
  EXPECT_EQ(json.at("replayssm").at("cache_note"), "scripted");
  EXPECT_EQ(engine_.requests()[0].name, "my-1");
  EXPECT_TRUE(logged("request id=my-1 path=/v1/completions status=200"));
}

TEST_F(HttpTest, StreamEqualsWhole) {
  start();
  say("caf\xC3\xA9 \xF0\x9F\x98\x80 and a stop sign STOP more", 3);
  for (const std::string extra :
       {"\"max_tokens\": 100", "\"max_tokens\": 100, \"stop\": \"STOP\"", "\"max_tokens\": 4",
        "\"max_tokens\": 100, \"n\": 3, \"logprobs\": 2", "\"max_tokens\": 9, \"echo\": true",
        "\"max_tokens\": 9, \"echo\": true, \"logprobs\": 1, \"stop\": [\"a\"]"}) {
    SCOPED_TRACE(extra);
    const Json whole = complete(extra).json();
    const Response stream =
        complete(extra + ", \"stream\": true, \"stream_options\": {\"include_usage\": true}");
    ASSERT_EQ(stream.status, 200) << stream.body;
    const auto events = stream.events();
    for (size_t i = 0; i < whole.at("choices").size(); ++i) {
      const Json& choice = whole.at("choices")[i];
      EXPECT_EQ(stream_text(stream, static_cast<int>(i)), choice.at("text").get<std::string>());
      Json tokens = Json::array(), offsets = Json::array();
      Json finish;
      for (const Json& event : events) {
        for (const Json& part : event.at("choices")) {
          if (part.at("index") != i) continue;
          if (!part.at("finish_reason").is_null()) finish = part.at("finish_reason");
          if (part.at("logprobs").is_null()) continue;
          for (const auto& t : part.at("logprobs").at("tokens")) tokens.push_back(t);
          for (const auto& o : part.at("logprobs").at("text_offset")) offsets.push_back(o);
        }
      }
      EXPECT_EQ(finish, choice.at("finish_reason"));
      if (!choice.at("logprobs").is_null()) {
        EXPECT_EQ(tokens, choice.at("logprobs").at("tokens"));
        EXPECT_EQ(offsets, choice.at("logprobs").at("text_offset"));
      }
    }
    EXPECT_EQ(events.back().at("usage"), whole.at("usage"));
  }
}

TEST_F(HttpTest, SeveralPromptsAndChoices) {
  start();
  say("x");
  const Json json = fetch(port_, "POST", "/v1/completions",
                          R"({"prompt": [[1, 2], [3]], "n": 2, "echo": true, "max_tokens": 5})")
                        .json();
  ASSERT_EQ(json.at("choices").size(), 4u);
  EXPECT_EQ(json.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(json.at("choices")[i].at("index"), i);
  EXPECT_NE(json.at("choices")[0].at("text"), json.at("choices")[2].at("text"));
}

// Scoring a text: echo with max_tokens 0.
TEST_F(HttpTest, PromptLogprobs) {
  start();
  say("unseen");
  const Json json = fetch(port_, "POST", "/v1/completions",
                          R"({"prompt": [5, 6, 7], "echo": true, "logprobs": 0, "max_tokens": 0})")
                        .json();
  const Json& choice = json.at("choices")[0];
  EXPECT_EQ(choice.at("text"), tokenizer_->decode(std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs"), Json::parse("[null, -0.25, -0.5]"));
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 0);
}

// What is echoed of a request that goes on from a session is its own prompt, each token with its
// own logprob; and the prompt may be empty.
TEST_F(HttpTest, EchoBehindASession) {
  start();
  say("unseen");
  engine_.session_text = {1, 2};
  const auto echo = [&](const std::string& prompt) {
    return fetch(port_, "POST", "/v1/completions",
                 "{\"prompt\": " + prompt +
                     ", \"session\": \"s\", \"echo\": true, \"logprobs\": 0, \"max_tokens\": 0}")
        .json()
        .at("choices")[0];
  };
  const Json choice = echo("[5, 6, 7]");
  EXPECT_EQ(choice.at("text"), tokenizer_->decode(std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs"), Json::parse("[-0.5, -0.75, -1.0]"));
  EXPECT_EQ(echo("\"\"").at("text"), "");
  EXPECT_EQ(fetch(port_, "POST", "/v1/completions", R"({"prompt": ""})").status, 400);
}

TEST_F(HttpTest, MinusInfinityIsValidJson) {
  start();
  say("a");
  const Response response = complete("\"logprobs\": 2");
  EXPECT_NO_THROW(response.json());
  EXPECT_EQ(response.body.find("inf"), std::string::npos);
}

TEST_F(HttpTest, Chat) {
  start();
  say("<think>\nhm\n</think>\n\nHi there", 2);
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}], "logprobs": true)";
  const Json whole = fetch(port_, "POST", "/v1/chat/completions", body + "}").json();
  const Json& message = whole.at("choices")[0].at("message");
  EXPECT_EQ(message.at("content"), "Hi there");
  EXPECT_EQ(message.at("reasoning_content"), "hm");
  EXPECT_EQ(whole.at("choices")[0].at("logprobs").at("content").size(),
            engine_.script.tokens.size());
  const Response stream =
      fetch(port_, "POST", "/v1/chat/completions", body + ", \"stream\": true}");
  EXPECT_EQ(stream_text(stream), "Hi there");
  const auto events = stream.events();
  EXPECT_EQ(events.front().at("choices")[0].at("delta").at("role"), "assistant");
  size_t n_logprobs = 0;
  for (const Json& event : events) {
    const Json& logprobs = event.at("choices")[0].at("logprobs");
    if (!logprobs.is_null()) n_logprobs += logprobs.at("content").size();
  }
  EXPECT_EQ(n_logprobs, engine_.script.tokens.size());
}

TEST_F(HttpTest, ToolCalls) {
  start();
  say("Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>");
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "f"}}])";
  const Json choice =
      fetch(port_, "POST", "/v1/chat/completions", body + "}").json().at("choices")[0];
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(choice.at("message").at("content"), "Let me see.");
  const Json& call = choice.at("message").at("tool_calls")[0];
  EXPECT_EQ(call.at("function").at("name"), "f");
  EXPECT_EQ(call.at("function").at("arguments"), "{\"x\":1}");
  const Response stream =
      fetch(port_, "POST", "/v1/chat/completions", body + ", \"stream\": true}");
  EXPECT_EQ(stream_text(stream), "Let me see.");
  EXPECT_NE(stream.body.find("\"tool_calls\":[{\"id\""), std::string::npos);
  EXPECT_EQ(stream.events().back().at("choices")[0].at("finish_reason"), "tool_calls");
}

TEST_F(HttpTest, StructuredOutputReachesTheEngine) {
  start();
  say("{}");
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}],
    "response_format": {"type": "json_object"}})";
  const Response response = fetch(port_, "POST", "/v1/chat/completions", body);
#ifdef REPLAYSSM_GRAMMARS
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_NE(engine_.requests()[0].constraint, nullptr);
#else
  EXPECT_EQ(response.status, 501);
#endif
}

TEST_F(HttpTest, ErrorsOfTheEngine) {
  start();
  engine_.refusal = Refusal{Refusal::Kind::kBusy, "", "256 requests wait"};
  const Response busy = complete("\"n\": 1");
  EXPECT_EQ(busy.status, 429);
  EXPECT_EQ(busy.header("retry-after"), "1");
  engine_.refusal = Refusal{Refusal::Kind::kDraining, "", "stopping"};
  EXPECT_EQ(complete("\"n\": 1").status, 503);
  engine_.refusal = Refusal{Refusal::Kind::kUnknownSession, "session", "no such session"};
  EXPECT_EQ(complete("\"session\": \"x\"").status, 404);
  engine_.refusal = Refusal{Refusal::Kind::kInvalid, "max_new_tokens", "is too large"};
  const Response invalid = complete("\"n\": 1");
  EXPECT_EQ(invalid.status, 400);
  EXPECT_EQ(invalid.json().at("error").at("param"), "max_tokens");
  engine_.refusal.reset();
  say("a");
  engine_.script.error = "the logits are not numbers";
  engine_.script.reason = FinishReason::kError;
  const Response failed = complete("\"n\": 1");
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(failed.json().at("error").at("message"), "the logits are not numbers");
  const Response stream = complete("\"stream\": true");
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("\"error\":{\"message\":\"the logits are not numbers\""),
            std::string::npos);
  EXPECT_EQ(stream.body.find("[DONE]"), std::string::npos);
}

TEST_F(HttpTest, ApiKey) {
  AppOptions options;
  options.api_key = "secret";
  start(options);
  say("a");
  EXPECT_EQ(fetch(port_, "GET", "/health").status, 200);
  EXPECT_EQ(fetch(port_, "GET", "/").status, 200);
  for (const char* header : {"", "Authorization: Bearer secre\r\n", "Authorization: secret\r\n",
                             "Authorization: Bearer secrets\r\n", "Authorization: Bearer \r\n"}) {
    const Response response = fetch(port_, "GET", "/v1/models", "", header);
    EXPECT_EQ(response.status, 401) << header;
    EXPECT_EQ(response.header("www-authenticate"), "bearer");
  }
  EXPECT_EQ(fetch(port_, "GET", "/nothing").status, 401);
  EXPECT_EQ(fetch(port_, "GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(fetch(port_, "GET", "/v1/models", "", "authorization: bearer secret\r\n").status, 200);
  EXPECT_EQ(fetch(port_, "GET", "/v1/models", "", "Authorization: Bearer\r\n").status, 401);
  EXPECT_EQ(fetch(port_, "GET", "/v1/models", "", "Authorization: secret\r\n").status, 401);
}

// A client that writes all before it reads is told, and not cut off.
TEST_F(HttpTest, TooLargeABodyIsTakenInAndRefused) {
  ListenerOptions listener;
  listener.max_body_bytes = size_t{8} << 20;
  start({}, listener);
  Client client(port_);
  EXPECT_TRUE(client.send_request("POST", "/v1/completions", std::string(size_t{24} << 20, ' ')));
  EXPECT_EQ(client.read().status, 413);
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpTest, BrokenRequests) {
  ListenerOptions listener;
  listener.max_body_bytes = 1000;
  listener.max_header_bytes = 500;
  start({}, listener);
  EXPECT_EQ(fetch(port_, "POST", "/v1/completions", "{").status, 400);
  EXPECT_EQ(fetch(port_, "POST", "/v1/completions", "").status, 400);
  EXPECT_EQ(fetch(port_, "POST", "/v1/completions", std::string(2000, ' ')).status, 413);
  EXPECT_EQ(fetch(port_, "GET", "/health", "", "X: " + std::string(600, 'x') + "\r\n").status, 431);
  Client garbage(port_);
  garbage.send("what is this\r\n\r\n");
  EXPECT_EQ(garbage.read().status, 400);
  EXPECT_TRUE(garbage.closed());
  // An id that could break a log line or a header is not taken.
  EXPECT_TRUE(fetch(port_, "GET", "/health", "", "x-request-id: a\"b\r\n")
                  .header("x-request-id")
                  .starts_with("req-"));
}

TEST_F(HttpTest, KeepAliveAndPipelining) {
  start();
  say("a");
  Client client(port_);
  for (int i = 0; i < 3; ++i) {
    client.send_request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
    EXPECT_EQ(client.read().status, 200);
  }
  client.send(
      "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: "
      "localhost\r\n\r\n");
  EXPECT_EQ(client.read().json().at("status"), "ok");
  EXPECT_EQ(client.read().json().at("object"), "list");
  client.send_request("GET", "/health", "", "Connection: close\r\n");
  EXPECT_EQ(client.read().status, 200);
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpTest, OtherWaysToSend) {
  start();
  say("word");
  Client expect(port_);
  expect.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
      "Content-Length: 15\r\n\r\n");
  EXPECT_EQ(expect.read().status, 100);
  expect.send(R"({"prompt": "a"})");
  EXPECT_EQ(expect.read().status, 200);
  Client chunked(port_);
  chunked.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "7\r\n{\"promp\r\n8\r\nt\": \"a\"}\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.read().status, 200);
  Client old(port_);
  const std::string body = R"({"prompt": "a", "stream": true})";
  old.send(
      concat("POST /v1/completions HTTP/1.0\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  const Response response = old.read();
  EXPECT_EQ(response.header("transfer-encoding"), "");
  EXPECT_EQ(stream_text(response), "word");
  EXPECT_TRUE(old.closed());
  Client head(port_);
  head.send_request("HEAD", "/health", "", "Connection: close\r\n");
  EXPECT_TRUE(head.wait_for("HTTP/1.1 200"));
}

// A client that leaves ends its request, in silence and in a stream, whatever it had sent behind.
TEST_F(HttpTest, LeavingCancels) {
  start();
  say("never seen");
  engine_.hold();
  RequestId id = 0;
  for (const std::string extra : {"", ", \"stream\": true"}) {
    for (const std::string behind : {"", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
      SCOPED_TRACE(extra + behind);
      Client client(port_);
      client.send_request("POST", "/v1/completions", "{\"prompt\": \"a\"" + extra + "}",
                          concat("x-request-id: leaver-", id + 1, "\r\n"));
      client.send(behind);
      ++id;
      ASSERT_TRUE(engine_.wait_submitted(id));
      client.close();
      EXPECT_TRUE(engine_.wait_cancelled(id));
      EXPECT_TRUE(logged(concat("id=leaver-", id, " path=/v1/completions status=499")));
    }
  }
}

// A queued client that leaves does not touch the one that stays.
TEST_F(HttpTest, OthersGoOn) {
  start();
  say("stays");
  engine_.hold();
  Client stays(port_), leaves(port_);
  stays.send_request("POST", "/v1/completions", R"({"prompt": "a"})");
  ASSERT_TRUE(engine_.wait_submitted(1));
  leaves.send_request("POST", "/v1/completions", R"({"prompt": "b"})");
  ASSERT_TRUE(engine_.wait_submitted(2));
  leaves.close();
  EXPECT_TRUE(engine_.wait_cancelled(2));
  engine_.release();
  EXPECT_EQ(stays.read().json().at("choices")[0].at("text"), "stays");
}

// Pieces of a stream that come fast are joined; the first tokens do not wait for the head before.
TEST_F(HttpTest, TheFirstTokensGoAtOnce) {
  ListenerOptions listener;
  listener.part_seconds = 3600;
  start({}, listener);
  say("x");
  engine_.hold();
  Client client(port_);
  client.send_request("POST", "/v1/chat/completions",
                      R"({"messages": [{"role": "user", "content": "a"}], "stream": true})");
  ASSERT_TRUE(engine_.wait_submitted(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the head goes
  engine_.release();
  EXPECT_TRUE(client.wait_for(R"("content":"x")"));
}

// What is joined does not wait once nothing more can come.
TEST_F(HttpTest, TheLastTokensGoAtOnce) {
  ListenerOptions listener;
  listener.part_seconds = 3600;
  start({}, listener);
  say("in parts");
  engine_.script.pause = std::chrono::milliseconds(20);
  Client client(port_);
  client.send_request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  ASSERT_TRUE(engine_.wait_submitted(1));
  EXPECT_TRUE(client.wait_for("[DONE]"));
}

// Long texts and large schemas take a handler seconds.
TEST_F(HttpTest, StreamsDoNotWaitForHandlers) {
  start();
  say("x");
  engine_.hold();
  std::promise<void> done;
  const std::shared_future<void> wait = done.get_future().share();
  HttpListener listener({}, [&](HttpRequest request) -> Reply {
    if (request.path != "/slow") return app_->handle(std::move(request));
    wait.wait();
    return HttpResponse{};
  });
  Client stream(listener.port());
  stream.send_request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  ASSERT_TRUE(engine_.wait_submitted(1));
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(std::make_unique<Client>(listener.port()));
    slow.back()->send_request("POST", "/slow", "{}");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  engine_.release();
  EXPECT_TRUE(stream.wait_for("[DONE]"));
  done.set_value();
  for (auto& client : slow) EXPECT_EQ(client->read().status, 200);
}

// The engine does not wait for a client that does not read; the client gets all when it does.
TEST_F(HttpTest, SlowReader) {
  start();
  std::string text;
  for (int i = 0; i < 150; ++i) text += "x";
  engine_.script.tokens.assign(150, tokenizer_->encode("x")[0]);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<Client>(port_));
    clients.back()->send_request("POST", "/v1/completions",
                                 R"({"prompt": "a", "max_tokens": 150, "stream": true})");
  }
  ASSERT_TRUE(engine_.wait_submitted(20));
  engine_.drain(10);
  for (auto& client : clients) EXPECT_EQ(stream_text(client->read()), text);
}

TEST_F(HttpTest, Draining) {
  start();
  say("to the end");
  engine_.hold();
  Client client(port_);
  client.send_request("POST", "/v1/completions", R"({"prompt": "a"})");
  ASSERT_TRUE(engine_.wait_submitted(1));
  listener_->stop_accepting();
  engine_.release();
  engine_.drain(10);
  listener_->wait_idle(10);
  EXPECT_EQ(client.read().json().at("choices")[0].at("text"), "to the end");
}

TEST_F(HttpTest, Tokens) {
  start();
  const Json tokens = fetch(port_, "POST", "/tokenize", R"({"prompt": "a bc"})").json();
  EXPECT_EQ(tokens.at("tokens").get<std::vector<int32_t>>(), tokenizer_->encode("a bc"));
  const Json text =
      fetch(port_, "POST", "/detokenize", dump_json({{"tokens", tokens.at("tokens")}})).json();
  EXPECT_EQ(text.at("prompt"), "a bc");
  EXPECT_GT(fetch(port_, "POST", "/tokenize", R"({"messages": [{"role": "user", "content": "a"}]})")
                .json()
                .at("count"),
            1);
  EXPECT_EQ(fetch(port_, "POST", "/detokenize", R"({"tokens": [5000]})").status, 400);
  EXPECT_EQ(fetch(port_, "POST", "/detokenize", R"({"token": [5]})").status, 400);
}

TEST_F(HttpTest, Sessions) {
  start();
  say("a");
  ASSERT_EQ(complete("\"n\": 1", "x-request-id: first\r\n").status, 200);
  EXPECT_EQ(fetch(port_, "POST", "/v1/sessions", R"({"name": "s", "request": "first"})").status,
            200);
  EXPECT_EQ(fetch(port_, "POST", "/v1/sessions/restore", R"({"name": "s"})").status, 200);
  EXPECT_EQ(
      fetch(port_, "POST", "/v1/sessions/fork", R"({"from": "s", "to": "t", "length": 3})").status,
      200);
  EXPECT_EQ(fetch(port_, "DELETE", "/v1/sessions/t").status, 200);
  EXPECT_EQ(engine_.calls,
            (std::vector<std::string>{"save 1 s", "restore s", "fork s t 3", "drop t"}));
  EXPECT_EQ(fetch(port_, "POST", "/v1/sessions", R"({"name": "s", "request": "none"})").status,
            404);
  EXPECT_EQ(fetch(port_, "POST", "/v1/sessions/restore", R"({"name": "../s"})").status, 400);
  EXPECT_EQ(fetch(port_, "DELETE", "/v1/sessions/..").status, 400);
  const std::pair<Refusal::Kind, int> statuses[] = {{Refusal::Kind::kInvalid, 400},
                                                    {Refusal::Kind::kUnknownSession, 404},
                                                    {Refusal::Kind::kUnknownRequest, 404},
                                                    {Refusal::Kind::kConflict, 409},
                                                    {Refusal::Kind::kFailed, 500}};
  for (const auto& [kind, status] : statuses) {
    engine_.session_refusal = Refusal{kind, "", "s: the checksum is wrong"};
    const Response refused = fetch(port_, "POST", "/v1/sessions/restore", R"({"name": "s"})");
    EXPECT_EQ(refused.status, status);
    EXPECT_EQ(refused.json().at("error").at("message"), "s: the checksum is wrong");
  }
}

TEST_F(HttpTest, TestHooks) {
  AppOptions options;
  options.test_hooks = true;
  start(options);
  say("a");
  ASSERT_EQ(complete("\"scripted_drafts\": [[1, 2]]", "x-request-id: r\r\n").status, 200);
  EXPECT_EQ(engine_.requests()[0].scripted_drafts.size(), 1u);
  EXPECT_EQ(fetch(port_, "POST", "/test/preempt", R"({"request": "r"})").status, 200);
  EXPECT_EQ(fetch(port_, "POST", "/test/state", R"({"request": "r"})").json(),
            Json::parse(R"({"hash": "0123456789abcdef", "tokens": [1, 2]})"));
  EXPECT_EQ(fetch(port_, "POST", "/test/drop_cache", "{}").status, 200);
}

TEST_F(HttpTest, MetricsAndStats) {
  start();
  say("a");
  ASSERT_EQ(complete("\"n\": 1").status, 200);
  ASSERT_EQ(complete("\"n\": 0").status, 400);
  ASSERT_TRUE(logged("status=400"));
  const std::string text = fetch(port_, "GET", "/metrics").body;
  EXPECT_NE(text.find("vllm:generation_tokens_total{model_name=\"demo-gdn\"} 77\n"),
            std::string::npos);
  EXPECT_NE(text.find("replayssm_memory_bytes{purpose=\"KV pages\"} 100\n"), std::string::npos);
  EXPECT_NE(
      text.find("replayssm_http_requests_total{route=\"/v1/completions\",status=\"400\"} 1\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("vllm:e2e_request_latency_seconds_count{model_name=\"demo-gdn\"} 1\n"),
            std::string::npos);
  const Json stats = fetch(port_, "GET", "/stats").json();
  EXPECT_EQ(stats.at("slots_free"), 6);
  EXPECT_EQ(stats.at("memory").at("purposes").at("weights"), 600);
}

TEST(Listener, Loopback) {
  for (const char* host : {"127.0.0.1", "::1", "localhost", "127.3.4.5"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "example"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

TEST(Listener, PortInUseIsNamed) {
  const auto handler = [](HttpRequest) -> Reply { return HttpResponse(); };
  const HttpListener first({}, handler);
  ListenerOptions options;
  options.port = first.port();
  try {
    const HttpListener second(options, handler);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(concat("--port ", options.port)), std::string::npos);
  }
}

}  // namespace
}  // namespace replayssm::server
