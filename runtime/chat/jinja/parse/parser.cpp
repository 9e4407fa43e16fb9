#include "runtime/chat/jinja/parse/parser.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/chat/jinja/parse/parser_level.h"

// The statements of a template.
namespace hayloft::runtime::jinja {
namespace {

std::unique_ptr<Statement> make_statement(Statement::Type type, int line) {
  auto statement = std::make_unique<Statement>();
  statement->type = type;
  statement->line = line;
  return statement;
}

std::string described(const Token& token) {
  switch (token.type) {
    case TokenType::block_end:
      return "the end of the block";
    case TokenType::print_end:
      return "}}";
    case TokenType::end:
    case TokenType::data:
      return "the end of the template";
    default:
      return "'" + printable(token.value) + "'";
  }
}

}  // namespace

void Parser::refuse(int line, const std::string& what) const {
  fail("{}: line {}: {}", name_, line, what);
}

void Parser::unexpected(std::string_view expected) const {
  refuse(current().line, fmt::format("expected {}, found {}", expected, described(current())));
}

bool Parser::skip_symbol(std::string_view symbol) {
  if (!current().is_symbol(symbol)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void Parser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) unexpected(fmt::format("'{}'", symbol));
}

std::string Parser::expect_name(std::string_view what) {
  if (!current().is(TokenType::name)) unexpected(what);
  return take().value;
}

void Parser::expect(TokenType type, std::string_view what) {
  if (!current().is(type)) unexpected(what);
  take();
}

void Parser::end_block(std::string_view name) {
  if (!skip_name(name)) unexpected(fmt::format("{{% {} %}}", name));
  expect(TokenType::block_end, "the end of the block");
}

Body Parser::run() {
  return body({}, "", 1);
}

Body Parser::body(std::initializer_list<std::string_view> ends, std::string_view opener, int line) {
  const Level level(*this);
  Body out;
  for (;;) {
    const Token& token = current();
    if (token.is(TokenType::data)) {
      out.push_back(make_statement(Statement::Type::data, token.line));
      out.back()->text = take().value;
    } else if (token.is(TokenType::print_begin)) {
      out.push_back(make_statement(Statement::Type::print, token.line));
      take();
      out.back()->value = tuple(true, false, "");
      expect(TokenType::print_end, "}}");
    } else if (token.is(TokenType::block_begin)) {
      take();
      const auto ends_here = [&](std::string_view end) { return current().is_name(end); };
      if (std::any_of(ends.begin(), ends.end(), ends_here)) return out;
      out.push_back(statement());
    } else if (ends.size() == 0) {
      return out;
    } else {
      refuse(line, fmt::format("{{% {} %}} has no {{% {} %}}", opener, *(ends.end() - 1)));
    }
  }
}

// Behind {%; takes what belongs to the statement up to the last %}.
std::unique_ptr<Statement> Parser::statement() {
  const Level level(*this);
  const int line = current().line;
  const std::string tag = expect_name("the name of a block");
  if (tag == "if") return condition(line);
  if (tag == "for") return loop(line);
  if (tag == "set") return set(line);
  if (tag == "with") return with(line);
  if (tag == "macro") return macro(line);
  if (tag == "call") return call(line);
  if (tag == "filter") {
    auto block = make_statement(Statement::Type::filter, line);
    block->value = filters(nullptr, true);
    expect(TokenType::block_end, "the end of the block");
    block->body = body({"endfilter"}, "filter", line);
    end_block("endfilter");
    return block;
  }
  if (tag == "generation") {
    auto block = make_statement(Statement::Type::group, line);
    expect(TokenType::block_end, "the end of the block");
    block->body = body({"endgeneration"}, "generation", line);
    end_block("endgeneration");
    return block;
  }
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) refuse(line, fmt::format("{{% {} %}} stands outside of any loop", tag));
    expect(TokenType::block_end, "the end of the block");
    return make_statement(tag == "break" ? Statement::Type::stop : Statement::Type::next, line);
  }
  refuse(line, fmt::format("{{% {} %}} is not supported", printable(tag)));
}

