#include "server/http/framing.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace replayssm::server {
namespace {

constexpr std::string_view kEndOfHead = "\r\n\r\n";

// RFC 9110, 5.6.2.
bool is_token_char(char c) {
  const auto u = static_cast<unsigned char>(c);
  return (u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// "METHOD TARGET HTTP/1.x", one space between.
const char* request_line_problem(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    return "the request line has no three parts";
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(line.substr(0, first))) return "the method is no token";
  const auto bad = [](char c) { return c <= ' ' || c == 0x7f; };
  if (target.empty() || std::any_of(target.begin(), target.end(), bad)) {
    return "the request's target holds a blank or a control character";
  }
  const bool known = target.front() == '/' || target == "*" || target.starts_with("http://") ||
                     target.starts_with("https://");
  if (!known) return "the request's target is neither a path nor a URL";
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return "the version is not HTTP/1.1 or 1.0";
  return nullptr;
}

bool parse_length(std::string_view text, uint64_t* length) {
  if (text.empty() || text.size() > 15) return false;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *length);
  return error == std::errc{} && at == end;
}

}  // namespace

size_t head_bytes(std::string_view bytes) {
  const size_t end = bytes.find(kEndOfHead);
  return end == std::string_view::npos ? 0 : end + kEndOfHead.size();
}

bool breaks_head(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\0') return true;
    if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r')) return true;
    if (bytes[i] == '\r' && i + 1 < bytes.size() && bytes[i + 1] != '\n') return true;
  }
  return false;
}

Framing check_head(std::string_view head) {
  Framing framing;
  const auto refused = [&](std::string why) {
    framing.problem = std::move(why);
    return framing;
  };
  if (breaks_head(head)) {
    return refused("a line does not end in CR LF, or a byte is zero");
  }
  size_t end = head.find("\r\n");
  if (end == std::string_view::npos) return refused("the request line has no end");
  const std::string_view first = head.substr(0, end);
  if (const char* problem = request_line_problem(first)) return refused(problem);
  const bool old = first.ends_with("HTTP/1.0");
  int n_hosts = 0, n_lengths = 0, n_codings = 0;
  for (head.remove_prefix(end + 2);; head.remove_prefix(end + 2)) {
    end = head.find("\r\n");
    if (end == std::string_view::npos) return refused("the head has no end");
    const std::string_view line = head.substr(0, end);
    if (line.empty()) break;
    if (line.front() == ' ' || line.front() == '\t') {
      return refused("a header goes on over a second line");
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return refused("a header has no colon");
    const std::string_view name = line.substr(0, colon);
    if (!is_token(name)) return refused("a header's name holds a blank, or is no token");
    const std::string_view value = trimmed(line.substr(colon + 1));
    const auto control = [](char c) {
      return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7f;
    };
    if (std::any_of(value.begin(), value.end(), control)) {
      return refused("a header's value holds a control character");
    }
    if (equals_ignoring_case(name, "host")) {
      ++n_hosts;
      if (value.empty() || value.find_first_of(" \t,/@?#\\") != std::string_view::npos) {
        return refused("Host is not a name with a port");
      }
    } else if (equals_ignoring_case(name, "content-length")) {
      ++n_lengths;
      if (!parse_length(value, &framing.content_length)) {
        return refused("Content-Length is not a number");
      }
    } else if (equals_ignoring_case(name, "transfer-encoding")) {
      ++n_codings;
      if (!equals_ignoring_case(value, "chunked")) {
        return refused("Transfer-Encoding must be chunked, alone");
      }
      framing.chunked = true;
    }
  }
  if (n_hosts > 1) return refused("Host is given twice");
  if (n_hosts == 0 && !old) return refused("Host is missing");
  if (n_lengths > 1) return refused("Content-Length is given twice");
  if (n_codings > 1) return refused("Transfer-Encoding is given twice");
  if (n_codings > 0 && n_lengths > 0) {
    return refused("Content-Length and Transfer-Encoding are both given");
  }
  if (n_codings > 0 && old) return refused("HTTP/1.0 has no Transfer-Encoding");
  return framing;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (text.size() - i < 3) return {};
    unsigned byte = 0;
    const char* end = text.data() + i + 3;
    const auto [at, error] = std::from_chars(text.data() + i + 1, end, byte, 16);
    if (error != std::errc{} || at != end || byte == 0) return {};
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

}  // namespace replayssm::server
