#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/simt/ptx/module/tokens.h"
#include "tests/simt/ptx/opcodes/opcodes.h"

namespace hayloft::simt::ptx {

using Value = std::string;  // a name, or a number with its sign

// The operands of an instruction as they are written.
struct Statement {
  struct Address {
    Value base;
    std::int64_t offset = 0;
  };

  std::vector<Value> to;
  std::vector<Value> from;
  std::optional<Address> address;
  bool list_to = false;  // in braces
  bool list_from = false;
};

Value read_value(Tokens& tokens);

// The bits of an integer, or of a float in hexadecimal. Throws std::runtime_error naming the line when it is none.
std::uint64_t number(const Tokens& tokens, const Value& value);

// Reads what follows the opcode, past the semicolon: operands in the order of this form, with or without a destination.
Statement read_statement(Tokens& tokens, Form form, bool has_destination);

}  // namespace hayloft::simt::ptx
