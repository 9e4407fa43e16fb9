#include <algorithm>
#include <array>

#include "offload/error.h"
#include "runtime/chat/jinja/evaluator.h"

// The functions that transformers gives to every template.
namespace hayloft::runtime::jinja {
namespace {

constexpr std::array<std::string_view, 5> names = {"raise_exception", "strftime_now", "namespace", "dict", "range"};

Value range(Evaluator& evaluator, const Arguments& arguments) {
  const auto given = bound(arguments, "range", {"start", "stop", "step"}, 1);
  const auto number = [&](std::size_t i, std::int64_t absent) {
    return given[i] ? integer_argument(*given[i], "range") : absent;
  };
  const std::int64_t begin = given[1] ? number(0, 0) : 0;
  const std::int64_t end = given[1] ? number(1, 0) : number(0, 0);
  const std::int64_t step = number(2, 1);
  if (step == 0) fail("'range' has a step of 0");
  constexpr std::size_t most = 100'000;  // as Jinja's sandbox has it
  List items;
  std::int64_t at = begin;
  while (step > 0 ? at < end : at > end) {
    if (items.size() == most) fail("'range' has more than {} numbers", most);
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  evaluator.charge_values(items.size());
  return Value::list(std::move(items));
}

// The entries of an object or of a list of pairs, and those given by name.
Dict entries(Evaluator& evaluator, const std::string& name, const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) fail("'{}' takes at most one argument without a name", name);
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    require_defined(from);
    evaluator.charge(from.weight() * 8);
    if (from.is(Kind::dict)) {
      dict = from.entries();
    } else {
      for (const Value& pair : evaluator.items(from)) {
        const List both = evaluator.items(pair);
        if (both.size() != 2) fail("'{}' needs pairs of a key and a value", name);
        evaluator.charge(dict.items.size() * (4 + both[0].weight()));
        dict.set(both[0], both[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) {
    evaluator.charge(dict.items.size() * 4);
    dict.set(key, value);
  }
  return dict;
}

std::string time_text(Evaluator& evaluator, const std::string& format) {
  if (format.empty()) return "";
  evaluator.charge(format.size() * 16);
  const std::time_t now = evaluator.now();
  std::tm local = {};
  localtime_r(&now, &local);
  std::string text(format.size() * 16 + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &local));
  return text;
}

}  // namespace

bool is_global(std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value call_global(Evaluator& evaluator, const std::string& name, const Arguments& arguments) {
  evaluator.charge();
  if (name == "range") return range(evaluator, arguments);
  if (name == "dict") return Value::dict(entries(evaluator, name, arguments));
  if (name == "namespace") {
    const auto made = evaluator.make_namespace();
    for (auto& [key, value] : entries(evaluator, name, arguments).items) {
      if (text_argument(key, name).starts_with('_')) fail("'{}': names that begin with _ cannot be set", key.text());
      made->set(key.text(), value);
    }
    return made;
  }
  const Value& given = *bound(arguments, name, {name == "strftime_now" ? "format" : "message"}, 1)[0];
  if (name == "strftime_now") return time_text(evaluator, text_argument(given, name));
  fail("the template refuses the conversation: {}", evaluator.text_of(given));
}

}  // namespace hayloft::runtime::jinja
