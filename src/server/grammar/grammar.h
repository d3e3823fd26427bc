// Constraints for structured output: a JSON object, a JSON schema, a tool call.
#pragma once

#include <memory>
#include <string>

#include "runtime/engine.h"
#include "server/chat/chat_template.h"
#include "server/request/fields.h"
#include "server/served_model.h"

namespace replayssm::server {

using ConstraintPtr = std::shared_ptr<const TokenConstraint>;

// Keeps the grammars that it made, within a bound. May be called by many threads at once. All
// functions throw ApiError on what cannot be enforced.
class GrammarCompiler {
 public:
  explicit GrammarCompiler(const ServedModel& model);
  ~GrammarCompiler();

  ConstraintPtr json_object();
  // `field`: where the schema stands in the request.
  ConstraintPtr json_schema(const Json& schema, const std::string& field, Warnings& warnings);
  // A call of one of the tools (OpenAI's list), and nothing else.
  ConstraintPtr tool_call(const Json& tools, ToolStyle style, Warnings& warnings);

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Allows everything up to the token `marker`, it included; from then on what `inner` allows. For
// answers that reason first.
ConstraintPtr after_marker(int32_t marker, ConstraintPtr inner);

}  // namespace replayssm::server
