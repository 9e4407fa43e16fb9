#include <algorithm>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/chat/jinja/evaluator.h"

namespace hayloft::runtime::jinja {

std::vector<const Value*> bound(const Arguments& arguments, const std::string& function,
                                std::initializer_list<std::string_view> parameters, std::size_t required) {
  if (arguments.positional.size() > parameters.size()) {
    fail("'{}' takes at most {} arguments, not {}", function, parameters.size(), arguments.positional.size());
  }
  std::vector<const Value*> values(parameters.size(), nullptr);
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at =
        static_cast<std::size_t>(std::find(parameters.begin(), parameters.end(), name) - parameters.begin());
    if (at == parameters.size()) fail("'{}' takes no argument '{}'", function, printable(name));
    if (values[at]) fail("'{}' is given '{}' twice", function, name);
    values[at] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!values[i]) fail("'{}' needs the argument '{}'", function, *(parameters.begin() + i));
  }
  return values;
}

const std::string& text_argument(const Value& value, std::string_view function) {
  require_defined(value);
  if (!value.is(Kind::text)) fail("'{}' needs a text, not a value of type {}", function, value.type_name());
  return value.text();
}

std::int64_t integer_argument(const Value& value, std::string_view function) {
  require_defined(value);
  const auto integer = value.as_integer();
  if (!integer) fail("'{}' needs an integer, not a value of type {}", function, value.type_name());
  return *integer;
}

}  // namespace hayloft::runtime::jinja
