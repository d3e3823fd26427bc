// Which requests a browser may send here for a page of another site, and under which names this
// server may be asked for.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/message.h"

namespace replayssm::server {

struct AccessRules {
  bool check_host = false;
  std::vector<std::string> allowed_hosts;    // names beside localhost and IP addresses; "*": all
  std::vector<std::string> allowed_origins;  // "https://chat.example"; "*": all
};

// What the rules say of a request.
struct Access {
  std::optional<HttpResponse> reply;  // a refusal, or the answer to a preflight
  // Of whatever answer it gets.
  std::vector<std::pair<std::string, std::string>> headers;
};

// - 403 if Host is a name that is not allowed (DNS rebinding).
// - 403 if Origin is another site's that is not allowed.
// - 415 if a body is not JSON. A form's type is taken for JSON where no browser sent it, because
//   `curl -d` says so.
// - OPTIONS with Access-Control-Request-Method is answered here.
Access check_access(const AccessRules& rules, const HttpRequest& request);

// True if `host` is an address of this machine's loopback, or "localhost".
bool is_loopback(const std::string& host);

}  // namespace replayssm::server
