// The built binary with a demo model and drafts on, over raw sockets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <thread>

#include "../cli/process.h"
#include "../model/testing.h"
#include "client.h"

namespace replayssm::server {
namespace {

// A server process on a port of its own; stopped by SIGTERM at the end.
class Process {
 public:
  explicit Process(const std::vector<std::string>& extra) {
    const std::string binary = REPLAYSSM_BINARY_DIR "/replayssm";
    const std::string models = REPLAYSSM_SOURCE_DIR "/models";
    std::vector<std::string> arguments = {binary, "serve",    "-m", models + "/demo-gdn", "--port",
                                          "0",    "--memory", "1",  "--threads",          "2"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    std::vector<char*> argv;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const std::string out = folder_.file("out"), err = folder_.file("err");
    pid_ = fork();
    if (pid_ == 0) {
      const int flags = O_WRONLY | O_CREAT | O_TRUNC;
      if (dup2(open(out.c_str(), flags, 0600), 1) < 0) _exit(126);
      if (dup2(open(err.c_str(), flags, 0600), 2) < 0) _exit(126);
      execv(binary.c_str(), argv.data());
      _exit(127);
    }
    for (int i = 0; i < 3000 && port_ == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const std::string text = read_text(out);
      const size_t at = text.find("http://127.0.0.1:");
      if (at != std::string::npos && text.ends_with('\n')) {
        port_ = static_cast<uint16_t>(std::stoi(text.substr(at + 17)));
      }
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) break;
    }
    EXPECT_NE(port_, 0) << read_text(err);
  }
  ~Process() {
    if (pid_ > 0) stop();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  uint16_t port() const { return port_; }
  std::string log() const { return read_text(folder_.file("err")); }

  // SIGTERM; the second one would end it at once.
  void terminate() {
    if (!std::exchange(terminated_, true)) kill(pid_, SIGTERM);
  }
  // The exit code after SIGTERM.
  int stop() {
    int status = 0;
    terminate();
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  TempFolder folder_;
  pid_t pid_ = -1;
  bool terminated_ = false;
  uint16_t port_ = 0;
};

std::string request(const std::string& extra) {
  return R"({"prompt": "The purpose of this chapter is to", )" + extra + "}";
}

Json complete(uint16_t port, const std::string& extra) {
  const Response response = fetch(port, "POST", "/v1/completions", request(extra));
  EXPECT_EQ(response.status, 200) << response.body;
  return response.json();
}

// What a client compares: text and logprobs.
Json answer(const Json& response) { return response.at("choices")[0]; }

TEST(Serve, SameAnswerWhateverRunsBeside) {
  Process server({"--draft", REPLAYSSM_SOURCE_DIR "/models/demo-draft", "--test-hooks"});
  const uint16_t port = server.port();
  const std::string asked = R"("max_tokens": 60, "temperature": 0.7, "seed": 5, "logprobs": 2)";
  const Json cold = answer(complete(port, asked));
  EXPECT_FALSE(cold.at("text").get<std::string>().empty());
  // Warm; without drafts; with others; with wrong drafts; in a stream.
  EXPECT_EQ(answer(complete(port, asked)), cold);
  EXPECT_EQ(answer(complete(port, asked + R"(, "draft": "none")")), cold);
  EXPECT_EQ(answer(complete(port, asked + R"(, "draft": "ngram")")), cold);
  EXPECT_EQ(answer(complete(port, asked + R"(, "scripted_drafts": [[1, 2, 3], [], [4], [5, 6]])")),
            cold);
  std::vector<std::thread> threads;
  std::vector<Json> answers(8);
  for (size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] { answers[i] = answer(complete(port, asked)); });
  }
  for (auto& thread : threads) thread.join();
  for (const Json& one : answers) EXPECT_EQ(one, cold);
  const Response stream =
      fetch(port, "POST", "/v1/completions", request(asked + R"(, "stream": true)"));
  std::string text;
  for (const Json& event : stream.events()) {
    text += event.at("choices")[0].at("text").get<std::string>();
  }
  EXPECT_EQ(text, cold.at("text").get<std::string>());
  EXPECT_EQ(server.stop(), 0);
  EXPECT_NE(server.log().find("path=/v1/completions status=200"), std::string::npos);
}

TEST(Serve, ClientsThatLeaveLeaveNothingBehind) {
  Process server({"--draft", "ngram"});
  const uint16_t port = server.port();
  complete(port, R"("max_tokens": 4)");
  const Json before = fetch(port, "GET", "/stats").json();
  for (int i = 0; i < 30; ++i) {
    Client client(port);
    client.send_request("POST", "/v1/completions",
                        request(R"("max_tokens": 2000, "ignore_eos": true, "stream": )" +
                                std::string(i % 2 == 0 ? "true" : "false")));
    if (i % 6 == 0) client.wait_for("data: ");
  }
  Json after;
  for (int i = 0; i < 1000; ++i) {
    after = fetch(port, "GET", "/stats").json();
    if (after.at("running") == 0 && after.at("queued") == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(after.at("running"), 0);
  EXPECT_EQ(after.at("rings_free"), before.at("rings_free"));
  EXPECT_EQ(server.stop(), 0);
}

TEST(Serve, SigtermFinishesWhatIsUnderWay) {
  Process server({});
  Client client(server.port());
  client.send_request("POST", "/v1/completions",
                      request(R"("max_tokens": 300, "ignore_eos": true, "stream": true)"));
  ASSERT_TRUE(client.wait_for("data: "));
  server.terminate();
  const Response response = client.read();
  EXPECT_EQ(response.events().back().at("choices")[0].at("finish_reason"), "length");
  EXPECT_EQ(server.stop(), 0);
}

TEST(Serve, IsTimedOverItsStreams) {
  Process server({"--draft", "ngram", "--draft-tokens", "3"});
  const TempFolder folder;
  const std::string url = "http://localhost:" + std::to_string(server.port());
  const Outcome got = run_bench({"serve", "--url", url, "--batch", "1,4", "--window", "1,4",
                                 "--tokens", "200", "--json", folder.file("bench.json")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const Json json = Json::parse(read_text(folder.file("bench.json")));
  ASSERT_EQ(json.at("cells").size(), 4u);
  for (const Json& cell : json.at("cells")) {
    EXPECT_GT(cell.at("tokens_per_second"), 0);
    EXPECT_GT(cell.at("total_tokens_per_second"), 0);
    EXPECT_EQ(cell.at("drafted") > 0, cell.at("window") > 1);
  }
  expect_bench_fails(1, {"serve", "--url", "http://127.0.0.1:1"}, {"http://127.0.0.1:1"});
  expect_bench_fails(1, {"serve", "--url", "https://there"}, {"https://there"});
  EXPECT_EQ(server.stop(), 0);
}

// A key as editors and spreadsheets leave it in a file.
TEST(Serve, AKeyFileWithBlanksAndAByteOrderMark) {
  const TempFolder folder;
  write_text(folder.file("key"), "\xef\xbb\xbf secret \r\n");
  Process server({"--api-key-file", folder.file("key")});
  EXPECT_EQ(fetch(server.port(), "GET", "/v1/models").status, 401);
  const std::string header = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(fetch(server.port(), "GET", "/v1/models", "", header).status, 200);
}

// Nothing is under way while the model is loaded: a stop waits for nothing.
TEST(Serve, StopsWhileItLoads) {
  const TempFolder folder;
  const std::string pipe = folder.file("template");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string binary = REPLAYSSM_BINARY_DIR "/replayssm";
  const pid_t pid = fork();
  if (pid == 0) {
    execl(binary.c_str(), binary.c_str(), "serve", "-m", REPLAYSSM_SOURCE_DIR "/models/demo-gdn",
          "--port", "0", "--memory", "1", "--threads", "1", "--chat-template", pipe.c_str(),
          nullptr);
    _exit(127);
  }
  int writer = -1;  // the server has begun to read: it waits for what is not written
  for (int i = 0; i < 3000 && writer < 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    writer = open(pipe.c_str(), O_WRONLY | O_NONBLOCK);
  }
  EXPECT_GE(writer, 0);
  kill(pid, SIGTERM);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  close(writer);
}

// An answer that would go on for long is cut at --drain-seconds.
TEST(Serve, SigtermIsBounded) {
  Process server({"--drain-seconds", "0"});
  Client client(server.port());
  client.send_request("POST", "/v1/completions",
                      request(R"("max_tokens": 30000, "ignore_eos": true, "stream": true)"));
  ASSERT_TRUE(client.wait_for("data: "));
  EXPECT_EQ(server.stop(), 0);
  const Response response = client.read();
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
  EXPECT_NE(response.body.find("the server is stopping"), std::string::npos);
}

TEST(Serve, WrongFlags) {
  expect_fails(2, {"serve", "--test-hooks", "--host", "0.0.0.0"}, {"--test-hooks", "0.0.0.0"});
  expect_fails(2, {"serve", "--port", "65536"}, {"--port"});
  expect_fails(2, {"serve", "--port", "0", "--max-positions", "1"}, {"--max-positions"});
  expect_fails(2, {"serve", "--chunk-tokens", "100"}, {"--chunk-tokens"});
  expect_fails(2, {"serve", "--snapshot-interval", "-1"}, {"--snapshot-interval"});
  expect_fails(1, {"serve", "--api-key-file", "/none"}, {"/none"});
  expect_fails(1, {"serve", "--port", "0", "--chat-template", "/none"}, {"/none"});
  expect_fails(1, {"serve", "--host", "nowhere"}, {"--host nowhere"});
  const TempFolder folder;
  write_text(folder.file("t.jinja"), "a\n{% include 'x' %}");
  expect_fails(1, {"serve", "--port", "0", "--chat-template", folder.file("t.jinja")},
               {"t.jinja:2: "});
  // An empty value is a variable that was not set, and never "the default" or "none".
  for (const char* flag : {"--api-key", "--api-key-file", "-m", "--draft", "--host", "--cache-dir",
                           "--trace", "--chat-template", "--served-model-name", "--allowed-hosts",
                           "--cors-origin", "--device", "--checkpoint-dtype"}) {
    expect_fails(2, {"serve", flag, ""}, {"empty"});
  }
  // Keys that no client can send, or that are two.
  for (const char* key : {" ", "a b", "a\nb", "\xc3\xa9", "\x7f"}) {
    expect_fails(2, {"serve", "--api-key", key}, {"--api-key", "visible ASCII"});
    write_text(folder.file("key"), key);
    expect_fails(2, {"serve", "--api-key-file", folder.file("key")}, {"key", "visible ASCII"});
  }
  write_text(folder.file("key"), "\xef\xbb\xbf\r\n");
  expect_fails(2, {"serve", "--api-key-file", folder.file("key")}, {"visible ASCII"});
  expect_fails(2, {"generate", "-m", ""}, {"empty"});
}

TEST(Serve, Chat) {
  Process server({});
  const Json json =
      fetch(server.port(), "POST", "/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": "What is apt?"}], "max_tokens": 20,
                "temperature": 0})")
          .json();
  EXPECT_FALSE(json.at("choices")[0].at("message").at("content").get<std::string>().empty());
#ifdef REPLAYSSM_GRAMMARS
  const Json forced = fetch(server.port(), "POST", "/v1/chat/completions", R"({
      "messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "temperature": 0,
      "draft": "ngram",
      "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"kind": {"enum": ["deb", "rpm"]},
          "ok": {"type": "boolean"}}, "required": ["kind", "ok"]}}}})")
                          .json();
  const Json value =
      Json::parse(forced.at("choices")[0].at("message").at("content").get<std::string>());
  EXPECT_TRUE(value.at("ok").is_boolean());
  EXPECT_TRUE(value.at("kind") == "deb" || value.at("kind") == "rpm");
#endif
}

}  // namespace
}  // namespace replayssm::server
