// Draws texts from grammars for check_samples.py. Each line on stdin is an object of "n" and one of
// "schema", "regex", "grammar", or "tools" with "style" (json, xml, list); each on stdout {"texts",
// "unfinished", "seconds"}, or {"param", "error"} if the grammar is refused. Of a tool's call the
// text is its arguments, as the server reads them out of the call.
#include <chrono>
#include <iostream>

#include "sampler.h"
#include "server/api_error.h"
#include "server/chat/tool_calls.h"
#include "server/grammar/grammar.h"

namespace replayssm::server {
namespace {

ToolStyle style_of(const std::string& name) {
  return name == "xml" ? ToolStyle::kXml : name == "list" ? ToolStyle::kList : ToolStyle::kJson;
}

std::string arguments_of(const std::string& text, const Json& tools) {
  const CallReading reading = read_calls(text, tools, TextEnd::kEnded);
  const bool one = reading.calls.size() == 1 && reading.length == text.size();
  return one ? reading.calls[0].arguments : "not read: " + text;
}

ConstraintPtr grammar_of(const Json& line, GrammarCompiler& grammars, Warnings& warnings) {
  using Kind = Structure::Kind;
  if (line.contains("tools")) {
    return grammars.tool_call(line.at("tools"), style_of(line.at("style")), warnings);
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
        out["texts"].push_back(line.contains("tools") ? arguments_of(*text, line.at("tools"))
                                                      : *text);
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
  } catch (const Error& e) {  // while it was drawn from
    return {{"error", e.what()}, {"seconds", seconds()}};
  }
}

}  // namespace
}  // namespace replayssm::server

int main(int n_arguments, char** arguments) {
  using namespace replayssm;
  using namespace replayssm::server;
  const ServedModel model = sampled_model();
  GrammarCompiler grammars(model);
  const uint64_t seed = n_arguments > 1 ? std::stoull(arguments[1]) : 1;
  Sampler quoted(model, seed), bare(model, seed, "\"}]<>");
  for (std::string line; std::getline(std::cin, line);) {
    const Json asked = Json::parse(line);
    Sampler& sampler = asked.value("style", "") == "xml" ? bare : quoted;
    std::cout << dump_json(answer(asked, grammars, sampler)) << std::endl;
  }
  return 0;
}
