#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hayloft::runtime::jinja {

enum class TokenType : std::uint8_t {
  data,         // text between tags
  block_begin,  // {%
  block_end,
  print_begin,  // {{
  print_end,
  name,
  text,
  integer,
  real,
  symbol,  // an operator or a bracket
  end
};

struct Token {
  TokenType type;
  std::string value;  // of a text without quotes and escapes
  int line;

  bool is(TokenType wanted) const { return type == wanted; }
  bool is_name(std::string_view wanted) const { return type == TokenType::name && value == wanted; }
  bool is_symbol(std::string_view wanted) const { return type == TokenType::symbol && value == wanted; }
};

// The tokens of a template as Jinja reads it with trim_blocks and lstrip_blocks: a newline behind a block and white
// space before one on its line are left out, - and + beside the braces overrule that; comments are gone, {% raw %} is
// data. Ends in one token of type `end`. Throws Error naming `name` and the line.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace hayloft::runtime::jinja
