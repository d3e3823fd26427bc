// A client of raw sockets: it sends what it is told and reads what comes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/json.h"

namespace replayssm::server {

struct Response {
  int status = 0;
  std::string head;  // lower case
  std::string body;  // chunks joined

  Json json() const { return Json::parse(body); }
  std::string header(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
  // The events of a stream, without [DONE], which must be last.
  std::vector<Json> events() const {
    std::vector<Json> out;
    bool done = false;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      if (end == std::string::npos) {
        ADD_FAILURE() << "an event has no end: " << body.substr(at);
        break;
      }
      const std::string line = body.substr(at, end - at);
      if (line.starts_with(':')) {  // a comment
        at = end + 2;
        continue;
      }
      EXPECT_TRUE(line.starts_with("data: ")) << line;
      EXPECT_FALSE(done) << "an event behind [DONE]";
      if (line == "data: [DONE]") {
        done = true;
      } else {
        out.push_back(Json::parse(line.substr(6)));
      }
      at = end + 2;
    }
    return out;
  }
};

class Client {
 public:
  explicit Client(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    timeval limit{20, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  // False if the server took no more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  bool send_request(const std::string& method, const std::string& path,
                    const std::string& body = {}, const std::string& headers = {}) {
    return send(method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers +
                (body.empty() && method == "GET"
                     ? "\r\n"
                     : "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body));
  }

  // The next response; status 0 if the connection ended first.
  Response read() {
    Response response;
    size_t end = 0;
    while ((end = rest_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return response;
    }
    response.head = rest_.substr(0, end + 2);
    for (char& c : response.head) c = static_cast<char>(std::tolower(c));
    rest_.erase(0, end + 4);
    response.status = std::stoi(response.head.substr(9, 3));
    const bool bodiless =
        response.status / 100 == 1 || response.status == 204 || response.status == 304;
    if (bodiless) return response;
    if (response.header("transfer-encoding") == "chunked") {
      read_chunks(response.body);
    } else if (const std::string length = response.header("content-length"); !length.empty()) {
      const size_t n = std::stoul(length);
      while (rest_.size() < n && more()) {
      }
      response.body = rest_.substr(0, n);
      rest_.erase(0, response.body.size());
    } else {
      while (more()) {
      }
      response.body = std::exchange(rest_, {});
    }
    return response;
  }

  // The body of an answer with a length, read in `pieces` with a rest before each.
  std::string read_slowly(size_t pieces, std::chrono::milliseconds rest) {
    size_t head = 0;
    while ((head = rest_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return {};
    }
    const size_t length = std::stoul(rest_.substr(rest_.find("Content-Length: ") + 16));
    rest_.erase(0, head + 4);
    for (size_t i = 1; i <= pieces; ++i) {
      std::this_thread::sleep_for(rest);
      while (rest_.size() < length * i / pieces && more()) {
      }
    }
    return std::exchange(rest_, {});
  }

  // True if the server closes the connection, after `rest` bytes at most.
  bool closed() {
    while (more()) {
    }
    return at_end_;
  }

  // Until this text has come; false if it does not.
  bool wait_for(const std::string& text) {
    while (rest_.find(text) == std::string::npos) {
      if (!more()) return false;
    }
    return true;
  }

 private:
  bool more() {
    char buffer[65536];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) at_end_ = true;
    if (n <= 0) return false;
    rest_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  void read_chunks(std::string& body) {
    for (;;) {
      size_t line = 0;
      while ((line = rest_.find("\r\n")) == std::string::npos) {
        if (!more()) return;
      }
      const size_t n = std::stoul(rest_.substr(0, line), nullptr, 16);
      while (rest_.size() < line + 2 + n + 2) {
        if (!more()) return;
      }
      body += rest_.substr(line + 2, n);
      rest_.erase(0, line + 2 + n + 2);
      if (n == 0) return;
    }
  }

  int socket_;
  bool at_end_ = false;
  std::string rest_;
};

// One request on a connection of its own.
inline Response fetch(uint16_t port, const std::string& method, const std::string& path,
                      const std::string& body = {}, const std::string& headers = {}) {
  Client client(port);
  client.send_request(method, path, body, headers);
  return client.read();
}

}  // namespace replayssm::server
