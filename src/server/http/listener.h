// HTTP/1.1: connections, limits, timeouts, and what becomes of a client that leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http/access.h"
#include "server/http/message.h"
#include "server/http/request_memory.h"

namespace replayssm::server {

struct ListenerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int threads = 2;    // of connections; and as many of the handler, for which no stream waits
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_header_bytes = size_t{16} << 10;
  int max_connections = 4096;
  double idle_seconds = 75;  // between requests
  // A head, each MiB of a body and each 64 KiB of an answer has so long: a client that goes on is
  // served, one that stands still is dropped.
  double read_seconds = 30;
  double write_seconds = 30;
  // Above 0: streams write at ticks of it; what comes between is joined.
  double part_seconds = 0.032;
  double keep_alive_seconds = 5;  // a stream that is silent for so long gets a comment
  AccessRules access;
  std::shared_ptr<RequestMemory> memory;        // of bodies; null: without a limit
  std::function<void(const std::string&)> log;  // of what no handler sees; may be empty
};

class HttpListener {
 public:
  // Listens at once; throws Error naming host and port. The handler is called for requests without
  // a body on the threads of connections, and must not take long for them; for all others on
  // threads of its own.
  HttpListener(const ListenerOptions& options, Handler handler);
  ~HttpListener();  // closes all connections; their answers are cancelled
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  uint16_t port() const;

  // No new connections; those open close after the answer that they are at.
  void stop_accepting();
  // Until no answer is under way, or `seconds` have passed.
  void wait_idle(double seconds);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace replayssm::server
