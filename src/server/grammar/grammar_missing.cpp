// In place of grammar_xgrammar.cpp where third_party/xgrammar is not there.
#include "server/api_error.h"
#include "server/grammar/grammar.h"

namespace replayssm::server {
namespace {

[[noreturn]] void refuse_all() {
  throw ApiError(501, "this build has no grammars: tools/fetch_xgrammar.sh fetches what they need",
                 "", "not_implemented");
}

}  // namespace

class GrammarCompiler::State {};
GrammarCompiler::GrammarCompiler(const ServedModel&) {}
GrammarCompiler::~GrammarCompiler() = default;
ConstraintPtr GrammarCompiler::structured(const Structure& structure, Warnings&) {
  if (structure.kind == Structure::Kind::kNone) return nullptr;
  refuse_all();
}
ConstraintPtr GrammarCompiler::tool_call(const Json&, ToolStyle, Warnings&) { refuse_all(); }
ConstraintPtr GrammarCompiler::call_or(const Json&, ToolStyle, const Structure&, Warnings&) {
  refuse_all();
}

}  // namespace replayssm::server
