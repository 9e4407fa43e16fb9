#include <algorithm>
#include <string>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/chat/jinja/filters.h"
#include "runtime/chat/jinja/values/strings.h"

// Filters and tests by name.
namespace hayloft::runtime::jinja {
namespace {

struct Comparison {
  std::string_view name, op;
};
constexpr Comparison comparisons[] = {{"eq", "=="}, {"equalto", "=="},    {"==", "=="}, {"ne", "!="}, {"!=", "!="},
                                      {"lt", "<"},  {"lessthan", "<"},    {"<", "<"},   {"le", "<="}, {"<=", "<="},
                                      {"gt", ">"},  {"greaterthan", ">"}, {">", ">"},   {"ge", ">="}, {">=", ">="}};

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::text:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::generator:
    case Kind::loop:
      return true;
    default:
      return false;
  }
}

bool is_sequence(const Value& value) {
  return value.is_sequence() || value.is(Kind::text) || value.is(Kind::dict) || value.is(Kind::undefined);
}

// Applies one of the tests without an argument; nothing where the name is not known.
std::optional<bool> plain_test(Evaluator& evaluator, const std::string& name, const Value& value) {
  if (name == "defined") return !value.is(Kind::undefined);
  if (name == "undefined") return value.is(Kind::undefined);
  if (name == "none") return value.is(Kind::none);
  if (name == "boolean") return value.is(Kind::boolean);
  if (name == "true") return value.is(Kind::boolean) && value.boolean();
  if (name == "false") return value.is(Kind::boolean) && !value.boolean();
  if (name == "integer") return value.is(Kind::integer) || value.is(Kind::long_integer);
  if (name == "float") return value.is(Kind::real);
  if (name == "number") return value.is_number() || value.is(Kind::long_integer);
  if (name == "string") return value.is(Kind::text);
  if (name == "mapping") return value.is(Kind::dict);
  if (name == "sequence") return is_sequence(value);
  if (name == "iterable") return is_iterable(value);
  if (name == "callable") return value.is(Kind::callable);
  if (name == "escaped") return value.is_markup();
  if (name == "upper") return is_upper(evaluator.text_of(value));
  if (name == "lower") return is_lower(evaluator.text_of(value));
  if (name == "odd" || name == "even") return (integer_argument(value, name) % 2 != 0) == (name == "odd");
  return std::nullopt;
}

}  // namespace

Value Evaluator::filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const Filter* filter = find_text_filter(name);
  if (!filter) filter = find_sequence_filter(name);
  if (!filter) fail("there is no filter '{}'", printable(name));
  charge();
  return filter->apply(*this, value, arguments);
}

bool Evaluator::test(const std::string& name, const Value& value, const Arguments& arguments) {
  charge();
  if (const auto plain = plain_test(*this, name, value)) {
    bound(arguments, name, {});
    return *plain;
  }
  const auto comparison = std::find_if(std::begin(comparisons), std::end(comparisons),
                                       [&](const Comparison& each) { return each.name == name; });
  if (comparison != std::end(comparisons)) {
    const Value& other = *bound(arguments, name, {"other"}, 1)[0];
    if (comparison->op == "==") return same(value, other);
    if (comparison->op == "!=") return !same(value, other);
    require_defined(value);
    require_defined(other);
    charge(std::min(value.weight(), other.weight()) * 8);
    const auto order = compare(value, other);
    if (!order) fail("'{}' does not compare a {} with a {}", name, value.type_name(), other.type_name());
    if (comparison->op == "<") return *order < 0;
    if (comparison->op == "<=") return *order <= 0;
    return comparison->op == ">" ? *order > 0 : *order >= 0;
  }
  if (name == "in") return contains(*bound(arguments, name, {"seq"}, 1)[0], value);
  if (name == "divisibleby") {
    const std::int64_t divisor = integer_argument(*bound(arguments, name, {"num"}, 1)[0], name);
    if (divisor == 0) fail("'divisibleby' zero");
    return integer_argument(value, name) % divisor == 0;
  }
  if (name == "sameas") {
    const Value& other = *bound(arguments, name, {"other"}, 1)[0];
    return value.kind() == other.kind() && same(value, other);
  }
  if (name == "filter") {
    const std::string& wanted = text_argument(value, name);
    return find_text_filter(wanted) || find_sequence_filter(wanted);
  }
  fail("there is no test '{}'", printable(name));
}

}  // namespace hayloft::runtime::jinja
