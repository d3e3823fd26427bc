// Constraints for structured output: JSON, a schema, a regular expression, a choice, a grammar, a
// tool call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "server/chat/chat_template.h"
#include "server/request/structure.h"
#include "server/served_model.h"

namespace replayssm::server {

using ConstraintPtr = std::shared_ptr<const TokenConstraint>;

// Keeps the grammars that it made, within a bound. May be called by many threads at once. All
// functions throw ApiError on what cannot be enforced.
class GrammarCompiler {
 public:
  explicit GrammarCompiler(const ServedModel& model);
  ~GrammarCompiler();

  // Null for Structure::Kind::kNone.
  ConstraintPtr structured(const Structure& structure, Warnings& warnings);
  // A call of one of the tools (OpenAI's list), and nothing else. Tools whose parameters cannot be
  // enforced are not called, with a warning, unless there is no other.
  ConstraintPtr tool_call(const Json& tools, ToolStyle style, Warnings& warnings);
  // A call of one of the tools, or the structure. Tools whose parameters cannot be enforced are
  // called with any object, with a warning.
  ConstraintPtr call_or(const Json& tools, ToolStyle style, const Structure& structure,
                        Warnings& warnings);

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Allows everything up to the token `marker`, it included; from then on what `inner` allows. For
// answers that reason first.
ConstraintPtr after_marker(int32_t marker, ConstraintPtr inner);

// Allows none of the ids `ends` before `n` tokens, and what `inner` (null: all) allows. A grammar
// at its end ends the answer all the same.
ConstraintPtr no_end_before(int64_t n, std::vector<int32_t> ends, const ConstraintPtr& inner);

}  // namespace replayssm::server
