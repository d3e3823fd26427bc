// HTTP/1.1: connections, limits, timeouts, and what becomes of a client that leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/http/message.h"

namespace replayssm::server {

struct ListenerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int threads = 2;    // of connections; and as many of the handler, for which no stream waits
  size_t most_body_bytes = size_t{32} << 20;
  size_t most_header_bytes = size_t{16} << 10;
  int most_connections = 4096;
  double idle_seconds = 75;   // between requests
  double read_seconds = 30;   // of one request
  double write_seconds = 30;  // of one piece, to a client that does not read
  // Above 0: streams write at ticks of it; what comes between is joined.
  double part_seconds = 0.032;
};

class HttpListener {
 public:
  // Listens at once; throws Error naming host and port.
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

// True if `host` is an address of this machine's loopback, or "localhost".
bool is_loopback(const std::string& host);

}  // namespace replayssm::server
