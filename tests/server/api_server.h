// A server beside an engine of scripted tokens, for the APIs that stand on chats.
#pragma once

#include <gtest/gtest.h>

#include "client.h"
#include "fake_engine.h"
#include "server/app.h"
#include "server/chat/chat_template.h"
#include "server/http/listener.h"

namespace replayssm::server {

class ApiServer : public ::testing::Test {
 protected:
  void start(AppOptions options = {}, int64_t max_positions = 400) {
    auto served =
        load_served_model(REPLAYSSM_SOURCE_DIR "/models/demo-gdn", "", 4096, max_positions, {4082});
    tokenizer_ = served.tokenizer;
    app_ = std::make_unique<App>(std::move(served), engine_, options);
    listener_ = std::make_unique<HttpListener>(ListenerOptions{}, [this](HttpRequest request) {
      return app_->handle(std::move(request));
    });
    port_ = listener_->port();
  }

  void say(const std::string& text, size_t step = 1) {
    engine_.script.tokens = tokenizer_->encode(text);
    engine_.script.step = step;
  }

  Response post(const std::string& path, const std::string& body, const std::string& headers = {}) {
    return fetch(port_, "POST", path, body, headers);
  }

  // The prompt that a request brings to the engine, as text.
  std::string prompt_of(const std::string& path, const std::string& body) {
    const Response response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.status == 200 ? tokenizer_->decode(engine_.requests().back().prompt) : "";
  }

  FakeEngine engine_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::unique_ptr<App> app_;
  std::unique_ptr<HttpListener> listener_;
  uint16_t port_ = 0;
};

// The events of a stream, each named by its "type".
inline std::vector<Json> named_events(const Response& response) {
  std::vector<Json> out;
  const std::string& body = response.body;
  for (size_t at = 0; at < body.size();) {
    const size_t line = body.find('\n', at), end = body.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "an event has no end: " << body.substr(at);
      break;
    }
    EXPECT_TRUE(body.substr(at).starts_with("event: ")) << body.substr(at, 80);
    EXPECT_EQ(body.substr(line + 1, 6), "data: ");
    out.push_back(Json::parse(body.substr(line + 7, end - line - 7)));
    EXPECT_EQ(body.substr(at + 7, line - at - 7), out.back().at("type"));
    at = end + 2;
  }
  return out;
}

inline std::vector<std::string> types_of(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event.at("type"));
  return types;
}

}  // namespace replayssm::server
