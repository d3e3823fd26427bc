// What the listener and the rest of the server exchange.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace replayssm::server {

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string query;
  std::string id;                                            // x-request-id, or one made here
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  // Empty if absent; the first of several.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// An answer that comes later or in parts. The listener calls start() once, then take() after each
// wake, until `end`; all on one thread at a time.
class Answer {
 public:
  struct Part {
    bool has_head = false;  // `head` is the status and the headers (and, not streaming, the body)
    bool streaming = false;
    HttpResponse head;
    std::string body;  // streaming: what is ready
    bool end = false;
  };

  virtual ~Answer() = default;
  // `wake` may be called from any thread and does not block; `done`: with all that there is.
  virtual void start(std::function<void(bool done)> wake) = 0;
  virtual Part take() = 0;
  // Whether the next take() may run for long: it is then called on a thread of the handler.
  virtual bool takes_long() const { return false; }
  // The client is gone, or too slow, as `why` says: no more take().
  virtual void cancel(const std::string& why) = 0;
};

using Reply = std::variant<HttpResponse, std::shared_ptr<Answer>>;

// Called by several threads at once. Must not throw.
using Handler = std::function<Reply(HttpRequest)>;

}  // namespace replayssm::server
