#include <charconv>
#include <cstdlib>
#include <utility>

#include "offload/error.h"
#include "runtime/chat/jinja/parse/parser.h"
#include "runtime/chat/jinja/parse/parser_level.h"

// Names, literals, and what stands behind them: subscripts, calls, filters, tests.
namespace hayloft::runtime::jinja {

ExpressionPtr Parser::primary() {
  const Token& token = current();
  if (token.is_symbol("(")) {
    take();
    ExpressionPtr inside = tuple(true, true, "");
    expect_symbol(")");
    return inside;
  }
  if (token.is_symbol("[")) return list();
  if (token.is_symbol("{")) return dict();

  ExpressionPtr value = make(Type::constant, token.line);
  switch (token.type) {
    case TokenType::name:
      value->name = take().value;
      if (value->name == "true" || value->name == "True") {
        value->value = true;
      } else if (value->name == "false" || value->name == "False") {
        value->value = false;
      } else if (value->name == "none" || value->name == "None") {
        value->value = nullptr;
      } else {
        value->type = Type::name;
        if (!macros_.empty()) {
          macros_.back()->reads_caller |= value->name == "caller";
          macros_.back()->reads_varargs |= value->name == "varargs";
          macros_.back()->reads_kwargs |= value->name == "kwargs";
        }
      }
      return value;
    case TokenType::text: {
      std::string text;
      while (current().is(TokenType::text)) text += take().value;
      value->value = std::move(text);
      return value;
    }
    case TokenType::integer: {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(token.value.data(), token.value.data() + token.value.size(), number);
      if (error != std::errc()) refuse(token.line, "a number of more than 63 bits");
      value->value = number;
      take();
      return value;
    }
    case TokenType::real:
      value->value = std::strtod(token.value.c_str(), nullptr);
      take();
      return value;
    default:
      unexpected("an expression");
  }
}

ExpressionPtr Parser::list() {
  ExpressionPtr value = make(Type::list, take().line);
  while (!skip_symbol("]")) {
    if (!value->parts.empty()) {
      expect_symbol(",");
      if (skip_symbol("]")) break;
    }
    add(*value, expression());
  }
  return value;
}

ExpressionPtr Parser::dict() {
  ExpressionPtr value = make(Type::dict, take().line);
  while (!skip_symbol("}")) {
    if (!value->parts.empty()) {
      expect_symbol(",");
      if (skip_symbol("}")) break;
    }
    add(*value, expression());
    expect_symbol(":");
    add(*value, expression());
  }
  return value;
}

ExpressionPtr Parser::postfix(ExpressionPtr value) {
  for (;;) {
    if (current().is_symbol(".") || current().is_symbol("[")) {
      value = subscript(std::move(value));
    } else if (current().is_symbol("(")) {
      value = call_of(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr value) {
  const Token opener = take();
  if (opener.value == ".") {
    if (current().is(TokenType::integer)) {
      return make(Type::item, opener.line, std::move(value), primary());
    }
    ExpressionPtr attribute = make(Type::attribute, opener.line, std::move(value));
    attribute->name = expect_name("the name of an attribute");
    return attribute;
  }
  // A slice's parts may be absent; a lone expression is an index.
  ExpressionPtr parts[3];
  int colons = 0;
  const auto at_end = [&] { return current().is_symbol("]") || current().is_symbol(":"); };
  for (;;) {
    if (!at_end()) parts[colons] = expression();
    if (colons == 2 || !skip_symbol(":")) break;
    ++colons;
  }
  if (current().is_symbol(",")) refuse(opener.line, "an index of several parts is not supported");
  expect_symbol("]");
  if (colons == 0) {
    if (!parts[0]) refuse(opener.line, "expected an index in []");
    return make(Type::item, opener.line, std::move(value), std::move(parts[0]));
  }
  ExpressionPtr slice = make(Type::slice, opener.line, std::move(value));
  for (ExpressionPtr& part : parts) add(*slice, std::move(part));
  return slice;
}

ExpressionPtr Parser::call_of(ExpressionPtr value) {
  ExpressionPtr call = make(Type::call, current().line, std::move(value));
  arguments(*call);
  return call;
}

void Parser::arguments(Expression& call) {
  expect_symbol("(");
  bool first = true;
  while (!skip_symbol(")")) {
    if (!first) {
      expect_symbol(",");
      if (skip_symbol(")")) break;
    }
    first = false;
    if (current().is_symbol("*") || current().is_symbol("**")) {
      refuse(current().line, fmt::format("arguments behind '{}' are not supported", current().value));
    }
    if (current().is(TokenType::name) && ahead().is_symbol("=")) {
      std::string name = take().value;
      take();
      ExpressionPtr value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) refuse(current().line, "an argument without a name follows one with");
      add(call, expression());
    }
  }
}

ExpressionPtr Parser::filters(ExpressionPtr value, bool starts_inline) {
  for (;;) {
    if (starts_inline || current().is_symbol("|")) {
      if (!std::exchange(starts_inline, false)) take();
      ExpressionPtr filter = make(Type::filter, current().line);
      add(*filter, std::move(value));
      filter->name = expect_name("the name of a filter");
      if (current().is_symbol("(")) arguments(*filter);
      value = std::move(filter);
    } else if (value && current().is_name("is")) {
      value = test(std::move(value));
    } else if (value && current().is_symbol("(")) {
      value = call_of(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::test(ExpressionPtr value) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExpressionPtr whole = make(Type::test, line, std::move(value));
  whole->name = expect_name("the name of a test");
  const Token& token = current();
  const bool opens = token.is_symbol("[") || token.is_symbol("{");
  const bool literal = token.is(TokenType::text) || token.is(TokenType::integer) || token.is(TokenType::real);
  const bool name =
      token.is(TokenType::name) && !token.is_name("else") && !token.is_name("or") && !token.is_name("and");
  if (token.is_symbol("(")) {
    arguments(*whole);
  } else if (opens || literal || name) {
    if (token.is_name("is")) refuse(token.line, "tests cannot be chained with 'is'");
    add(*whole, postfix(primary()));
  }
  return negated ? make(Type::negation, line, std::move(whole)) : std::move(whole);
}

}  // namespace hayloft::runtime::jinja
