// What those may do who mean harm, or read slowly, or ask for what cannot be.
#include <gtest/gtest.h>

#include <future>

#include "http_fixture.h"

namespace replayssm::server {
namespace {

// What proxies and servers read differently is refused, and the connection ends with it.
TEST_F(HttpTest, FramingThatProxiesReadDifferently) {
  start();
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string rest =
      "\r\n5\r\nhello\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const std::string& head : {
           post + "Transfer-Encoding: xchunked\r\n",
           post + "Transfer-Encoding: chunked, identity\r\n",
           post + "Transfer-Encoding: gzip, chunked\r\n",
           post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
           post + "Content-Length: 5\r\nContent-Length: 5\r\n",
           post + "Content-Length: 5, 5\r\n",
           post + "Content-Length: +5\r\n",
           post + "Content-Length : 5\r\n",
           post + " folded: line\r\n",
           post + "Host: localhost\r\n",
           post + "X: a\nContent-Length: 5\r\n",
           post + "X: a\rb\r\n",
           post + "X Y: a\r\n",
           post + "no colon\r\n",
           std::string("POST /v1/completions HTTP/1.1\r\n"),
           std::string("POST /v1/completions HTTP/1.1\r\nHost:\r\n"),
           std::string("POST /v1/completions HTTP/1.1\r\nHost: a, b\r\n"),
           std::string("POST /a b HTTP/1.1\r\nHost: localhost\r\n"),
           std::string("POST  /a HTTP/1.1\r\nHost: localhost\r\n"),
           std::string("POST /a HTTP/2.0\r\nHost: localhost\r\n"),
           std::string("POST a HTTP/1.1\r\nHost: localhost\r\n"),
           std::string("POST http://other/a HTTP/1.1\r\nHost: localhost\r\n"),
       }) {
    SCOPED_TRACE(head);
    Client client(port_);
    client.send(head + rest);
    EXPECT_EQ(client.read().status, 400);
    EXPECT_EQ(client.read().status, 0) << "what came behind was taken for a request";
    EXPECT_TRUE(client.closed());
  }
  // Behind a body: JSON must end where the body does, and what is no request ends the connection.
  EXPECT_EQ(fetch(port_, "POST", "/v1/completions", R"({"prompt": "a"} {"prompt": "b"})").status,
            400);
  say("a");
  Client client(port_);
  client.send_request("POST", "/v1/completions", R"({"prompt": "a"})");
  client.send("garbage\r\n\r\n");
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 400);
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(logged("refused id="));
}

// A page of another site reaches this server by a name of its own (DNS rebinding) or by requests
// that browsers send without asking first.
TEST_F(HttpTest, PagesOfOtherSitesAreRefused) {
  ListenerOptions listener;
  listener.access.check_host = true;
  start({}, listener);
  say("a");
  const std::string body = R"({"prompt": "a"})";
  const auto post = [&](const std::string& host, const std::string& headers) {
    Client client(port_);
    client.send(concat("POST /v1/completions HTTP/1.1\r\nHost: ", host, "\r\n", headers,
                       "Content-Length: ", body.size(), "\r\n\r\n", body));
    return client.read();
  };
  const std::string json = "Content-Type: application/json\r\n";
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "10.1.2.3", "a.localhost"}) {
    EXPECT_EQ(post(host, json).status, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "[::1].evil.example"}) {
    EXPECT_NE(post(host, json).status, 200) << host;
  }
  EXPECT_EQ(post("evil.example", json).status, 403);
  for (const char* type : {"text/plain", "multipart/form-data; boundary=x", "text/json"}) {
    EXPECT_EQ(post("localhost", concat("Content-Type: ", type, "\r\n")).status, 415) << type;
  }
  const std::string form = "Content-Type: application/x-www-form-urlencoded\r\n";
  EXPECT_EQ(post("localhost", form).status, 200) << "curl -d";
  EXPECT_EQ(post("localhost", form + "Sec-Fetch-Site: cross-site\r\n").status, 415);
  EXPECT_EQ(post("localhost", form + "Origin: http://localhost\r\n").status, 415);
  EXPECT_EQ(post("localhost", "").status, 200);
  EXPECT_EQ(post("localhost", "Content-Type: application/json; charset=utf-8\r\n").status, 200);
  for (const char* origin : {"https://evil.example", "null", "http://localhost:81", "file://"}) {
    const Response refused = post("localhost", concat(json, "Origin: ", origin, "\r\n"));
    EXPECT_EQ(refused.status, 403) << origin;
    EXPECT_EQ(refused.header("access-control-allow-origin"), "");
  }
  // The page of this server itself.
  EXPECT_EQ(post("localhost:8000", json + "Origin: http://localhost:8000\r\n").status, 200);
  EXPECT_EQ(post("localhost", json + "Origin: http://localhost:80\r\n").status, 200);
  const Response page = fetch(port_, "GET", "/");
  EXPECT_EQ(page.header("x-frame-options"), "deny");
  EXPECT_NE(page.header("content-security-policy").find("frame-ancestors 'none'"),
            std::string::npos);
}

