// POST /v1/chat/completions.
#include "server/answer/chat_answer.h"
#include "server/app.h"
#include "server/grammar/grammar.h"
#include "server/request/chat.h"

namespace replayssm::server {
namespace {

ConstraintPtr constraint_of(ChatRequest& request, const ServedModel& model,
                            GrammarCompiler& grammars) {
  Warnings& warnings = request.common.warnings;
  const Structure& structure = request.common.structure;
  ConstraintPtr inner;
  if (request.tool_choice == ToolChoice::kRequired) {
    inner = grammars.tool_call(request.tools, model.chat_template->tool_style(), warnings);
  } else if (structure.kind != Structure::Kind::kNone && !request.tools.empty()) {
    inner = grammars.call_or(request.tools, model.chat_template->tool_style(), structure, warnings);
  } else {
    inner = grammars.structured(structure, warnings);
  }
  if (inner == nullptr || !request.opens_reasoning) return inner;
  const auto marker = model.tokenizer->id_of("</think>");
  if (!marker) {
    refuse(structure.field, "the prompt opens reasoning, and the model has no token </think>");
  }
  return after_marker(*marker, std::move(inner));
}

}  // namespace

App::ChatJob App::start_chat(const HttpRequest& request, const Json& body, const char* prefix) {
  ChatJob job;
  job.request = parse_chat(body, model_, options_.test_hooks);
  EngineRequest engine;
  engine.constraint = constraint_of(job.request, model_, *grammars_);
  engine.prompts = {job.request.prompt.ids};
  engine.common = &job.request.common;
  engine.keep_tokens = job.request.logprobs;
  engine.chat = true;
  job.head = answer_head(request, prefix, job.request.common);
  job.source = std::move(submit(job.head, engine).front());
  return job;
}

Reply App::chat(const HttpRequest& request) {
  ChatJob job = start_chat(request, parse_body(request), "chatcmpl-");
  return std::make_shared<ChatAnswer>(std::move(job.head), std::move(job.source),
                                      hooks("/v1/chat/completions"), job.request, model_);
}

}  // namespace replayssm::server
