// A template's source as tokens: text, tags and what stands in the tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace replayssm::jinja {

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,  // {{
    kOutputEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  int line;
};

// With trim_blocks, lstrip_blocks and the marks - and +. Throws Error: "name:line: what".
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace replayssm::jinja
