// The part of Jinja that chat templates are written in. What is taken renders as the Python library
// does with trim_blocks and lstrip_blocks (as Hugging Face sets them): see docs/http.md for the
// list; all else is refused with the template's line.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/json.h"

namespace replayssm::jinja {

// The template itself called raise_exception.
class Raised : public Error {
 public:
  using Error::Error;
};

struct Program;

// Immutable; may be rendered by many threads at once.
class Template {
 public:
  // Throws Error, one line: "name:line: what".
  static Template parse(std::string_view source, const std::string& name);

  // `context`: an object, its fields are the template's variables. Throws Error likewise; time,
  // memory and output are bounded.
  std::string render(const Json& context) const;

  // Whether the source speaks of a variable of this name.
  bool mentions(std::string_view variable) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const Program> program_;
};

}  // namespace replayssm::jinja
