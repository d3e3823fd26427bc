// Any bytes as the head of a request: what passes the check is what the HTTP library reads too,
// with the same end; and a head with one more header of length or coding is never taken twice.
#include <boost/asio/buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstdlib>
#include <string>

#include "server/http/access.h"
#include "server/http/framing.h"

using namespace replayssm::server;

namespace {

namespace http = boost::beast::http;

void check(bool good) {
  if (!good) std::abort();
}

void same_as_library(const std::string& head, const Framing& framing) {
  http::request_parser<http::string_body> parser;
  parser.header_limit(1 << 20);
  parser.body_limit(boost::none);
  boost::system::error_code error;
  const size_t n = parser.put(boost::asio::buffer(head), error);
  if (error && error != http::error::need_more) return;  // both must take it
  check(n == head.size() && parser.is_header_done());
  check(parser.chunked() == framing.chunked);
  const auto length = parser.content_length();
  check(length ? *length == framing.content_length : framing.content_length == 0);
  const auto hosts = parser.get().equal_range(http::field::host);
  check(std::distance(hosts.first, hosts.second) <= 1);
  HttpRequest request;
  request.method = std::string(parser.get().method_string());
  for (const auto& field : parser.get()) {
    const std::string value(field.value());
    check(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
    std::string name(field.name_string());
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    request.headers.emplace_back(name, value);
  }
  request.body = "{}";
  // No page of another site and no foreign name gets through.
  const Access access = check_access({true, {"good.example"}, {}}, request);
  const auto host = request.header("host");
  if (host == "evil.example") check(access.reply && access.reply->status == 403);
  if (request.header("origin") == "https://evil.example" && host == "good.example") {
    check(access.reply && access.reply->status == 403);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  percent_decoded(bytes);
  const size_t n = head_bytes(bytes);
  check(n <= size);
  const std::string head = bytes.substr(0, n == 0 ? size : n);
  const Framing framing = check_head(head);
  if (n == 0) {
    check(!framing.problem.empty());
    return 0;
  }
  if (!framing.problem.empty()) return 0;
  check(!breaks_head(head));
  same_as_library(head, framing);
  // Whatever a proxy makes of the second one, this server takes neither.
  const std::string begin = head.substr(0, n - 2);
  check(!check_head(begin + "Host: a\r\nHost: b\r\n\r\n").problem.empty());
  check(!check_head(begin + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
             .problem.empty());
  check(!check_head(begin + "Transfer-Encoding: xchunked\r\n\r\n").problem.empty());
  check(!check_head(begin + "Content-Length : 1\r\n\r\n").problem.empty());
  check(!check_head(begin + "A: b\n\r\n").problem.empty());
  return 0;
}
