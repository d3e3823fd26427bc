#include "server/api_error.h"

namespace replayssm::server {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* messages_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

Json messages_error(const ApiError& error, const std::string& request_id) {
  return {{"type", "error"},
          {"error", {{"type", messages_type(error.status())}, {"message", error.what()}}},
          {"request_id", request_id}};
}

HttpResponse error_response(std::string_view path, const std::string& request_id,
                            const ApiError& error) {
  HttpResponse response = error.response();
  if (path == "/v1/messages" || path.starts_with("/v1/messages/")) {
    response.body = dump_json(messages_error(error, request_id));
    response.headers.emplace_back("request-id", request_id);
  }
  return response;
}

Json ApiError::object() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"message", what()},
          {"type", type_of(status_)},
          {"param", or_null(param_)},
          {"code", or_null(code_)}};
}

HttpResponse ApiError::response() const {
  HttpResponse response;
  response.status = status_;
  response.body = dump_json({{"error", object()}});
  if (status_ == 429 || status_ == 503) response.headers.emplace_back("Retry-After", "1");
  if (status_ == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

void refuse(const std::string& param, const std::string& message) {
  throw ApiError(400, param.empty() ? message : concat(param, ": ", message), param,
                 "invalid_value");
}

}  // namespace replayssm::server
