#include "tests/simt/ptx/module/statement.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

namespace hayloft::simt::ptx {
namespace {

// VALUE, VALUE|VALUE or {VALUE, VALUE...}
std::vector<Value> read_values(Tokens& tokens, bool& list) {
  std::vector<Value> all;
  list = tokens.take("{");
  do {
    all.push_back(read_value(tokens));
  } while (tokens.take(list ? "," : "|"));
  if (list) tokens.expect("}");
  return all;
}

// [BASE] or [BASE+OFFSET]
Statement::Address read_address(Tokens& tokens) {
  tokens.expect("[");
  Statement::Address found{read_value(tokens)};
  if (tokens.take("+")) found.offset = static_cast<std::int64_t>(number(tokens, read_value(tokens)));
  tokens.expect("]");
  return found;
}

}  // namespace

Value read_value(Tokens& tokens) {
  const bool negative = tokens.take("-");
  return (negative ? "-" : "") + std::string(tokens.next());
}

std::uint64_t number(const Tokens& tokens, const Value& value) {
  const bool negative = value.starts_with('-');
  std::string_view digits = std::string_view(value).substr(negative ? 1 : 0);
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && std::string_view("xfFdD").find(digits[1]) != std::string_view::npos) {
    base = 16;
    digits.remove_prefix(2);
  }
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, base);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    tokens.fail(fmt::format("'{}' is neither declared nor a number", value));
  }
  return negative ? 0 - bits : bits;
}

Statement read_statement(Tokens& tokens, Form form, bool has_destination) {
  Statement read;
  if (tokens.take(";")) return read;
  if (form == Form::store || form == Form::copy) {
    read.address = read_address(tokens);
    if (form == Form::copy) {
      tokens.expect(",");
      const Statement::Address source = read_address(tokens);
      if (source.offset != 0) tokens.fail("the source of a copy has an offset");
      read.from.push_back(source.base);
    }
  } else if (has_destination) {
    read.to = read_values(tokens, read.list_to);
    tokens.expect(",");
    if (form == Form::load || form == Form::atomic || form == Form::meeting_load) read.address = read_address(tokens);
  }
  bool more = read.address ? tokens.take(",") : true;
  while (more) {
    bool list = false;
    for (Value& each : read_values(tokens, list)) read.from.push_back(std::move(each));
    read.list_from |= list;
    more = tokens.take(",");
  }
  tokens.expect(";");
  return read;
}

}  // namespace hayloft::simt::ptx
