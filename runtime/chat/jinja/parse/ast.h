#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/chat/jinja/values/value.h"

// A template as a tree. Every node knows its line, for messages.
namespace hayloft::runtime::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// `parts` are the operands in the order they are written.
struct Expression {
  enum class Type : std::uint8_t {
    constant,   // value
    name,       // name
    list,       // parts
    tuple,      // parts
    dict,       // parts: key, value, key, value, ...
    attribute,  // parts[0].name
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1]:parts[2]:parts[3]], null where nothing is written
    call,       // parts[0](parts[1...], named)
    filter,     // parts[0] | name(parts[1...], named); parts[0] is null in a filter block
    test,       // parts[0] is name(parts[1...], named)
    negation,   // not parts[0]
    minus,      // -parts[0]
    plus,       // +parts[0]
    binary,     // parts[0] name parts[1], an operator of arithmetic
    concat,     // parts[0] ~ parts[1] ~ ...
    compare,    // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    logical,    // parts[0] and / or parts[1]
    condition   // parts[0] if parts[1] else parts[2]; null where there is no else
  };
  Type type;
  int line;
  int depth = 1;  // of the tree below it
  std::string name = {};
  Value value = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
  std::vector<std::string> operators = {};
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct MacroNode {
  std::string name;
  int line;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with defaults, null where there is none
  Body body;
  bool reads_caller = false, reads_varargs = false, reads_kwargs = false;
};

struct Statement {
  enum class Type : std::uint8_t {
    data,       // text
    print,      // value
    condition,  // branches; the last one without a condition is the else
    loop,       // for target in value if filter: body, or otherwise
    set,        // target = value
    set_block,  // target = body through the filters in value, where there are any
    macro,      // macro
    call,       // value called with macro as its caller
    filter,     // body through the filters in value
    with,       // assignments, body
    group,      // body: {% generation %}
    stop,       // break
    next        // continue
  };
  Type type;
  int line;
  std::string text = {};
  ExpressionPtr target = {}, value = {}, filter = {};
  std::vector<std::pair<ExpressionPtr, Body>> branches = {};
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments = {};
  Body body = {}, otherwise = {};
  std::unique_ptr<MacroNode> macro = {};
};

}  // namespace hayloft::runtime::jinja
