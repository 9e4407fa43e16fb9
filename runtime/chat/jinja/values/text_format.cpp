#include <charconv>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/chat/jinja/evaluator.h"

// Values put into a text: "%s" % x and "{}".format(x), without widths and precisions.
namespace hayloft::runtime::jinja {

std::string percent_format(Evaluator& evaluator, std::string_view format, const Value& values) {
  evaluator.charge(format.size());
  const List given = values.is(Kind::tuple) ? evaluator.items(values) : List{values};
  std::size_t used = 0;
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const char kind = ++at < format.size() ? format[at] : ' ';
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (kind != 's' && kind != 'd' && kind != 'i' && kind != 'r') {
      fail("'%{}' in a text to be formatted is not supported", printable(format.substr(at, 1)));
    }
    if (used == given.size()) fail("a text to be formatted has more places than there are values");
    const Value& value = given[used++];
    evaluator.charge(value.weight() * 32);
    if (kind == 'r') {
      out += repr(value);
    } else if (kind == 's') {
      out += to_text(value);
    } else if (value.is(Kind::real)) {
      out += std::to_string(static_cast<std::int64_t>(value.real()));
    } else if (const auto integer = value.as_integer()) {
      out += std::to_string(*integer);
    } else {
      fail("'%d' needs a number, not a value of type {}", value.type_name());
    }
  }
  if (used < given.size() && values.is(Kind::tuple))
    fail("a text to be formatted has fewer places than there are values");
  return out;
}

std::string brace_format(Evaluator& evaluator, std::string_view format, const Arguments& arguments) {
  std::size_t next = 0;
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    const bool doubled = at + 1 < format.size() && format[at + 1] == c;
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (doubled) {
      out += c;
      ++at;
      continue;
    }
    const std::size_t end = c == '{' ? format.find('}', at) : std::string_view::npos;
    if (end == std::string_view::npos) fail("a text to be formatted has a single '{}'", c);
    const std::string_view field = format.substr(at + 1, end - at - 1);
    const Value* value = nullptr;
    std::size_t index = next;
    const auto [rest, error] = std::from_chars(field.data(), field.data() + field.size(), index);
    if (field.empty() || (error == std::errc() && rest == field.data() + field.size())) {
      if (field.empty()) ++next;
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      value = arguments.find(field);
    }
    if (!value)
      fail("'{{{}}}' in a text to be formatted stands for no argument, or is not supported", printable(field));
    out += evaluator.text_of(*value);
    at = end;
  }
  return out;
}

}  // namespace hayloft::runtime::jinja
