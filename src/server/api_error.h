// What a client is told when a request cannot be served: a status and an error object, which names
// the field, in the form of the API that was asked.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "server/http/message.h"

namespace replayssm::server {

class ApiError : public Error {
 public:
  // `param`: the field at fault, empty if none is. `code` may be empty.
  ApiError(int status, std::string message, std::string param = {}, std::string code = {})
      : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  // {"message", "type", "param", "code"}
  Json object() const;
  // {"error": object()}; 429 and 503 say when to come back, 401 how to sign in.
  HttpResponse response() const;

 private:
  int status_;
  std::string param_;
  std::string code_;
};

// The error in the form of the API that `path` belongs to: Anthropic's below /v1/messages, with the
// request's id, else OpenAI's.
HttpResponse error_response(std::string_view path, const std::string& request_id,
                            const ApiError& error);

// {"type", "error": {"type", "message"}, "request_id"}: Anthropic's form.
Json messages_error(const ApiError& error, const std::string& request_id);

// 400, naming the field.
[[noreturn]] void refuse(const std::string& param, const std::string& message);

}  // namespace replayssm::server
