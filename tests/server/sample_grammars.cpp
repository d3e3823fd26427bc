// Draws texts from grammars for check_samples.py. Each line on stdin is an object {"schema", "n"}
// or
// {"regex", "n"}; each on stdout {"texts", "unfinished", "seconds"}, or {"param", "error"} if the
// grammar is refused.
#include <chrono>
#include <iostream>

#include "sampler.h"
#include "server/api_error.h"
#include "server/grammar/grammar.h"

namespace replayssm::server {
namespace {

ConstraintPtr grammar_of(const Json& line, GrammarCompiler& grammars, Warnings& warnings) {
  using Kind = Structure::Kind;
  if (line.contains("tools")) {
    const ToolStyle style = line.at("style") == "xml" ? ToolStyle::kXml : ToolStyle::kJson;
    return grammars.tool_call(line.at("tools"), style, warnings);
  }
  for (const auto& [name, kind] :
       {std::pair{"schema", Kind::kSchema}, {"regex", Kind::kRegex}, {"grammar", Kind::kGrammar}}) {
    if (line.contains(name)) return grammars.structured({kind, name, line.at(name)}, warnings);
  }
  throw ApiError(400, "no grammar");
}

Json answer(const Json& line, GrammarCompiler& grammars, Sampler& sampler) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  try {
    Warnings warnings;
    const ConstraintPtr grammar = grammar_of(line, grammars, warnings);
    Json out = {{"compile_seconds", seconds()}, {"texts", Json::array()}, {"unfinished", 0}};
    sampler.mask_seconds = 0;
    sampler.n_masks = 0;
    for (int i = 0; i < line.at("n").get<int>(); ++i) {
      if (const auto text = sampler.draw(*grammar)) {
        out["texts"].push_back(*text);
      } else {
        out["unfinished"] = out["unfinished"].get<int>() + 1;
      }
    }
    out["warnings"] = warnings;
    out["mask_seconds"] =
        sampler.mask_seconds / static_cast<double>(std::max<int64_t>(1, sampler.n_masks));
    out["seconds"] = seconds();
    return out;
  } catch (const ApiError& e) {
    return {{"param", e.object().value("param", "")}, {"error", e.what()}, {"seconds", seconds()}};
  }
}

}  // namespace
}  // namespace replayssm::server

int main(int n_arguments, char** arguments) {
  using namespace replayssm;
  using namespace replayssm::server;
  const ServedModel model = sampled_model();
  GrammarCompiler grammars(model);
  Sampler sampler(model, n_arguments > 1 ? std::stoull(arguments[1]) : 1);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << dump_json(answer(Json::parse(line), grammars, sampler)) << std::endl;
  }
  return 0;
}