std::unique_ptr<Statement> Parser::condition(int line) {
  auto block = make_statement(Statement::Type::condition, line);
  for (;;) {
    ExpressionPtr test = tuple(false, false, "");
    expect(TokenType::block_end, "the end of the block");
    block->branches.emplace_back(std::move(test), body({"elif", "else", "endif"}, "if", line));
    if (!skip_name("elif")) break;
  }
  if (skip_name("else")) {
    expect(TokenType::block_end, "the end of the block");
    block->branches.emplace_back(nullptr, body({"endif"}, "if", line));
  }
  end_block("endif");
  return block;
}

std::unique_ptr<Statement> Parser::loop(int line) {
  auto block = make_statement(Statement::Type::loop, line);
  block->target = target(false);
  if (!skip_name("in")) unexpected("'in'");
  block->value = tuple(false, false, "recursive");
  if (skip_name("if")) block->filter = expression();
  if (current().is_name("recursive")) refuse(line, "recursive loops are not supported");
  expect(TokenType::block_end, "the end of the block");
  ++loops_;
  block->body = body({"else", "endfor"}, "for", line);
  --loops_;
  if (skip_name("else")) {
    expect(TokenType::block_end, "the end of the block");
    block->otherwise = body({"endfor"}, "for", line);
  }
  end_block("endfor");
  return block;
}

std::unique_ptr<Statement> Parser::set(int line) {
  auto block = make_statement(Statement::Type::set, line);
  block->target = target(true);
  if (skip_symbol("=")) {
    block->value = tuple(true, false, "");
    expect(TokenType::block_end, "the end of the block");
    return block;
  }
  block->type = Statement::Type::set_block;
  if (current().is_symbol("|")) block->value = filters(nullptr, false);
  expect(TokenType::block_end, "the end of the block");
  block->body = body({"endset"}, "set", line);
  end_block("endset");
  return block;
}

std::unique_ptr<Statement> Parser::with(int line) {
  auto block = make_statement(Statement::Type::with, line);
  while (!current().is(TokenType::block_end)) {
    if (!block->assignments.empty()) expect_symbol(",");
    ExpressionPtr name = target(false);
    expect_symbol("=");
    block->assignments.emplace_back(std::move(name), expression());
  }
  expect(TokenType::block_end, "the end of the block");
  block->body = body({"endwith"}, "with", line);
  end_block("endwith");
  return block;
}

std::unique_ptr<Statement> Parser::macro(int line) {
  auto block = make_statement(Statement::Type::macro, line);
  block->macro = std::make_unique<MacroNode>(MacroNode{expect_name("the macro's name"), line, {}, {}});
  macros_.push_back(block->macro.get());
  parameters(*block->macro);
  macro_body(*block->macro, "macro", "endmacro");
  return block;
}

std::unique_ptr<Statement> Parser::call(int line) {
  auto block = make_statement(Statement::Type::call, line);
  block->macro = std::make_unique<MacroNode>(MacroNode{"caller", line, {}, {}});
  macros_.push_back(block->macro.get());
  if (current().is_symbol("(")) parameters(*block->macro);
  block->value = expression();
  if (block->value->type != Type::call) refuse(line, "{% call %} expects a call");
  macro_body(*block->macro, "call", "endcall");
  return block;
}

void Parser::parameters(MacroNode& macro) {
  expect_symbol("(");
  while (!skip_symbol(")")) {
    if (!macro.parameters.empty()) expect_symbol(",");
    std::string name = expect_name("the name of a parameter");
    ExpressionPtr value;
    if (skip_symbol("=")) {
      value = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().second) {
      refuse(current().line, fmt::format("parameter '{}' without a default follows one with", printable(name)));
    }
    macro.parameters.emplace_back(std::move(name), std::move(value));
  }
}

void Parser::macro_body(MacroNode& macro, std::string_view opener, std::string_view end) {
  expect(TokenType::block_end, "the end of the block");
  const int outside = std::exchange(loops_, 0);
  macro.body = body({end}, opener, macro.line);
  loops_ = outside;
  macros_.pop_back();
  end_block(end);
}

}  // namespace hayloft::runtime::jinja
