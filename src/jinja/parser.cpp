#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "core/error.h"
#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace replayssm::jinja {
namespace {

// Of expressions and of blocks: the interpreter recurses as deep.
constexpr int kMaxDepth = 400;
constexpr int kMaxBlocks = 60;

class Parser {
 public:
  Parser(const std::string& source, const std::string& name)
      : name_(name), tokens_(tokenize(source, name)) {}

  Block run() {
    Block block = parse_block({});
    if (peek().kind != Token::Kind::kEnd) error("unexpected tag");
    return block;
  }

 private:
  using Kind = Expr::Kind;

  [[noreturn]] void error(const std::string& what) const {
    fail(name_, ":", peek().line, ": ", what);
  }

  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& next() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_operator(std::string_view op, size_t ahead = 0) const {
    return peek(ahead).kind == Token::Kind::kOperator && peek(ahead).text == op;
  }
  bool is_name(std::string_view name, size_t ahead = 0) const {
    return peek(ahead).kind == Token::Kind::kName && peek(ahead).text == name;
  }
  bool accept_operator(std::string_view op) {
    if (!is_operator(op)) return false;
    next();
    return true;
  }
  bool accept_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }
  void expect_operator(std::string_view op) {
    if (!accept_operator(op)) error(concat("expected '", op, "'"));
  }
  std::string expect_identifier() {
    if (peek().kind != Token::Kind::kName) error("expected a name");
    return next().text;
  }
  void expect_block_end() {
    if (peek().kind != Token::Kind::kBlockEnd) error("unexpected text at the end of a tag");
    next();
  }

