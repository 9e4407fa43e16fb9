#include <cmath>
#include <limits>
#include <utility>

#include "offload/error.h"
#include "runtime/chat/jinja/evaluator.h"

// Operators between values.
namespace hayloft::runtime::jinja {
namespace {

[[noreturn]] void refuse(std::string_view op, const Value& a, const Value& b) {
  fail("'{}' is not defined between a {} and a {}", op, a.type_name(), b.type_name());
}

// Python's integers have no end; these have 64 bits.
Value checked(std::string_view op, bool overflowed, const std::int64_t& result) {
  if (overflowed) fail("the result of '{}' has more than 63 bits", op);
  return result;
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integers(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (op == "+") return checked(op, __builtin_add_overflow(a, b, &result), result);
  if (op == "-") return checked(op, __builtin_sub_overflow(a, b, &result), result);
  if (op == "*") return checked(op, __builtin_mul_overflow(a, b, &result), result);
  if (op == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    if (a == 0 || a == 1) return b == 0 ? std::int64_t{1} : a;
    if (a == -1) return std::int64_t{b % 2 == 0 ? 1 : -1};
    result = 1;
    for (std::int64_t i = 0; i < b; ++i) {
      checked(op, __builtin_mul_overflow(result, a, &result), result);
    }
    return result;
  }
  if (b == 0) fail("'{}' by zero", op);
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return op == "%" ? Value(std::int64_t{0}) : integers("-", 0, a);
  if (op == "//") return floor_divided(a, b);
  return a - floor_divided(a, b) * b;
}

Value reals(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) fail("'{}' by zero", op);
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value joined(Evaluator& evaluator, const Value& a, const Value& b) {
  if (a.is(Kind::text)) {
    if (!a.is_markup() && !b.is_markup()) {
      evaluator.charge(a.text().size() + b.text().size());
      return a.text() + b.text();
    }
    evaluator.charge(6 * (a.text().size() + b.text().size()));
    const auto part = [](const Value& value) { return value.is_markup() ? value.text() : html_escaped(value.text()); };
    return Value::markup(part(a) + part(b));
  }
  evaluator.charge_values(a.items().size() + b.items().size());
  List items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is(Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value repeated(Evaluator& evaluator, const Value& a, std::int64_t times) {
  const std::size_t size = a.is(Kind::text) ? a.text().size() : a.items().size() * sizeof(Value);
  constexpr std::int64_t endless = std::int64_t{1} << 32;  // more than may be made of anything
  times = size == 0 ? 0 : std::max<std::int64_t>(times, 0);
  evaluator.charge(size * static_cast<std::size_t>(std::min(times, endless)));
  std::string text;
  List items;
  for (std::int64_t i = 0; i < times; ++i) {
    if (a.is(Kind::text)) {
      text += a.text();
    } else {
      items.insert(items.end(), a.items().begin(), a.items().end());
    }
  }
  if (a.is(Kind::text)) return a.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
  return a.is(Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

bool repeats(const Value& value) {
  return value.is(Kind::text) || value.is_sequence();
}

}  // namespace

Value arithmetic(Evaluator& evaluator, std::string_view op, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number()) {
    const auto x = a.as_integer(), y = b.as_integer();
    return x && y ? integers(op, *x, *y) : reals(op, a.as_real(), b.as_real());
  }
  if (op == "+" && a.kind() == b.kind() && repeats(a)) return joined(evaluator, a, b);
  if (op == "*" && repeats(a) && b.as_integer()) return repeated(evaluator, a, *b.as_integer());
  if (op == "*" && repeats(b) && a.as_integer()) return repeated(evaluator, b, *a.as_integer());
  if (op == "%" && a.is(Kind::text)) return percent_format(evaluator, a.text(), b);
  refuse(op, a, b);
}

Value negative(const Value& value) {
  require_defined(value);
  if (value.is(Kind::real)) return -value.real();
  const auto integer = value.as_integer();
  if (!integer) fail("'-' needs a number, not a value of type {}", value.type_name());
  return integers("-", 0, *integer);
}

}  // namespace hayloft::runtime::jinja
