// The APIs that stand on the chat route: OpenAI's responses, Anthropic's messages.
#include "server/apis/messages_answer.h"
#include "server/apis/messages_request.h"
#include "server/apis/responses_answer.h"
#include "server/app.h"
#include "server/request/chat.h"

namespace replayssm::server {
namespace {

HttpResponse json_response(const Json& body) {
  HttpResponse response;
  response.body = dump_json(body);
  return response;
}

[[noreturn]] void no_response(const std::string& id, const std::string& field) {
  throw ApiError(404,
                 concat(field, ": no response \"", id.substr(0, 128),
                        "\" is stored; the last used are, as far as memory for them goes"),
                 field, "response_not_found");
}

std::string response_id(const HttpRequest& request) {
  return request.path.substr(std::string_view("/v1/responses/").size());
}

// The translation's warnings before the chat's, which get the client's names.
void name_warnings(Warnings& warnings, const InnerChat& chat) {
  chat.names.rename(warnings);
  warnings.insert(warnings.begin(), chat.warnings.begin(), chat.warnings.end());
}

}  // namespace

Reply App::responses(const HttpRequest& request) {
  const Json body = parse_body(request);
  Json previous = Json::array();
  if (const auto id = Fields(body, "").string("previous_response_id")) {
    const auto kept = responses_->messages(*id);
    if (!kept) no_response(*id, "previous_response_id");
    previous = *kept;
  }
  ResponsesRequest form = translate_responses(body, previous);
  ChatJob job =
      with_names(form.chat.names, [&] { return start_chat(request, form.chat.body, "resp_"); });
  name_warnings(job.head.warnings, form.chat);
  return std::make_shared<ResponsesAnswer>(std::move(job.head), std::move(job.source),
                                           hooks("/v1/responses"), job.request, model_,
                                           std::move(form), *responses_);
}

Reply App::get_response(const HttpRequest& request) {
  const std::string id = response_id(request);
  const auto kept = responses_->response(id);
  if (!kept) no_response(id, "id");
  return json_response(*kept);
}

Reply App::delete_response(const HttpRequest& request) {
  const std::string id = response_id(request);
  if (!responses_->erase(id)) no_response(id, "id");
  return json_response({{"id", id}, {"object", "response"}, {"deleted", true}});
}

Reply App::messages(const HttpRequest& request) {
  const MessagesRequest form = translate_messages(parse_body(request), false);
  ChatJob job =
      with_names(form.chat.names, [&] { return start_chat(request, form.chat.body, "msg_"); });
  name_warnings(job.head.warnings, form.chat);
  return std::make_shared<MessagesAnswer>(std::move(job.head), std::move(job.source),
                                          hooks("/v1/messages"), job.request, model_,
                                          form.parallel_calls);
}

Reply App::count_tokens(const HttpRequest& request) {
  const MessagesRequest form = translate_messages(parse_body(request), true);
  const ChatPrompt prompt =
      with_names(form.chat.names, [&] { return chat_prompt(form.chat.body, model_); });
  return json_response({{"input_tokens", prompt.ids.size()}});
}

}  // namespace replayssm::server
