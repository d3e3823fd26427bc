// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace replayssm::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Expr {
  enum class Kind {
    kConstant,
    kName,
    kList,       // items
    kDict,       // items: key, value, key, value, ...
    kAttribute,  // items[0].name
    kSubscript,  // items[0][items[1]]
    kSlice,      // items[0][items[1]:items[2]:items[3]], null where absent
    kCall,       // items[0](arguments)
    kFilter,     // items[0] | name(arguments)
    kTest,       // items[0] is name(arguments)
    kUnary,      // name: not + -
    kBinary,     // name: and or + - * / // % ** ~ in "not in" == != < <= > >=
    kCompare,    // items[0] names[0] items[1] names[1] items[2] ...
    kCondition,  // items[0] if items[1] else items[2] (null: undefined)
  };
  Kind kind;
  int line = 0;
  int depth = 1;  // of the tree under it
  std::string name;
  Value constant;
  std::vector<ExprPtr> items;
  std::vector<std::string> names;
  CallArguments arguments;
};

struct Stmt;
using Block = std::vector<Stmt>;

struct Stmt {
  enum class Kind {
    kText,
    kOutput,    // expr
    kIf,        // conditions[i] -> blocks[i]; one block more: else
    kFor,       // targets in expr if conditions[0]: blocks[0] else blocks[1]
    kSet,       // targets = expr
    kSetField,  // targets[0].targets[1] = expr
    kSetBlock,  // targets[0] = the text of blocks[0]
    kMacro,     // text(targets with defaults): blocks[0]
    kBlock,     // blocks[0] as it is
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 0;
  std::string text;
  ExprPtr expr;
  std::vector<ExprPtr> conditions;
  std::vector<std::string> targets;
  std::vector<ExprPtr> defaults;  // as many as targets; null where there is none
  std::vector<Block> blocks;
};

struct Program {
  std::string name;
  std::string source;
  Block block;
};

// Throws Error: "name:line: what".
Block parse_template(const std::string& source, const std::string& name);

}  // namespace replayssm::jinja