  ExprPtr make(Kind kind, std::string name = {}) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = peek().line;
    expr->name = std::move(name);
    return expr;
  }

  // Adds a child; what is absent stays null.
  void add(Expr& expr, ExprPtr item) const {
    if (item) deepen(expr, *item);
    expr.items.push_back(std::move(item));
  }
  void deepen(Expr& expr, const Expr& item) const {
    expr.depth = std::max(expr.depth, item.depth + 1);
    if (expr.depth > kMaxDepth) error("an expression nests too deep");
  }

  // Bounds the parser's own recursion.
  struct Nested {
    explicit Nested(Parser& parser, int& level, int most) : level(level) {
      if (++level > most) parser.error("nests too deep");
    }
    ~Nested() { --level; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& level;
  };

  // --- statements

  bool at_block(std::initializer_list<std::string_view> names) const {
    return peek().kind == Token::Kind::kBlockBegin &&
           std::any_of(names.begin(), names.end(), [&](auto name) { return is_name(name, 1); });
  }

  // Up to one of these tags, which is left.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this, block_level_, kMaxBlocks);
    Block block;
    for (;;) {
      if (peek().kind == Token::Kind::kEnd || at_block(ends)) return block;
      if (peek().kind == Token::Kind::kText) {
        Stmt stmt{};
        stmt.kind = Stmt::Kind::kText;
        stmt.line = peek().line;
        stmt.text = next().text;
        block.push_back(std::move(stmt));
      } else if (peek().kind == Token::Kind::kOutputBegin) {
        next();
        Stmt stmt{};
        stmt.kind = Stmt::Kind::kOutput;
        stmt.line = peek().line;
        stmt.expr = parse_tuple();
        if (peek().kind != Token::Kind::kOutputEnd) error("expected '}}'");
        next();
        block.push_back(std::move(stmt));
      } else {
        next();
        block.push_back(parse_statement());
      }
    }
  }

  // {% end %}, which must be there.
  void close(std::string_view end) {
    if (!at_block({end})) error(concat("expected {% ", end, " %}"));
    next();
    next();
    expect_block_end();
  }

  Stmt parse_statement() {
    Stmt stmt{};
    stmt.line = peek().line;
    const std::string tag = expect_identifier();
    if (tag == "if") {
      parse_if(stmt);
    } else if (tag == "for") {
      parse_for(stmt);
    } else if (tag == "set") {
      parse_set(stmt);
    } else if (tag == "macro") {
      parse_macro(stmt);
    } else if (tag == "generation") {  // marks the assistant's text for training
      stmt.kind = Stmt::Kind::kBlock;
      expect_block_end();
      stmt.blocks.push_back(parse_block({"endgeneration"}));
      close("endgeneration");
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) error(concat(tag, " outside a loop"));
      stmt.kind = tag == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
      expect_block_end();
    } else {
      error(concat("the tag \"", tag.substr(0, 40), "\" is not taken here"));
    }
    return stmt;
  }

  void parse_if(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kIf;
    for (;;) {
      stmt.conditions.push_back(parse_tuple());
      expect_block_end();
      stmt.blocks.push_back(parse_block({"elif", "else", "endif"}));
      if (!at_block({"elif"})) break;
      next();
      next();
    }
    if (at_block({"else"})) {
      next();
      next();
      expect_block_end();
      stmt.blocks.push_back(parse_block({"endif"}));
    }
    close("endif");
  }

  void parse_targets(Stmt& stmt) {
    const bool bracket = accept_operator("(");
    do {
      stmt.targets.push_back(expect_identifier());
    } while (accept_operator(",") && peek().kind == Token::Kind::kName && !is_name("in"));
    if (bracket) expect_operator(")");
  }

  void parse_for(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kFor;
    parse_targets(stmt);
    if (!accept_name("in")) error("expected 'in'");
    stmt.expr = parse_tuple(/*with_condition=*/false);
    if (accept_name("if")) stmt.conditions.push_back(parse_expression());
    if (is_name("recursive")) error("recursive loops are not taken here");
    expect_block_end();
    ++loops_;
    stmt.blocks.push_back(parse_block({"else", "endfor"}));
    --loops_;
    if (at_block({"else"})) {
      next();
      next();
      expect_block_end();
      stmt.blocks.push_back(parse_block({"endfor"}));
    }
    close("endfor");
  }

  void parse_set(Stmt& stmt) {
    if (peek().kind == Token::Kind::kName && is_operator(".", 1)) {
      stmt.kind = Stmt::Kind::kSetField;
      stmt.targets.push_back(next().text);
      next();
      stmt.targets.push_back(expect_identifier());
    } else {
      stmt.kind = Stmt::Kind::kSet;
      parse_targets(stmt);
    }
    if (accept_operator("=")) {
      stmt.expr = parse_tuple();
      expect_block_end();
      return;
    }
    if (stmt.kind != Stmt::Kind::kSet || stmt.targets.size() != 1) error("expected '='");
    stmt.kind = Stmt::Kind::kSetBlock;
    expect_block_end();
    stmt.blocks.push_back(parse_block({"endset"}));
    close("endset");
  }

  void parse_macro(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kMacro;
    stmt.text = expect_identifier();
    expect_operator("(");
    while (!is_operator(")")) {
      if (!stmt.targets.empty()) expect_operator(",");
      stmt.targets.push_back(expect_identifier());
      stmt.defaults.push_back(accept_operator("=") ? parse_expression() : nullptr);
      if (stmt.targets.size() > 64) error("a macro has more than 64 parameters");
    }
    next();
    expect_block_end();
    const int loops = std::exchange(loops_, 0);
    stmt.blocks.push_back(parse_block({"endmacro"}));
    loops_ = loops;
    close("endmacro");
  }

  // --- expressions, loosest first

  // a, b, c: a list; one expression alone is itself.
  ExprPtr parse_tuple(bool with_condition = true) {
    ExprPtr first = with_condition ? parse_expression() : parse_or();
    if (!is_operator(",")) return first;
    ExprPtr list = make(Kind::kList);
    add(*list, std::move(first));
    while (accept_operator(",")) {
      const auto kind = peek().kind;
      if (kind == Token::Kind::kBlockEnd || kind == Token::Kind::kOutputEnd || is_operator(")")) {
        break;
      }
      add(*list, with_condition ? parse_expression() : parse_or());
    }
    return list;
  }

  ExprPtr parse_expression() {
    const Nested nested(*this, expression_level_, kMaxDepth / 4);
    ExprPtr expr = parse_or();
    while (accept_name("if")) {
      ExprPtr condition = make(Kind::kCondition);
      add(*condition, std::move(expr));
      add(*condition, parse_or());
      add(*condition, accept_name("else") ? parse_expression() : nullptr);
      expr = std::move(condition);
    }
    return expr;
  }

  ExprPtr binary(std::string op, ExprPtr left, ExprPtr right) const {
    ExprPtr expr = make(Kind::kBinary, std::move(op));
    add(*expr, std::move(left));
    add(*expr, std::move(right));
    return expr;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (accept_name("or")) left = binary("or", std::move(left), parse_and());
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (accept_name("and")) left = binary("and", std::move(left), parse_not());
    return left;
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nested nested(*this, expression_level_, kMaxDepth / 4);
    next();
    ExprPtr expr = make(Kind::kUnary, "not");
    add(*expr, parse_not());
    return expr;
  }

  std::string comparison() {
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (accept_operator(op)) return op;
    }
    if (accept_name("in")) return "in";
    if (is_name("not") && is_name("in", 1)) {
      next();
      next();
      return "not in";
    }
    return {};
  }

  ExprPtr parse_compare() {
    ExprPtr left = parse_sum();
    std::string op = comparison();
    if (op.empty()) return left;
    ExprPtr expr = make(Kind::kCompare);
    add(*expr, std::move(left));
    for (; !op.empty(); op = comparison()) {
      expr->names.push_back(op);
      add(*expr, parse_sum());
    }
    return expr;
  }

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (is_operator("+") || is_operator("-")) {
      const std::string op = next().text;
      left = binary(op, std::move(left), parse_concat());
    }
    return left;
  }

  ExprPtr parse_concat() {
    ExprPtr left = parse_product();
    while (accept_operator("~")) left = binary("~", std::move(left), parse_product());
    return left;
  }

  ExprPtr parse_product() {
    ExprPtr left = parse_power();
    while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
      const std::string op = next().text;
      left = binary(op, std::move(left), parse_power());
    }
    return left;
  }

  ExprPtr parse_power() {
    ExprPtr left = parse_unary(true);
    while (accept_operator("**")) left = binary("**", std::move(left), parse_unary(true));
    return left;
  }

  ExprPtr parse_unary(bool with_filters) {
    const Nested nested(*this, expression_level_, kMaxDepth / 4);
    ExprPtr expr;
    if (is_operator("-") || is_operator("+")) {
      expr = make(Kind::kUnary, next().text);
      add(*expr, parse_unary(false));
    } else {
      expr = parse_primary();
    }
    expr = parse_postfix(std::move(expr));
    return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
  }

  ExprPtr constant(Value value) const {
    ExprPtr expr = make(Kind::kConstant);
    expr->constant = std::move(value);
    return expr;
  }

  ExprPtr parse_primary() {
    const Token token = peek();
    switch (token.kind) {
      case Token::Kind::kName:
        next();
        if (token.text == "true" || token.text == "True") return constant(true);
        if (token.text == "false" || token.text == "False") return constant(false);
        if (token.text == "none" || token.text == "None") return constant(None{});
        return make(Kind::kName, token.text);
      case Token::Kind::kString: {
        std::string text;
        while (peek().kind == Token::Kind::kString) text += next().text;
        return constant(std::move(text));
      }
      case Token::Kind::kInt: {
        int64_t number = 0;
        const char* end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, number).ec != std::errc{}) {
          error("a number is too large");
        }
        next();
        return constant(number);
      }
      case Token::Kind::kFloat: {
        double number = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
        next();
        return constant(number);
      }
      case Token::Kind::kOperator:
        if (token.text == "(") return parse_bracket();
        if (token.text == "[") return parse_list();
        if (token.text == "{") return parse_dict();
        [[fallthrough]];
      default:
        error("expected an expression");
    }
  }

  ExprPtr parse_bracket() {
    next();
    if (accept_operator(")")) return make(Kind::kList);
    ExprPtr inner = parse_tuple();
    expect_operator(")");
    return inner;
  }

  ExprPtr parse_list() {
    ExprPtr list = make(Kind::kList);
    next();
    while (!is_operator("]")) {
      if (!list->items.empty()) expect_operator(",");
      if (is_operator("]")) break;
      add(*list, parse_expression());
    }
    next();
    return list;
  }

  ExprPtr parse_dict() {
    ExprPtr dict = make(Kind::kDict);
    next();
    while (!is_operator("}")) {
      if (!dict->items.empty()) expect_operator(",");
      if (is_operator("}")) break;
      add(*dict, parse_expression());
      expect_operator(":");
      add(*dict, parse_expression());
    }
    next();
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    for (;;) {
      if (accept_operator(".")) {
        ExprPtr outer = make(Kind::kAttribute);
        if (peek().kind != Token::Kind::kName) error("expected a name behind '.'");
        outer->name = next().text;
        add(*outer, std::move(expr));
        expr = std::move(outer);
      } else if (is_operator("[")) {
        expr = parse_subscript(std::move(expr));
      } else if (is_operator("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_call(ExprPtr function) {
    ExprPtr call = make(Kind::kCall);
    add(*call, std::move(function));
    parse_arguments(*call);
    return call;
  }

  ExprPtr parse_subscript(ExprPtr object) {
    ExprPtr expr = make(Kind::kSubscript);
    next();
    add(*expr, std::move(object));
    if (!is_operator(":")) add(*expr, parse_expression());
    if (accept_operator("]")) return expr;
    expr->kind = Kind::kSlice;
    if (expr->items.size() == 1) expr->items.push_back(nullptr);
    while (accept_operator(":")) {
      if (expr->items.size() == 4) error("a slice has three parts at most");
      const bool absent = is_operator(":") || is_operator("]");
      add(*expr, absent ? nullptr : parse_expression());
    }
    expect_operator("]");
    expr->items.resize(4);
    return expr;
  }

  void parse_arguments(Expr& call) {
    expect_operator("(");
    bool first = true;
    while (!is_operator(")")) {
      if (!first) expect_operator(",");
      if (is_operator(")")) break;
      first = false;
      if (peek().kind == Token::Kind::kName && is_operator("=", 1)) {
        std::string name = next().text;
        next();
        ExprPtr value = parse_expression();
        deepen(call, *value);
        call.arguments.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!call.arguments.named.empty()) error("a positional argument behind a named one");
        ExprPtr value = parse_expression();
        deepen(call, *value);
        call.arguments.positional.push_back(std::move(value));
      }
    }
    next();
  }

  ExprPtr parse_filters(ExprPtr expr) {
    for (;;) {
      if (accept_operator("|")) {
        ExprPtr filter = make(Kind::kFilter, expect_identifier());
        add(*filter, std::move(expr));
        if (is_operator("(")) parse_arguments(*filter);
        expr = std::move(filter);
      } else if (accept_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (is_operator("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_test(ExprPtr expr) {
    const bool negated = accept_name("not");
    ExprPtr test = make(Kind::kTest, expect_identifier());
    add(*test, std::move(expr));
    const auto kind = peek().kind;
    if (is_operator("(")) {
      parse_arguments(*test);
    } else if (kind == Token::Kind::kString || kind == Token::Kind::kInt ||
               kind == Token::Kind::kFloat || is_operator("[") || is_operator("{") ||
               (kind == Token::Kind::kName && !is_name("else") && !is_name("or") &&
                !is_name("and") && !is_name("if") && !is_name("is") && !is_name("in") &&
                !is_name("not"))) {
      ExprPtr value = parse_postfix(parse_primary());
      deepen(*test, *value);
      test->arguments.positional.push_back(std::move(value));
    }
    if (!negated) return test;
    ExprPtr inverse = make(Kind::kUnary, "not");
    add(*inverse, std::move(test));
    return inverse;
  }

  const std::string& name_;
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int loops_ = 0;
  int block_level_ = 0;
  int expression_level_ = 0;
};

}  // namespace

Block parse_template(const std::string& source, const std::string& name) {
  return Parser(source, name).run();
}

}  // namespace replayssm::jinja
