#include <algorithm>
#include <ctime>

#include "core/error.h"
#include "jinja/ast.h"
#include "jinja/builtins.h"
#include "jinja/template.h"

namespace replayssm::jinja {
namespace {

constexpr int64_t kMaxSteps = 5'000'000;             // expressions and statements
constexpr int64_t kStepsOfRound = 10;                // a loop's round costs about as many
constexpr int64_t kMaxWritten = int64_t{512} << 20;  // bytes of strings made on the way
constexpr int64_t kMaxRead = int64_t{2} << 30;       // bytes that filters and methods go through
constexpr int kMaxCalls = 40;                        // macros within macros
constexpr int kMaxDepth = 1200;                      // blocks and expressions within one another

// An error with its place in the template.
class Located : public Error {
 public:
  using Error::Error;
};

struct Scope {
  Scope* parent = nullptr;
  Dict variables;
};

enum class Flow { kOn, kBreak, kContinue };

class Renderer {
 public:
  explicit Renderer(const Program& program) : program_(program) {}

  std::string run(const Json& context) {
    Scope root;
    add_globals(root);
    for (const auto& item : context.items()) {
      assign(root.variables, item.key(), Value::from_json(item.value()));
    }
    std::string out;
    run_block(program_.block, root, out);
    return out;
  }

 private:
  // Bounds the interpreter's recursion.
  struct Nested {
    explicit Nested(int& depth) : depth(depth) {
      if (++depth > kMaxDepth) fail("the template nests too deep");
    }
    ~Nested() { --depth; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& depth;
  };

  void step(int64_t n = 1) {
    if ((steps_ += n) > kMaxSteps) fail("the template runs too long");
  }
  void charge(int64_t& sum, int64_t bytes, int64_t most) const {
    sum += bytes;
    if (sum > most) fail("the template makes too much text");
  }
  void charge_read(const Value& value) { charge(read_, value.weight(), kMaxRead); }
  Value written(Value value) {
    const int64_t bytes = value.is_list()     ? static_cast<int64_t>(value.list().size()) * 32
                          : value.is_string() ? static_cast<int64_t>(value.string().size())
                                              : 0;
    charge(written_, bytes, kMaxWritten);
    return value;
  }

  static Value function(const char* name, std::function<Value(Arguments&)> call) {
    return std::make_shared<const Callable>(Callable{name, std::move(call)});
  }

  void add_globals(Scope& root) const {
    const auto add = [&](const char* name, std::function<Value(Arguments&)> call) {
      root.variables.emplace_back(name, function(name, std::move(call)));
    };
    add("namespace", [](Arguments& arguments) -> Value {
      auto space = std::make_shared<Namespace>();
      if (!arguments.positional.empty() && arguments.positional[0].is_dict()) {
        space->fields = arguments.positional[0].dict();
      }
      for (auto& [name, value] : arguments.named) set_field(*space, name, value);
      return space;
    });
    add("dict", [](Arguments& arguments) -> Value { return arguments.named; });
    add("raise_exception", [](Arguments& arguments) -> Value {
      throw Raised(to_text(argument(arguments, 0, "message")));
    });
    add("strftime_now", [](Arguments& arguments) -> Value {
      const std::string format = to_text(argument(arguments, 0, "format"));
      const std::time_t now = std::time(nullptr);
      std::tm parts{};
      localtime_r(&now, &parts);
      char text[256];
      return std::string(text, std::strftime(text, sizeof(text), format.c_str(), &parts));
    });
    add("range", [](Arguments& arguments) -> Value {
      int64_t bounds[3] = {0, 0, 1};
      const size_t n = arguments.positional.size();
      if (n < 1 || n > 3) fail("range takes one to three ints");
      for (size_t i = 0; i < n; ++i) {
        if (!arguments.positional[i].is_int()) fail("range takes ints");
        bounds[n == 1 ? 1 : i] = arguments.positional[i].integer();
      }
      const auto [begin, end, by] = bounds;
      if (by == 0) fail("range: a step of zero");
      List out;
      for (int64_t i = begin; by > 0 ? i < end : i > end;) {
        if (out.size() >= 1'000'000) fail("range: more than 1000000 items");
        out.emplace_back(i);
        if (__builtin_add_overflow(i, by, &i)) break;
      }
      return out;
    });
  }