TEST_F(HttpTest, PagesThatAreNamedMayAsk) {
  AppOptions options;
  options.api_key = "secret";
  ListenerOptions listener;
  listener.access = {true, {"models.example"}, {"https://chat.example"}};
  start(options, listener);
  say("a");
  const std::string origin = "Origin: https://chat.example\r\n";
  const Response asked =
      fetch(port_, "OPTIONS", "/v1/chat/completions", "",
            origin +
                "Access-Control-Request-Method: POST\r\n"
                "Access-Control-Request-Headers: authorization, content-type\r\n");
  EXPECT_EQ(asked.status, 204) << "a preflight bears no key";
  EXPECT_EQ(asked.header("access-control-allow-origin"), "https://chat.example");
  EXPECT_NE(asked.header("access-control-allow-methods").find("post"), std::string::npos);
  EXPECT_EQ(asked.header("access-control-allow-headers"), "authorization, content-type");
  EXPECT_EQ(asked.header("vary"), "origin");
  const std::string key = "Authorization: Bearer secret\r\n";
  for (const auto& [extra, status] : {std::pair<std::string, int>{"\"n\": 1", 200},
                                      {"\"n\": 0", 400},
                                      {"\"stream\": true", 200}}) {
    const Response response = complete(extra, origin + key);
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(response.header("access-control-allow-origin"), "https://chat.example") << extra;
  }
  EXPECT_EQ(complete("\"n\": 1", origin).status, 401);
  EXPECT_EQ(complete("\"n\": 1", origin).header("access-control-allow-origin"),
            "https://chat.example");
  EXPECT_EQ(fetch(port_, "OPTIONS", "/v1/models", "",
                  "Origin: https://evil.example\r\nAccess-Control-Request-Method: GET\r\n")
                .status,
            403);
  Client client(port_);
  client.send("GET /health HTTP/1.1\r\nHost: Models.Example:80\r\n\r\n");
  EXPECT_EQ(client.read().status, 200);
}

// /health answers whatever the handlers are at.
TEST_F(HttpTest, HealthDoesNotWaitForHandlers) {
  start();
  std::promise<void> done;
  const std::shared_future<void> wait = done.get_future().share();
  HttpListener listener({}, [&](HttpRequest request) -> Reply {
    if (request.path != "/slow") return app_->handle(std::move(request));
    wait.wait();
    return HttpResponse{};
  });
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 8; ++i) {
    slow.push_back(std::make_unique<Client>(listener.port()));
    slow.back()->send_request("POST", "/slow", "{}");
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(fetch(listener.port(), "GET", "/health").status, 200);
  done.set_value();
  for (auto& client : slow) EXPECT_EQ(client->read().status, 200);
}

