#include <algorithm>
#include <array>
#include <functional>

#include "offload/error.h"
#include "runtime/chat/jinja/evaluator.h"
#include "runtime/chat/jinja/values/strings.h"

// The methods that templates may call. Those that would change a list or dictionary are absent: transformers' sandbox
// refuses them as well.
namespace hayloft::runtime::jinja {
namespace {

constexpr std::array<std::string_view, 31> text_methods = {
    "capitalize", "count",      "endswith",     "find",         "format", "index", "isalnum", "isalpha",
    "isdigit",    "islower",    "isspace",      "isupper",      "join",   "ljust", "lower",   "lstrip",
    "partition",  "replace",    "removeprefix", "removesuffix", "rfind",  "rjust", "rsplit",  "rstrip",
    "split",      "startswith", "strip",        "splitlines",   "title",  "upper", "zfill"};
constexpr std::array<std::string_view, 5> dict_methods = {"copy", "get", "items", "keys", "values"};
constexpr std::array<std::string_view, 3> list_methods = {"copy", "count", "index"};

template <class Names>
bool is_among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

List texts(const std::vector<std::string_view>& parts) {
  return List(parts.begin(), parts.end());
}

// A text method makes Markup of Markup.
Value markup_like(const Value& self, std::string text) {
  return self.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

// One text or a tuple of them.
bool any_affix(Evaluator& evaluator, const Value& affixes, std::string_view function,
               const std::function<bool(std::string_view)>& matches) {
  if (!affixes.is(Kind::tuple)) return matches(text_argument(affixes, function));
  const List& items = affixes.items();
  return std::any_of(items.begin(), items.end(), [&](const Value& item) {
    evaluator.charge(item.weight() * 8);
    return matches(text_argument(item, function));
  });
}

Value split_method(Evaluator& evaluator, const Value& self, const std::string& name, const Arguments& arguments) {
  const auto given = bound(arguments, name, {"sep", "maxsplit"});
  const std::int64_t most = given[1] ? integer_argument(*given[1], name) : -1;
  const bool from_right = name == "rsplit";
  const auto made = [&](const std::vector<std::string_view>& parts) {
    evaluator.charge_values(parts.size() * 2);
    return Value::list(texts(parts));
  };
  evaluator.charge_letters(self.text().size());
  if (!given[0] || given[0]->is(Kind::none)) return made(split(self.text(), most, from_right));
  const std::string& separator = text_argument(*given[0], name);
  if (separator.empty()) fail("'{}' needs a separator that is not empty", name);
  return made(split(self.text(), separator, most, from_right));
}

Value strip_method(Evaluator& evaluator, const Value& self, const std::string& name, const Arguments& arguments) {
  const auto given = bound(arguments, name, {"chars"});
  const Side side = name == "strip" ? Side::both : name == "lstrip" ? Side::left : Side::right;
  const bool white_space = !given[0] || given[0]->is(Kind::none);
  if (!white_space) evaluator.charge_letters(given[0]->weight() * 8);
  const std::string_view rest =
      white_space ? stripped(self.text(), side) : stripped(self.text(), side, text_argument(*given[0], name));
  evaluator.charge_letters(self.text().size() - rest.size());
  return markup_like(self, std::string(rest));
}

Value find_method(Evaluator& evaluator, const Value& self, const std::string& name, const Arguments& arguments) {
  const std::string& wanted = text_argument(*bound(arguments, name, {"sub"}, 1)[0], name);
  evaluator.charge_search(self.text(), wanted);
  const std::size_t at = name == "rfind" ? find_last(self.text(), wanted) : find(self.text(), wanted);
  if (at != std::string::npos) return length(std::string_view(self.text()).substr(0, at));
  if (name == "index") fail("'index' does not find the text");
  return -1;
}

Value count_method(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const std::string& wanted = text_argument(*bound(arguments, "count", {"sub"}, 1)[0], "count");
  if (wanted.empty()) return length(self.text()) + 1;
  evaluator.charge_search(self.text(), wanted);
  return count(self.text(), wanted);
}

Value justified(Evaluator& evaluator, const Value& self, const std::string& name, const Arguments& arguments) {
  const auto given = bound(arguments, name, {"width", "fillchar"}, 1);
  const std::int64_t missing = integer_argument(*given[0], name) - length(self.text());
  if (missing <= 0) return self;
  const std::string fill = name == "zfill" ? "0" : given[1] ? text_argument(*given[1], name) : " ";
  if (length(fill) != 1) fail("'{}' fills with one character", name);
  constexpr std::int64_t endless = std::int64_t{1} << 40;  // more than may be made of anything
  evaluator.charge(static_cast<std::size_t>(std::min(missing, endless)) * fill.size() + self.text().size());
  std::string filling;
  for (std::int64_t i = 0; i < missing; ++i) filling += fill;
  const std::size_t sign = name == "zfill" && self.text().find_first_of("+-") == 0 ? 1 : 0;
  if (name == "ljust") return self.text() + filling;
  return self.text().substr(0, sign) + filling + self.text().substr(sign);
}

Value replace_method(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const auto given = bound(arguments, "replace", {"old", "new", "count"}, 2);
  const std::string &from = text_argument(*given[0], "replace"), &to = text_argument(*given[1], "replace");
  const std::int64_t most = given[2] ? integer_argument(*given[2], "replace") : -1;
  evaluator.charge_search(self.text(), from);
  const std::size_t times = from.empty() ? self.text().size() + 1 : static_cast<std::size_t>(count(self.text(), from));
  evaluator.charge(self.text().size() + times * (to.size() + 16));
  return markup_like(self, replaced(self.text(), from, to, most));
}

Value join_method(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const List items = evaluator.items(*bound(arguments, "join", {"iterable"}, 1)[0]);
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    evaluator.charge(self.text().size() + text_argument(items[i], "join").size());
    if (i > 0) out += self.text();
    out += items[i].text();
  }
  return out;
}

Value text_method(Evaluator& evaluator, const Value& self, const std::string& name, const Arguments& arguments) {
  const std::string& text = self.text();
  evaluator.charge(text.size());
  if (name == "split" || name == "rsplit") return split_method(evaluator, self, name, arguments);
  if (name == "strip" || name == "lstrip" || name == "rstrip") return strip_method(evaluator, self, name, arguments);
  if (name == "find" || name == "rfind" || name == "index") return find_method(evaluator, self, name, arguments);
  if (name == "ljust" || name == "rjust" || name == "zfill") return justified(evaluator, self, name, arguments);
  if (name == "count") return count_method(evaluator, self, arguments);
  if (name == "format") return brace_format(evaluator, text, arguments);
  if (name == "join") return join_method(evaluator, self, arguments);
  if (name == "replace") return replace_method(evaluator, self, arguments);
  if (name == "startswith" || name == "endswith") {
    const Value& affixes = *bound(arguments, name, {"prefix"}, 1)[0];
    return any_affix(evaluator, affixes, name, [&](std::string_view affix) {
      return name == "startswith" ? text.starts_with(affix) : text.ends_with(affix);
    });
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string& affix = text_argument(*bound(arguments, name, {"prefix"}, 1)[0], name);
    if (name == "removeprefix") return markup_like(self, text.starts_with(affix) ? text.substr(affix.size()) : text);
    return markup_like(self, text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text);
  }
  if (name == "partition") {
    const std::string& separator = text_argument(*bound(arguments, name, {"sep"}, 1)[0], name);
    evaluator.charge_search(text, separator);
    const std::size_t at = find(text, separator);
    if (at == std::string::npos) return Value::tuple({text, "", ""});
    return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
  }
  if (name == "splitlines") {
    const auto given = bound(arguments, name, {"keepends"});
    evaluator.charge_letters(text.size());
    const std::vector<std::string_view> lines = split_lines(text, given[0] && given[0]->truth());
    evaluator.charge_values(lines.size() * 2);
    return Value::list(texts(lines));
  }

  bound(arguments, name, {});
  evaluator.charge_letters(text.size());
  if (name == "upper") return markup_like(self, upper(text));
  if (name == "lower") return markup_like(self, lower(text));
  if (name == "capitalize") return markup_like(self, capitalized(text));
  if (name == "title") return markup_like(self, title_words(text));
  if (name == "isalpha") return all_of(text, CharacterClass::letter);
  if (name == "isdigit") return all_of(text, CharacterClass::digit);
  if (name == "isalnum") return all_of(text, CharacterClass::letter_or_digit);
  if (name == "isspace") return all_of(text, CharacterClass::space);
  return name == "isupper" ? is_upper(text) : is_lower(text);
}

Value dict_method(Evaluator& evaluator, const Value& self, const std::string& name, const Arguments& arguments) {
  const Dict& dict = self.entries();
  if (name == "get") {
    const auto given = bound(arguments, name, {"key", "default"}, 1);
    evaluator.charge_lookup(self, *given[0]);
    if (const Value* found = dict.find(*given[0])) return *found;
    return given[1] ? *given[1] : Value(nullptr);
  }
  bound(arguments, name, {});
  if (name == "copy") return self;
  evaluator.charge_values(dict.items.size() * (name == "items" ? 4 : 1));
  List out;
  for (const auto& [key, value] : dict.items) {
    out.push_back(name == "items" ? Value::tuple({key, value}) : name == "keys" ? key : value);
  }
  return Value::list(std::move(out));
}

Value list_method(Evaluator& evaluator, const Value& self, const std::string& name, const Arguments& arguments) {
  if (name == "copy") return self;
  const Value& wanted = *bound(arguments, name, {"value"}, 1)[0];
  std::int64_t found = 0;
  const List& items = self.items();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!evaluator.same(items[i], wanted)) continue;
    if (name == "index") return i;
    ++found;
  }
  if (name == "index") fail("'index' does not find the value");
  return found;
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::text:
      return is_among(text_methods, name);
    case Kind::dict:
      return is_among(dict_methods, name);
    case Kind::list:
    case Kind::tuple:
      return is_among(list_methods, name);
    case Kind::loop:
      return name == "cycle";
    default:
      return false;
  }
}

Value call_method(Evaluator& evaluator, const Callable& method, const Arguments& arguments) {
  const Value& self = method.self;
  evaluator.charge();
  switch (self.kind()) {
    case Kind::text:
      return text_method(evaluator, self, method.name, arguments);
    case Kind::dict:
      return dict_method(evaluator, self, method.name, arguments);
    case Kind::loop: {
      if (arguments.positional.empty()) fail("'cycle' needs something to choose from");
      return arguments.positional[self.loop().index0 % arguments.positional.size()];
    }
    default:
      return list_method(evaluator, self, method.name, arguments);
  }
}

}  // namespace hayloft::runtime::jinja
