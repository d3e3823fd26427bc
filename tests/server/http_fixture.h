// A server of its own for each test, over sockets, beside an engine of scripted tokens.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client.h"
#include "fake_engine.h"
#include "server/app.h"
#include "server/chat/chat_template.h"
#include "server/http/listener.h"

namespace replayssm::server {

class HttpTest : public ::testing::Test {
 protected:
  void start(AppOptions options = {}, ListenerOptions listener = {},
             std::vector<std::string> names = {}) {
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(log_mutex_);
      log_.push_back(line);
    };
    auto served = load_served_model(REPLAYSSM_SOURCE_DIR "/models/demo-gdn", "", 4096, 200, {4082});
    tokenizer_ = served.tokenizer;
    if (!names.empty()) served.names = std::move(names);
    listener.log = options.log;
    app_ = std::make_unique<App>(std::move(served), engine_, options);
    listener_ = std::make_unique<HttpListener>(
        listener, [this](HttpRequest request) { return app_->handle(std::move(request)); });
    port_ = listener_->port();
  }

  void say(const std::string& text, size_t step = 1) {
    engine_.script.tokens = tokenizer_->encode(text);
    engine_.script.step = step;
  }

  Response complete(const std::string& extra, const std::string& headers = {}) {
    return fetch(port_, "POST", "/v1/completions", R"({"prompt": "go", )" + extra + "}", headers);
  }

  // A log line that holds the text, within a second.
  bool logged(const std::string& text) {
    for (int i = 0; i < 200; ++i) {
      {
        const std::lock_guard lock(log_mutex_);
        for (const auto& line : log_) {
          if (line.find(text) != std::string::npos) return true;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  FakeEngine engine_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::unique_ptr<App> app_;
  std::mutex log_mutex_;
  std::vector<std::string> log_;
  std::unique_ptr<HttpListener> listener_;
  uint16_t port_ = 0;
};

// The text of a stream's choice.
inline std::string stream_text(const Response& response, int index = 0) {
  std::string text;
  for (const Json& event : response.events()) {
    for (const Json& choice : event.at("choices")) {
      if (choice.at("index") != index) continue;
      if (choice.contains("text")) text += choice.at("text").get<std::string>();
      if (choice.contains("delta")) text += choice.at("delta").value("content", "");
    }
  }
  return text;
}

}  // namespace replayssm::server