// A large answer is not cut while its reader goes on, however long that takes in all.
TEST_F(HttpTest, ALargeAnswerIsSentAsLongAsItMoves) {
  ListenerOptions listener;
  listener.write_seconds = 2;
  start({}, listener);
  const std::string large(size_t{24} << 20, 'x');
  HttpListener server(listener, [&](HttpRequest) -> Reply {
    HttpResponse response;
    response.body = large;
    return response;
  });
  Client client(server.port());
  client.send_request("GET", "/");
  EXPECT_EQ(client.read_slowly(64, std::chrono::milliseconds(60)).size(), large.size());
}

TEST_F(HttpTest, AReaderThatStandsStillIsDroppedAndTheLogSaysHowFarItWas) {
  ListenerOptions listener;
  listener.write_seconds = 0.2;
  start({}, listener);
  listener.log = [this](const std::string& line) {
    const std::lock_guard lock(log_mutex_);
    log_.push_back(line);
  };
  HttpListener server(listener, [&](HttpRequest) -> Reply {
    HttpResponse response;
    response.body.assign(size_t{64} << 20, 'x');
    return response;
  });
  Client client(server.port());
  client.send_request("GET", "/large", "", "x-request-id: still\r\n");
  EXPECT_TRUE(logged("dropped id=still path=/large sent_bytes="));
  EXPECT_TRUE(logged("it reads too slowly"));
}

TEST_F(HttpTest, SilentStreamsGetComments) {
  ListenerOptions listener;
  listener.keep_alive_seconds = 0.05;
  start({}, listener);
  say("late");
  engine_.hold();
  Client client(port_);
  client.send_request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  EXPECT_TRUE(client.wait_for(": keep-alive\n\n"));
  engine_.release();
  EXPECT_EQ(stream_text(client.read()), "late");
}

// The line of a request whose client left has what was really done for it, and why it ended.
TEST_F(HttpTest, ACancelledRequestsLineHasItsNumbers) {
  start();
  engine_.script.tokens.assign(150, tokenizer_->encode("x")[0]);
  engine_.script.pause = std::chrono::milliseconds(5);
  Client client(port_);
  client.send_request("POST", "/v1/completions",
                      R"({"prompt": "a b c", "max_tokens": 150, "stream": true, "who": 1})",
                      "x-request-id: left\r\n");
  ASSERT_TRUE(client.wait_for("\"text\":\"x"));
  client.close();
  ASSERT_TRUE(logged("id=left path=/v1/completions status=499"));
  const std::lock_guard lock(log_mutex_);
  const std::string& line = log_.back();
  EXPECT_EQ(line.find("prompt_tokens=0"), std::string::npos) << line;
  EXPECT_EQ(line.find("new_tokens=0"), std::string::npos) << line;
  EXPECT_NE(line.find("cancelled=true"), std::string::npos) << line;
  EXPECT_NE(line.find("reason=\"the client closed the connection; "), std::string::npos) << line;
  EXPECT_NE(line.find("warnings=\"who: not known, ignored\""), std::string::npos) << line;
}

// The prompt's part of an answer comes once, with the first choice.
TEST_F(HttpTest, PromptLogprobsComeOnceAndWithinALimit) {
  start();
  say("a");
  const std::string asked = R"("n": 3, "max_tokens": 2, "prompt_logprobs": 20)";
  const Json choices = complete(asked).json().at("choices");
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_TRUE(choices[0].contains("prompt_logprobs"));
  EXPECT_FALSE(choices[1].contains("prompt_logprobs"));
  EXPECT_FALSE(choices[2].contains("prompt_logprobs"));
  std::string prompts;
  for (int i = 0; i < 128; ++i) {
    std::string ids;
    for (int j = 0; j < 150; ++j) ids += (j == 0 ? "" : ",") + std::to_string(j);
    prompts += (i == 0 ? "[" : ",[") + ids + "]";
  }
  const Response refused =
      fetch(port_, "POST", "/v1/completions",
            "{\"prompt\": [" + prompts + "], \"max_tokens\": 1, \"prompt_logprobs\": 20}");
  EXPECT_EQ(refused.status, 400) << refused.body.substr(0, 200);
  EXPECT_EQ(refused.json().at("error").at("param"), "prompt_logprobs");
}

