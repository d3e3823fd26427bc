// Clients of streams, many at once on one thread: what a load of a server is made of.
#pragma once

#include <string>
#include <vector>

namespace replayssm::server {

struct StreamSeen {
  double asked = 0;  // seconds of the steady clock
  struct Event {
    double time;
    std::string data;
  };
  std::vector<Event> events;  // [DONE] among them
};

// http://HOST:PORT, HOST an IP address or localhost. Throws Error.
struct ServerAddress {
  std::string host;
  std::string port;
  explicit ServerAddress(const std::string& url);
};

// POSTs each body on a connection of its own, all at the same time, and reads the answers to their
// ends. Throws Error: no connection, another status than 200, a stream that is cut.
std::vector<StreamSeen> post_streams(const ServerAddress& server, const std::string& path,
                                     const std::vector<std::string>& bodies);

}  // namespace replayssm::server
