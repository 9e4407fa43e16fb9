#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/chat/jinja/parse/parser.h"
#include "runtime/chat/jinja/parse/parser_level.h"

// The operators of expressions, lowest precedence first, and lists of expressions.
namespace hayloft::runtime::jinja {

ExpressionPtr Parser::make(Type type, int line) const {
  auto made = std::make_unique<Expression>();
  made->type = type;
  made->line = line;
  return made;
}

ExpressionPtr Parser::make(Type type, int line, ExpressionPtr a, ExpressionPtr b) const {
  ExpressionPtr made = make(type, line);
  add(*made, std::move(a));
  if (b) add(*made, std::move(b));
  return made;
}

// A long chain of operators is a deep tree although nothing lies in brackets.
void Parser::add(Expression& parent, ExpressionPtr part) const {
  if (part) parent.depth = std::max(parent.depth, part->depth + 1);
  if (parent.depth > most_levels) refuse(parent.line, "an expression of too many parts");
  parent.parts.push_back(std::move(part));
}

ExpressionPtr Parser::expression() {
  const Level level(*this);
  ExpressionPtr value = either();
  while (current().is_name("if")) {
    const int line = take().line;
    ExpressionPtr test = either();
    ExpressionPtr whole = make(Type::condition, line, std::move(value), std::move(test));
    add(*whole, skip_name("else") ? expression() : nullptr);
    value = std::move(whole);
  }
  return value;
}

ExpressionPtr Parser::either() {
  ExpressionPtr left = both();
  while (current().is_name("or")) {
    const int line = take().line;
    left = make(Type::logical, line, std::move(left), both());
    left->name = "or";
  }
  return left;
}

ExpressionPtr Parser::both() {
  ExpressionPtr left = negation();
  while (current().is_name("and")) {
    const int line = take().line;
    left = make(Type::logical, line, std::move(left), negation());
    left->name = "and";
  }
  return left;
}

ExpressionPtr Parser::negation() {
  if (!current().is_name("not")) return comparison();
  const Level level(*this);
  const int line = take().line;
  return make(Type::negation, line, negation());
}

ExpressionPtr Parser::comparison() {
  ExpressionPtr first = sum();
  ExpressionPtr whole;
  for (;;) {
    std::string op;
    const Token& token = current();
    for (const std::string_view each : {"==", "!=", "<", "<=", ">", ">="}) {
      if (token.is_symbol(each)) op = each;
    }
    if (token.is_name("in")) op = "in";
    if (token.is_name("not") && ahead().is_name("in")) {
      op = "not in";
      take();
    }
    if (op.empty()) return whole ? std::move(whole) : std::move(first);
    const int line = take().line;
    if (!whole) whole = make(Type::compare, line, std::move(first));
    add(*whole, sum());
    whole->operators.push_back(std::move(op));
  }
}

ExpressionPtr Parser::sum() {
  ExpressionPtr left = concat();
  while (current().is_symbol("+") || current().is_symbol("-")) {
    const Token op = take();
    left = make(Type::binary, op.line, std::move(left), concat());
    left->name = op.value;
  }
  return left;
}

ExpressionPtr Parser::concat() {
  ExpressionPtr first = product();
  if (!current().is_symbol("~")) return first;
  ExpressionPtr whole = make(Type::concat, current().line, std::move(first));
  while (skip_symbol("~")) add(*whole, product());
  return whole;
}

ExpressionPtr Parser::product() {
  ExpressionPtr left = power();
  for (;;) {
    const Token& token = current();
    if (!token.is_symbol("*") && !token.is_symbol("/") && !token.is_symbol("//") && !token.is_symbol("%")) return left;
    const Token op = take();
    left = make(Type::binary, op.line, std::move(left), power());
    left->name = op.value;
  }
}

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary(true);
  while (current().is_symbol("**")) {
    const int line = take().line;
    left = make(Type::binary, line, std::move(left), unary(true));
    left->name = "**";
  }
  return left;
}

ExpressionPtr Parser::unary(bool with_filters) {
  const Level level(*this);
  const Token& token = current();
  ExpressionPtr value;
  if (token.is_symbol("-") || token.is_symbol("+")) {
    const Token sign = take();
    value = make(sign.value == "-" ? Type::minus : Type::plus, sign.line, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value), false) : std::move(value);
}

bool Parser::tuple_ends(std::string_view end_name) const {
  const Token& token = current();
  return token.is(TokenType::print_end) || token.is(TokenType::block_end) || token.is_symbol(")") ||
         (!end_name.empty() && token.is_name(end_name));
}

ExpressionPtr Parser::tuple(bool conditions, bool parenthesised, std::string_view end_name) {
  const Level level(*this);
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  bool commas = false;
  while (!tuple_ends(end_name)) {
    parts.push_back(conditions ? expression() : either());
    if (!skip_symbol(",")) break;
    commas = true;
  }
  if (!commas) {
    if (parts.empty() && !parenthesised) unexpected("an expression");
    if (!parts.empty()) return std::move(parts[0]);
  }
  ExpressionPtr whole = make(Type::tuple, line);
  for (ExpressionPtr& part : parts) add(*whole, std::move(part));
  return whole;
}

ExpressionPtr Parser::target(bool attributes) {
  const Level level(*this);
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  bool commas = false;
  do {
    if (!parts.empty()) commas = true;
    if (current().is_name("in") || current().is_symbol("=") || current().is_symbol(")")) break;
    if (skip_symbol("(")) {
      parts.push_back(target(false));
      expect_symbol(")");
      continue;
    }
    ExpressionPtr name = make(Type::name, current().line);
    name->name = expect_name("a name to assign to");
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name->name == constant) refuse(line, fmt::format("'{}' cannot be assigned to", constant));
    }
    if (attributes && skip_symbol(".")) {
      ExpressionPtr attribute = make(Type::attribute, line, std::move(name));
      attribute->name = expect_name("the name of an attribute");
      name = std::move(attribute);
    }
    parts.push_back(std::move(name));
  } while (skip_symbol(","));
  if (parts.empty()) unexpected("a name to assign to");
  if (!commas) return std::move(parts[0]);
  ExpressionPtr whole = make(Type::tuple, line);
  for (ExpressionPtr& part : parts) add(*whole, std::move(part));
  return whole;
}

}  // namespace hayloft::runtime::jinja