  // What would make a cycle, or outlive its scope, is kept out.
  static void set_field(Namespace& space, const std::string& name, const Value& value) {
    if (value.is_namespace() || value.is_callable()) {
      fail("a ", value.type_name(), " cannot be put into a namespace");
    }
    assign(space.fields, name, value);
  }

  static const Value* look_up(const Scope* scope, const std::string& name) {
    for (; scope != nullptr; scope = scope->parent) {
      if (const Value* value = find(scope->variables, name)) return value;
    }
    return nullptr;
  }

  // --- statements

  Flow run_block(const Block& block, Scope& scope, std::string& out) {
    const Nested nested(depth_);
    for (const Stmt& stmt : block) {
      Flow flow = Flow::kOn;
      try {
        step();
        flow = run(stmt, scope, out);
      } catch (const Located&) {
        throw;
      } catch (const Raised&) {
        throw;
      } catch (const Error& e) {
        throw Located(concat(program_.name, ":", stmt.line, ": ", e.what()));
      }
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  void write(std::string& out, const std::string& text) {
    charge(written_, static_cast<int64_t>(text.size()), kMaxWritten);
    out += text;
  }

  Flow run(const Stmt& stmt, Scope& scope, std::string& out) {
    switch (stmt.kind) {
      case Stmt::Kind::kText:
        write(out, stmt.text);
        return Flow::kOn;
      case Stmt::Kind::kOutput:
        write(out, to_text(eval(*stmt.expr, scope)));
        return Flow::kOn;
      case Stmt::Kind::kIf:
        for (size_t i = 0; i < stmt.conditions.size(); ++i) {
          if (eval(*stmt.conditions[i], scope).truth()) {
            return run_block(stmt.blocks[i], scope, out);
          }
        }
        if (stmt.blocks.size() > stmt.conditions.size()) {
          return run_block(stmt.blocks.back(), scope, out);
        }
        return Flow::kOn;
      case Stmt::Kind::kFor:
        return run_for(stmt, scope, out);
      case Stmt::Kind::kSet:
        unpack(stmt.targets, eval(*stmt.expr, scope), scope);
        return Flow::kOn;
      case Stmt::Kind::kSetField: {
        const Value* space = look_up(&scope, stmt.targets[0]);
        if (space == nullptr || !space->is_namespace()) {
          fail("\"", stmt.targets[0], "\" is no namespace");
        }
        const Value holder = *space;
        set_field(holder.space(), stmt.targets[1], eval(*stmt.expr, scope));
        return Flow::kOn;
      }
      case Stmt::Kind::kSetBlock: {
        std::string text;
        Scope inner{&scope, {}};
        const Flow flow = run_block(stmt.blocks[0], inner, text);
        assign(scope.variables, stmt.targets[0], std::move(text));
        return flow;
      }
      case Stmt::Kind::kMacro:
        define_macro(stmt, scope);
        return Flow::kOn;
      case Stmt::Kind::kBlock:
        return run_block(stmt.blocks[0], scope, out);
      case Stmt::Kind::kBreak:
        return Flow::kBreak;
      case Stmt::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  static void unpack(const std::vector<std::string>& targets, Value value, Scope& scope) {
    if (targets.size() == 1) {
      assign(scope.variables, targets[0], std::move(value));
      return;
    }
    const List parts = items_of(value);
    if (parts.size() != targets.size()) {
      fail("cannot spread ", parts.size(), " values over ", targets.size(), " names");
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(scope.variables, targets[i], parts[i]);
  }

  Flow run_for(const Stmt& stmt, Scope& scope, std::string& out) {
    const Value iterated = eval(*stmt.expr, scope);
    List items = items_of(iterated);
    if (!stmt.conditions.empty()) {
      List kept;
      for (Value& item : items) {
        step();
        Scope inner{&scope, {}};
        unpack(stmt.targets, item, inner);
        if (eval(*stmt.conditions[0], inner).truth()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      return stmt.blocks.size() > 1 ? run_block(stmt.blocks[1], scope, out) : Flow::kOn;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      step(kStepsOfRound);
      Scope inner{&scope, {}};
      inner.variables.emplace_back("loop", loop_value(items, i));
      unpack(stmt.targets, items[i], inner);
      if (run_block(stmt.blocks[0], inner, out) == Flow::kBreak) break;
    }
    return Flow::kOn;
  }

  static Value loop_value(const List& items, size_t i) {
    const auto n = static_cast<int64_t>(items.size());
    const auto at = static_cast<int64_t>(i);
    Dict loop = {{"index", at + 1},        {"index0", at}, {"first", at == 0},
                 {"last", at == n - 1},    {"length", n},  {"revindex", n - at},
                 {"revindex0", n - at - 1}};
    if (i > 0) loop.emplace_back("previtem", items[i - 1]);
    if (i + 1 < items.size()) loop.emplace_back("nextitem", items[i + 1]);
    return loop;
  }

  void define_macro(const Stmt& stmt, Scope& scope) {
    Scope* const parent = &scope;
    assign(scope.variables, stmt.text,
           function(stmt.text.c_str(), [this, &stmt, parent](Arguments& arguments) -> Value {
             return call_macro(stmt, *parent, arguments);
           }));
  }

  Value call_macro(const Stmt& stmt, Scope& parent, Arguments& arguments) {
    if (arguments.positional.size() > stmt.targets.size()) {
      fail("the macro ", stmt.text, " takes ", stmt.targets.size(), " arguments at most");
    }
    for (const auto& [name, value] : arguments.named) {
      if (std::find(stmt.targets.begin(), stmt.targets.end(), name) == stmt.targets.end()) {
        fail("the macro ", stmt.text, " has no parameter ", name.substr(0, 60));
      }
    }
    if (++calls_ > kMaxCalls) fail("macros call one another too deep");
    Scope scope{&parent, {}};
    for (size_t i = 0; i < stmt.targets.size(); ++i) {
      const std::string& name = stmt.targets[i];
      const Value* named = find(arguments.named, name);
      if (i < arguments.positional.size()) {
        assign(scope.variables, name, arguments.positional[i]);
      } else if (named != nullptr) {
        assign(scope.variables, name, *named);
      } else if (stmt.defaults[i] != nullptr) {
        assign(scope.variables, name, eval(*stmt.defaults[i], scope));
      } else {
        assign(scope.variables, name, Undefined{name});
      }
    }
    std::string out;
    run_block(stmt.blocks[0], scope, out);
    --calls_;
    return out;
  }

  // --- expressions

  Value eval(const Expr& expr, Scope& scope) {
    const Nested nested(depth_);
    step();
    switch (expr.kind) {
      case Expr::Kind::kConstant:
        return expr.constant;
      case Expr::Kind::kName: {
        const Value* value = look_up(&scope, expr.name);
        return value == nullptr ? Value(Undefined{expr.name}) : *value;
      }
      case Expr::Kind::kList: {
        List list;
        for (const auto& item : expr.items) list.push_back(eval(*item, scope));
        return list;
      }
      case Expr::Kind::kDict: {
        Dict dict;
        for (size_t i = 0; i < expr.items.size(); i += 2) {
          const Value key = eval(*expr.items[i], scope);
          if (!key.is_string()) fail("a dict's key must be a str here");
          assign(dict, key.string(), eval(*expr.items[i + 1], scope));
        }
        return dict;
      }
      case Expr::Kind::kAttribute:
        return attribute(eval(*expr.items[0], scope), expr.name);
      case Expr::Kind::kSubscript: {
        const Value object = eval(*expr.items[0], scope);
        const Value index = eval(*expr.items[1], scope);
        if (object.is_string()) charge_read(object);
        return subscript(object, index);
      }
      case Expr::Kind::kSlice: {
        const Value object = eval(*expr.items[0], scope);
        Value bounds[3];
        for (size_t i = 0; i < 3; ++i) {
          if (expr.items[i + 1]) bounds[i] = eval(*expr.items[i + 1], scope);
        }
        if (object.is_undefined()) fail("\"", object.undefined().name, "\" is undefined");
        return written(slice(object, bounds[0], bounds[1], bounds[2]));
      }
      case Expr::Kind::kCall:
        return written(call(expr, scope));
      case Expr::Kind::kFilter: {
        const Filter filter = find_filter(expr.name);
        if (filter == nullptr) fail("no filter is called \"", expr.name.substr(0, 60), "\"");
        const Value input = eval(*expr.items[0], scope);
        Arguments arguments = evaluate(expr.arguments, scope);
        if (!(input.is_list() && (expr.name == "length" || expr.name == "count"))) {
          charge_read(input);
        }
        return written(filter(input, arguments));
      }
      case Expr::Kind::kTest: {
        const Test test = find_test(expr.name);
        if (test == nullptr) fail("no test is called \"", expr.name.substr(0, 60), "\"");
        const Value input = eval(*expr.items[0], scope);
        Arguments arguments = evaluate(expr.arguments, scope);
        return test(input, arguments);
      }
      case Expr::Kind::kUnary:
        return unary(expr, scope);
      case Expr::Kind::kBinary:
        return binary(expr, scope);
      case Expr::Kind::kCompare:
        return comparison(expr, scope);
      case Expr::Kind::kCondition:
        if (eval(*expr.items[1], scope).truth()) return eval(*expr.items[0], scope);
        if (expr.items[2] == nullptr) return Undefined{"the else of a condition"};
        return eval(*expr.items[2], scope);
    }
    return {};
  }

  Arguments evaluate(const CallArguments& from, Scope& scope) {
    Arguments arguments;
    for (const auto& item : from.positional) arguments.positional.push_back(eval(*item, scope));
    for (const auto& [name, item] : from.named) {
      arguments.named.emplace_back(name, eval(*item, scope));
    }
    return arguments;
  }

  static Value attribute(const Value& object, const std::string& name) {
    if (is_method(object, name)) {
      return function(name.c_str(), [object, name](Arguments& arguments) {
        return call_method(object, name, arguments);
      });
    }
    return subscript(object, Value(name));
  }

  Value call(const Expr& expr, Scope& scope) {
    const Expr& callee = *expr.items[0];
    if (callee.kind == Expr::Kind::kAttribute) {
      const Value object = eval(*callee.items[0], scope);
      if (is_method(object, callee.name)) {
        Arguments arguments = evaluate(expr.arguments, scope);
        charge_read(object);
        return call_method(object, callee.name, arguments);
      }
    }
    const Value function = eval(callee, scope);
    if (!function.is_callable()) {
      fail(function.is_undefined()
               ? concat("\"", function.undefined().name.substr(0, 60), "\" is undefined")
               : concat("a ", function.type_name(), " cannot be called"));
    }
    Arguments arguments = evaluate(expr.arguments, scope);
    return function.callable().call(arguments);
  }

  Value unary(const Expr& expr, Scope& scope) {
    const Value value = eval(*expr.items[0], scope);
    if (expr.name == "not") return !value.truth();
    if (!value.is_number()) fail("cannot compute ", expr.name, " of a ", value.type_name());
    if (expr.name == "+") return value;
    if (value.is_float()) return -value.floating();
    return arithmetic("-", int64_t{0}, value);
  }

  Value binary(const Expr& expr, Scope& scope) {
    Value left = eval(*expr.items[0], scope);
    if (expr.name == "and") return left.truth() ? eval(*expr.items[1], scope) : left;
    if (expr.name == "or") return left.truth() ? left : eval(*expr.items[1], scope);
    const Value right = eval(*expr.items[1], scope);
    return written(arithmetic(expr.name, left, right));
  }

  Value comparison(const Expr& expr, Scope& scope) {
    Value left = eval(*expr.items[0], scope);
    for (size_t i = 0; i < expr.names.size(); ++i) {
      Value right = eval(*expr.items[i + 1], scope);
      charge_read(right);
      const std::string& op = expr.names[i];
      bool holds = false;
      if (op == "==") {
        holds = equal(left, right);
      } else if (op == "!=") {
        holds = !equal(left, right);
      } else if (op == "in") {
        holds = contains(right, left);
      } else if (op == "not in") {
        holds = !contains(right, left);
      } else {
        const int order = compare(left, right);
        holds = op == "<"    ? order < 0
                : op == "<=" ? order <= 0
                : op == ">"  ? order > 0
                             : order >= 0;
      }
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  const Program& program_;
  int64_t steps_ = 0;
  int64_t written_ = 0;
  int64_t read_ = 0;
  int calls_ = 0;
  int depth_ = 0;
};

}  // namespace

Template Template::parse(std::string_view source, const std::string& name) {
  auto program = std::make_shared<Program>();
  program->name = name;
  program->source = std::string(source);
  program->block = parse_template(program->source, name);
  return Template(std::move(program));
}

std::string Template::render(const Json& context) const {
  REPLAYSSM_CHECK(context.is_object());
  return Renderer(*program_).run(context);
}

bool Template::mentions(std::string_view variable) const {
  return program_->source.find(variable) != std::string::npos;
}

}  // namespace replayssm::jinja
