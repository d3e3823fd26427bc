#include "server/http/access.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>

#include "server/api_error.h"

namespace replayssm::server {
namespace {

namespace asio = boost::asio;

constexpr const char* kMethods = "GET, POST, DELETE, OPTIONS";
constexpr const char* kExposed = "x-request-id, x-replayssm-warning, retry-after";

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// "name:80" and "[::1]:80" without the port; empty if it is neither.
std::string host_name(std::string_view authority) {
  size_t end = authority.find(':');
  std::string name = lower(authority.substr(0, end));
  if (authority.starts_with('[')) {
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) return {};
    name = lower(authority.substr(1, bracket - 1));
    end = bracket + 1;
  } else if (name.ends_with('.')) {
    name.pop_back();
  }
  if (end >= authority.size()) return name;
  const std::string_view port = authority.substr(end + 1);
  const bool digits = authority[end] == ':' && std::all_of(port.begin(), port.end(), [](char c) {
                        return c >= '0' && c <= '9';
                      });
  return digits ? name : std::string();
}

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& item) { return item == "*" || lower(item) == value; });
}

// Another site's page cannot make an address of its own that leads here: names can.
bool is_address(const std::string& host) {
  boost::system::error_code error;
  asio::ip::make_address(host, error);
  return !error;
}

bool host_allowed(const AccessRules& rules, const std::string& authority) {
  const std::string name = host_name(authority);
  return is_address(name) || name == "localhost" || name.ends_with(".localhost") ||
         contains(rules.allowed_hosts, name);
}

// "https://a:443" and "a" are the same place: the default port need not be written.
std::string with_port(std::string authority, std::string_view scheme) {
  const size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string::npos && authority.back() != ']';
  if (!has_port) authority += scheme == "https" ? ":443" : ":80";
  return authority;
}

bool same_site(const std::string& origin, std::string_view host) {
  const size_t at = origin.find("://");
  if (at == std::string::npos || host.empty()) return false;
  const std::string_view scheme = std::string_view(origin).substr(0, at);
  return with_port(lower(origin.substr(at + 3)), scheme) == with_port(lower(host), scheme);
}

bool json_type(std::string_view type) {
  const std::string name = lower(type.substr(0, type.find_first_of("; \t")));
  return name == "application/json" ||
         (name.starts_with("application/") && name.ends_with("+json"));
}

bool form_type(std::string_view type) {
  return lower(type.substr(0, type.find_first_of("; \t"))) == "application/x-www-form-urlencoded";
}

HttpResponse preflight(const HttpRequest& request) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers = {{"Access-Control-Allow-Methods", kMethods},
                      {"Access-Control-Max-Age", "600"}};
  if (const auto asked = request.header("access-control-request-headers"); !asked.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", asked);
  }
  if (request.header("access-control-request-private-network") == "true") {
    response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  }
  return response;
}

}  // namespace

Access check_access(const AccessRules& rules, const HttpRequest& request) {
  Access access;
  access.headers.emplace_back("X-Content-Type-Options", "nosniff");
  const auto refused = [&](int status, const std::string& message, const char* code) {
    access.reply = error_response(request.path, request.id, ApiError(status, message, "", code));
    return access;
  };
  const std::string host(request.header("host"));
  if (rules.check_host && !host.empty() && !host_allowed(rules, host)) {
    return refused(403,
                   concat("Host: this server is not asked for as ", host.substr(0, 128),
                          "; --allowed-hosts names what is allowed"),
                   "host_not_allowed");
  }
  const std::string origin(request.header("origin"));
  if (!origin.empty()) {
    const bool listed = contains(rules.allowed_origins, lower(origin));
    if (!listed && !same_site(origin, host)) {
      return refused(403,
                     concat("Origin: pages of ", origin.substr(0, 128),
                            " may not ask this server; --cors-origin names those that may"),
                     "origin_not_allowed");
    }
    if (listed) {
      access.headers.emplace_back("Access-Control-Allow-Origin", origin);
      access.headers.emplace_back("Access-Control-Expose-Headers", kExposed);
      access.headers.emplace_back("Vary", "Origin");
    }
  }
  if (request.method == "OPTIONS" && !request.header("access-control-request-method").empty()) {
    access.reply = preflight(request);
    return access;
  }
  const std::string_view type = request.header("content-type");
  if (request.body.empty() || type.empty() || json_type(type)) return access;
  const bool browser = !origin.empty() || !request.header("sec-fetch-site").empty();
  if (form_type(type) && !browser) return access;
  return refused(415, concat("Content-Type: must be application/json, not ", type.substr(0, 128)),
                 "unsupported_media_type");
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host, error);
  return !error && address.is_loopback();
}

}  // namespace replayssm::server
