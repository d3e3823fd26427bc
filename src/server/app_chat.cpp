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

Reply App::chat(const HttpRequest& request) {
  ChatRequest parsed = parse_chat(parse_body(request), model_, options_.test_hooks);
  EngineRequest engine;
  engine.constraint = constraint_of(parsed, model_, *grammars_);
  engine.prompts = {parsed.prompt.ids};
  engine.common = &parsed.common;
  engine.keep_tokens = parsed.logprobs;
  engine.chat = true;
  AnswerHead head = answer_head(request, "chatcmpl-", parsed.common);
  auto sources = submit(head, engine);
  return std::make_shared<ChatAnswer>(std::move(head), std::move(sources.front()),
                                      hooks("/v1/chat/completions"), parsed, model_);
}

}  // namespace replayssm::server