// Answers that nobody reads end their own request, not the server's memory.
TEST_F(HttpTest, AnswersThatWaitAreBounded) {
  AppOptions options;
  options.memory = std::make_shared<RequestMemory>(int64_t{80} << 10);
  start(options);
  engine_.script.tokens.assign(150, tokenizer_->encode("x")[0]);
  const Response response = complete(R"("max_tokens": 150, "logprobs": 20)");
  EXPECT_EQ(response.status, 500);
  EXPECT_NE(response.body.find("fills the memory"), std::string::npos) << response.body;
  for (int i = 0; i < 1000 && options.memory->used() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(options.memory->used(), 0);
  EXPECT_EQ(complete(R"("max_tokens": 10)").status, 200);
}

TEST_F(HttpTest, WhatCanNeverFitIs400) {
  AppOptions options;
  options.max_queued = 4;  // beside 8 that run
  start(options);
  say("a");
  const auto prompts = [](int n) {
    std::string list;
    for (int i = 0; i < n; ++i) list += i == 0 ? "[1]" : ",[1]";
    return "{\"prompt\": [" + list + "], \"max_tokens\": 1}";
  };
  EXPECT_EQ(fetch(port_, "POST", "/v1/completions", prompts(12)).status, 200);
  const Response refused = fetch(port_, "POST", "/v1/completions", prompts(13));
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("--max-queued"), std::string::npos);
  // A text that cannot be so few tokens is refused before it is made into tokens.
  const Response long_text = fetch(port_, "POST", "/tokenize",
                                   "{\"prompt\": \"" + std::string(size_t{4} << 20, 'x') + "\"}");
  EXPECT_EQ(long_text.status, 400);
  EXPECT_NE(long_text.body.find("--max-positions"), std::string::npos) << long_text.body;
}

TEST_F(HttpTest, ModelsUnderSeveralNames) {
  start({}, {}, {"org/demo", "other"});
  say("a");
  const Json list = fetch(port_, "GET", "/v1/models").json().at("data");
  ASSERT_EQ(list.size(), 2u);
  for (const char* field :
       {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}) {
    EXPECT_TRUE(list[1].contains(field)) << field;
  }
  EXPECT_EQ(fetch(port_, "GET", "/v1/models/org%2Fdemo").json().at("id"), "org/demo");
  EXPECT_EQ(fetch(port_, "GET", "/v1/models/org/demo").status, 200);
  EXPECT_EQ(fetch(port_, "GET", "/v1/models/org%2").status, 400);
  EXPECT_EQ(complete(R"("model": "other")").json().at("model"), "org/demo");
  EXPECT_EQ(complete(R"("model": "demo-gdn")").status, 404);
}

TEST_F(HttpTest, WhatRoutersAsk) {
  start();
  EXPECT_EQ(fetch(port_, "GET", "/ready").status, 200);
  EXPECT_EQ(fetch(port_, "GET", "/get_load").json().at("load"), 0);
  EXPECT_EQ(fetch(port_, "GET", "/server_info").json().at("max_model_len"), 200);
  EXPECT_EQ(fetch(port_, "GET", "/model_info").json().at("is_generation"), true);
  const Json sessions = fetch(port_, "GET", "/v1/sessions").json().at("data");
  EXPECT_EQ(sessions[0], Json::parse(R"({"name":"a","object":"session","tokens":7,"saved":true})"));
  EXPECT_EQ(sessions[1].at("tokens"), nullptr);
  app_->begin_drain();
  EXPECT_EQ(fetch(port_, "GET", "/ready").status, 503);
  EXPECT_EQ(fetch(port_, "GET", "/health").status, 503);
}

}  // namespace
}  // namespace replayssm::server
