#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja/parse/ast.h"
#include "runtime/chat/jinja/parse/lexer.h"

namespace hayloft::runtime::jinja {

// Recursive descent over the tokens of a template, in the order of precedence that Jinja 3.1 has. run() throws Error
// naming `name` and the line: what is no template, what is not supported, and nesting beyond measure.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  Body run();

 private:
  using Type = Expression::Type;
  // One level of recursion deeper; throws Error beyond measure.
  class Level;

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_symbol(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  std::string expect_name(std::string_view what);
  void expect(TokenType type, std::string_view what);
  [[noreturn]] void refuse(int line, const std::string& what) const;
  [[noreturn]] void unexpected(std::string_view expected) const;

  // Statements (parser.cpp). A body ends before the block whose name is one of `ends`.
  Body body(std::initializer_list<std::string_view> ends, std::string_view opener, int line);
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> condition(int line);
  std::unique_ptr<Statement> loop(int line);
  std::unique_ptr<Statement> set(int line);
  std::unique_ptr<Statement> with(int line);
  std::unique_ptr<Statement> macro(int line);
  std::unique_ptr<Statement> call(int line);
  void parameters(MacroNode& macro);
  void macro_body(MacroNode& macro, std::string_view opener, std::string_view end);
  void end_block(std::string_view name);  // takes NAME %}

  // Expressions (parse_expression.cpp).
  ExpressionPtr make(Type type, int line) const;
  ExpressionPtr make(Type type, int line, ExpressionPtr a, ExpressionPtr b = nullptr) const;
  void add(Expression& parent, ExpressionPtr part) const;
  ExpressionPtr expression();
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr call_of(ExpressionPtr value);
  ExpressionPtr filters(ExpressionPtr value, bool starts_inline);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr list();
  ExpressionPtr dict();
  void arguments(Expression& call);
  // Expressions with commas between them, as one or as a tuple; `conditions` may be inline ifs.
  ExpressionPtr tuple(bool conditions, bool parenthesised, std::string_view end_name);
  ExpressionPtr target(bool attributes);  // of an assignment
  bool tuple_ends(std::string_view end_name) const;

  std::vector<Token> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;                        // that a break would leave
  std::vector<MacroNode*> macros_ = {};  // that are being read, the innermost last
};

}  // namespace hayloft::runtime::jinja
