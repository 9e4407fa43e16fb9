#include <algorithm>
#include <array>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/utf8.h"
#include "runtime/chat/jinja/evaluator.h"
#include "runtime/chat/jinja/values/strings.h"

// The insides of a value: items, attributes, slices.
namespace hayloft::runtime::jinja {

List items_of(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return {};
    case Kind::list:
    case Kind::tuple:
      return value.items();
    case Kind::dict: {
      List keys;
      for (const auto& [key, item] : value.entries().items) keys.push_back(key);
      return keys;
    }
    case Kind::text: {
      List items;
      for (const std::string_view c : characters(value.text())) items.emplace_back(c);
      return items;
    }
    case Kind::generator:
      return std::exchange(value.generator().items, {});
    default:
      fail("a value of type {} cannot be iterated over", value.type_name());
  }
}

Value Evaluator::attribute(const Value& object, std::string_view name) {
  require_defined(object);
  const auto absent = [&] {
    return Value::undefined(
        fmt::format("'{}' is undefined: a value of type {} has none", printable(name), object.type_name()));
  };
  if (has_method(object, name)) {
    return std::make_shared<const Callable>(Callable{Callable::Type::method, std::string(name), object});
  }
  const Value* found = nullptr;
  if (object.is(Kind::dict)) {
    charge(object.entries().items.size() * (4 + name.size() / 16));
    found = object.entries().find(name);
  }
  if (object.is(Kind::names)) {
    charge(object.names().items.size() * 2);
    found = object.names().find(name);
  }
  if (object.is(Kind::loop)) return object.loop().attribute(name);
  return found ? *found : absent();
}

Value Evaluator::item(const Value& object, const Value& key) {
  require_defined(object);
  if (object.is(Kind::dict)) {
    charge_lookup(object, key);
    if (const Value* found = object.entries().find(key)) return *found;
  } else if (const auto index = key.as_integer(); index && (object.is_sequence() || object.is(Kind::text))) {
    if (object.is(Kind::text)) charge(object.text().size() * 2);
    const std::int64_t n =
        object.is_sequence() ? static_cast<std::int64_t>(object.items().size()) : length(object.text());
    const std::int64_t at = *index < 0 ? *index + n : *index;
    if (at >= 0 && at < n) {
      if (object.is_sequence()) return object.items()[static_cast<std::size_t>(at)];
      const std::string& text = object.text();
      const std::size_t begin = offset_of(text, at);
      return text.substr(begin, utf8_at(text, begin).length);
    }
    return Value::undefined(fmt::format("a value of type {} has no element {}", object.type_name(), *index));
  }
  if (key.is(Kind::text)) return attribute(object, key.text());
  return Value::undefined(
      fmt::format("a value of type {} has no element of type {}", object.type_name(), key.type_name()));
}

Value Evaluator::slice(const Expression& expression) {
  const Value object = value_of(*expression.parts[0]);
  std::array<std::optional<std::int64_t>, 3> bounds;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expression.parts[i + 1]) continue;
    const Value bound = value_of(*expression.parts[i + 1]);
    bounds[i] = bound.as_integer();
    if (!bounds[i] && !bound.is(Kind::none)) fail("a slice needs integers, not a value of type {}", bound.type_name());
  }
  line_ = expression.line;
  require_defined(object);
  if (!object.is_sequence() && !object.is(Kind::text)) {
    return Value::undefined(fmt::format("a value of type {} cannot be sliced", object.type_name()));
  }
  if (object.is(Kind::text)) charge(object.text().size() * 2);
  const auto n = object.is(Kind::text) ? length(object.text()) : static_cast<std::int64_t>(object.items().size());
  const std::int64_t step = bounds[2].value_or(1);
  if (step == 0) fail("a slice's step is 0");
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
  const auto placed = [&](std::optional<std::int64_t> bound, std::int64_t absent) {
    if (!bound) return absent;
    return std::clamp(*bound < 0 ? std::max(*bound, -n - 1) + n : *bound, low, high);
  };
  const std::int64_t begin = placed(bounds[0], step > 0 ? low : high);
  const std::int64_t end = placed(bounds[1], step > 0 ? high : low);
  const auto each = [&](const auto& take) {
    if (step > 0) {
      for (std::int64_t i = begin; i < end; i += std::min(step, n)) take(static_cast<std::size_t>(i));
    } else {
      for (std::int64_t i = begin; i > end; i += std::max(step, -n - 1)) take(static_cast<std::size_t>(i));
    }
  };
  if (object.is(Kind::text)) {
    const std::string& text = object.text();
    if (step == 1) {
      const std::size_t from = offset_of(text, begin);
      return text.substr(from, end > begin ? offset_of(text, end) - from : 0);
    }
    charge_letters(text.size());
    const std::vector<std::string_view> all = characters(text);
    std::string taken;
    each([&](std::size_t i) { taken += all[i]; });
    return taken;
  }
  charge_values(static_cast<std::size_t>(n));
  List taken;
  each([&](std::size_t i) { taken.push_back(object.items()[i]); });
  return object.is(Kind::list) ? Value::list(std::move(taken)) : Value::tuple(std::move(taken));
}

bool Evaluator::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::text:
      charge_search(container.text(), text_argument(item, "in"));
      return find(container.text(), item.text()) != std::string::npos;
    case Kind::list:
    case Kind::tuple:
      return std::any_of(container.items().begin(), container.items().end(),
                         [&](const Value& each) { return same(each, item); });
    case Kind::generator: {
      const List all = items(container);
      return std::any_of(all.begin(), all.end(), [&](const Value& each) { return same(each, item); });
    }
    case Kind::dict:
      charge_lookup(container, item);
      return container.entries().find(item) != nullptr;
    default:
      fail("'in' needs a text, list or dict, not a value of type {}", container.type_name());
  }
}

}  // namespace hayloft::runtime::jinja
