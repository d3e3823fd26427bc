#include "server/http/stream_client.h"

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

#include "core/error.h"
#include "server/http/sse.h"

namespace replayssm::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

asio::awaitable<void> post_stream(const tcp::endpoint& server, const std::string& path,
                                  const std::string& body, StreamSeen& seen) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  co_await stream.async_connect(server, asio::use_awaitable);
  stream.socket().set_option(tcp::no_delay(true));
  http::request<http::string_body> request{http::verb::post, path, 11};
  request.set(http::field::host, server.address().to_string());
  request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.keep_alive(false);
  request.prepare_payload();
  seen.asked = now_seconds();
  co_await http::async_write(stream, request, asio::use_awaitable);

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
  const auto status = parser.get().result_int();
  SseParser events;
  std::string text;
  std::array<char, 16384> piece;
  while (!parser.is_done()) {
    auto& to = parser.get().body();
    to.data = piece.data();
    to.size = piece.size();
    auto [error, n] =
        co_await http::async_read_some(stream, buffer, parser, asio::as_tuple(asio::use_awaitable));
    if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
    const std::string_view got(piece.data(), piece.size() - to.size);
    if (status != 200) {
      text += got;
      continue;
    }
    for (auto& data : events.push(got)) seen.events.push_back({now_seconds(), std::move(data)});
  }
  if (status != 200) fail(path, ": ", status, " ", text.substr(0, 512));
  if (seen.events.empty() || seen.events.back().data != "[DONE]") {
    fail(path, ": the stream ends without [DONE]");
  }
}

}  // namespace

ServerAddress::ServerAddress(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const size_t colon = url.rfind(':');
  if (!url.starts_with(kScheme) || colon == std::string::npos || colon <= kScheme.size()) {
    fail(url, ": must be http://HOST:PORT");
  }
  host = url.substr(kScheme.size(), colon - kScheme.size());
  port = url.substr(colon + 1);
  while (port.ends_with('/')) port.pop_back();
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
}

std::vector<StreamSeen> post_streams(const ServerAddress& server, const std::string& path,
                                     const std::vector<std::string>& bodies) {
  std::vector<StreamSeen> seen(bodies.size());
  std::exception_ptr first;
  try {
    asio::io_context io(1);
    const tcp::endpoint endpoint = *tcp::resolver(io).resolve(server.host, server.port).begin();
    for (size_t i = 0; i < bodies.size(); ++i) {
      asio::co_spawn(io, post_stream(endpoint, path, bodies[i], seen[i]),
                     [&](const std::exception_ptr& error) {
                       if (!first) first = error;
                     });
    }
    io.run();
    if (first) std::rethrow_exception(first);
  } catch (const boost::system::system_error& error) {
    fail("http://", server.host, ":", server.port, ": ", error.code().message());
  }
  return seen;
}

}  // namespace replayssm::server
