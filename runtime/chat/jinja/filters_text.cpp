#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "offload/error.h"
#include "runtime/chat/jinja/filters.h"
#include "runtime/chat/jinja/values/strings.h"
#include "runtime/chat/jinja/values/to_json.h"

// Filters that make texts and numbers.
namespace hayloft::runtime::jinja {
namespace {

// Most text filters work on any value as text.
std::string soft_text(Evaluator& evaluator, const Value& value) {
  return evaluator.text_of(value);
}

// Markup stays so where the filter keeps its letters.
Value like(const Value& value, std::string text) {
  return value.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

Value apply_trim(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "trim", {"chars"});
  const std::string text = soft_text(evaluator, value);
  const bool white_space = !given[0] || given[0]->is(Kind::none);
  if (!white_space) evaluator.charge_letters(given[0]->weight() * 8);
  const std::string_view rest =
      white_space ? stripped(text, Side::both) : stripped(text, Side::both, text_argument(*given[0], "trim"));
  evaluator.charge_letters(text.size() - rest.size());
  return like(value, std::string(rest));
}

template <std::string (*change)(std::string_view)>
Value apply_change(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "a filter of letters", {});
  const std::string text = soft_text(evaluator, value);
  evaluator.charge_letters(text.size());
  return like(value, change(text));
}

Value apply_string(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "string", {});
  return value.is_markup() ? value : Value(soft_text(evaluator, value));
}

Value apply_safe(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "safe", {});
  return Value::markup(soft_text(evaluator, value));
}

Value apply_escape(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "escape", {});
  if (value.is_markup()) return value;
  evaluator.charge(value.weight() * 48);
  return Value::markup(html_escaped(soft_text(evaluator, value)));
}

Value apply_replace(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "replace", {"old", "new", "count"}, 2);
  const std::string text = soft_text(evaluator, value);
  const std::string from = soft_text(evaluator, *given[0]), to = soft_text(evaluator, *given[1]);
  const bool limited = given[2] && !given[2]->is(Kind::none);
  const std::int64_t most = limited ? integer_argument(*given[2], "replace") : -1;
  evaluator.charge_search(text, from);
  const std::size_t times = from.empty() ? text.size() + 1 : static_cast<std::size_t>(count(text, from));
  evaluator.charge(text.size() + times * (to.size() + 16));
  return replaced(text, from, to, most);
}

Value apply_indent(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "indent", {"width", "first", "blank"});
  const std::string text = soft_text(evaluator, value) + "\n";
  std::string indention = "    ";
  if (given[0] && given[0]->is(Kind::text)) {
    indention = given[0]->text();
  } else if (given[0]) {
    const std::int64_t width = integer_argument(*given[0], "indent");
    if (width > 1024) fail("'indent' by {} is more than 1024", width);
    indention.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  const bool first = given[1] && given[1]->truth(), blank = given[2] && given[2]->truth();
  evaluator.charge_letters(text.size());
  const std::vector<std::string_view> lines = split_lines(text, false);
  evaluator.charge(text.size() + lines.size() * (indention.size() + 16));
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 ? blank || !lines[i].empty() : first) out += indention;
    out += lines[i];
  }
  return like(value, std::move(out));
}

Value apply_center(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "center", {"width"});
  const std::string text = soft_text(evaluator, value);
  const std::int64_t width = given[0] ? integer_argument(*given[0], "center") : 80;
  const std::int64_t missing = width - length(text);
  if (missing <= 0) return text;
  evaluator.charge(static_cast<std::size_t>(missing) + text.size());
  const std::int64_t left = missing / 2 + (missing & width & 1);
  return std::string(static_cast<std::size_t>(left), ' ') + text +
         std::string(static_cast<std::size_t>(missing - left), ' ');
}

Value apply_format(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  if (!arguments.named.empty()) fail("'format' with named arguments is not supported");
  return percent_format(evaluator, soft_text(evaluator, value), Value::tuple(arguments.positional));
}

Value apply_wordcount(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "wordcount", {});
  evaluator.charge(value.weight() * 64);
  return split(soft_text(evaluator, value), -1, false).size();
}

Value apply_tojson(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = given[0] && given[0]->truth();
  if (given[1] && !given[1]->is(Kind::none)) {
    const std::int64_t indent = integer_argument(*given[1], "tojson");
    if (indent < 0 || indent > 64) fail("'tojson' with an indent of {} is not supported", indent);
    style.indent = static_cast<int>(indent);
    style.between = ",";
  }
  if (given[2] && !given[2]->is(Kind::none)) {
    const List both = evaluator.items(*given[2]);
    if (both.size() != 2) fail("'tojson' needs two separators");
    style.between = text_argument(both[0], "tojson");
    style.behind_key = text_argument(both[1], "tojson");
  }
  style.sorted = given[3] && given[3]->truth();
  const std::size_t depth = static_cast<std::size_t>(value.nesting() * style.indent.value_or(0));
  evaluator.charge(value.weight() * (32 + depth + style.between.size() + style.behind_key.size()));
  if (style.sorted) evaluator.charge(value.weight() * 256);
  return to_json(value, style);
}

// Python's float(): the whole text, white space around it aside.
std::optional<double> parsed_real(std::string_view text) {
  constexpr std::size_t most_digits = 1000;
  if (text.size() > most_digits) fail("a number of more than {} characters", most_digits);
  text = stripped(text, Side::both);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error == std::errc::invalid_argument || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Value apply_int(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "int", {"default", "base"});
  if (given[1]) fail("'int' with a base is not supported");
  const Value absent = given[0] ? *given[0] : Value(0);
  if (const auto integer = value.as_integer()) return *integer;
  std::optional<double> real;
  if (value.is(Kind::real)) real = value.real();
  if (value.is(Kind::text)) {
    evaluator.charge_letters(value.text().size());
    std::string_view text = stripped(value.text(), Side::both);
    if (text.starts_with('+')) text.remove_prefix(1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (!text.empty() && error == std::errc() && end == text.data() + text.size()) return number;
    real = parsed_real(value.text());
  }
  if (!real || !(std::fabs(*real) < 9e18)) return absent;
  return static_cast<std::int64_t>(*real);
}

Value apply_float(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "float", {"default"});
  if (value.is_number()) return value.as_real();
  if (value.is(Kind::text)) evaluator.charge_letters(value.text().size());
  const auto real = value.is(Kind::text) ? parsed_real(value.text()) : std::nullopt;
  return real ? Value(*real) : given[0] ? *given[0] : Value(0.0);
}

Value apply_abs(Evaluator&, const Value& value, const Arguments& arguments) {
  bound(arguments, "abs", {});
  require_defined(value);
  if (!value.is_number()) fail("'abs' needs a number, not a value of type {}", value.type_name());
  return value.as_real() < 0 ? negative(value) : value;
}

Value apply_round(Evaluator&, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "round", {"precision", "method"});
  require_defined(value);
  if (!value.is_number()) fail("'round' needs a number, not a value of type {}", value.type_name());
  const std::int64_t digits = given[0] ? integer_argument(*given[0], "round") : 0;
  const std::string method = given[1] ? text_argument(*given[1], "round") : "common";
  if (digits < 0 || digits > 15) fail("'round' to {} digits is not supported", digits);
  if (method == "common" && value.as_integer()) return value;
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil") return std::ceil(value.as_real() * scale) / scale;
  if (method == "floor") return std::floor(value.as_real() * scale) / scale;
  if (method != "common") fail("'round' knows common, ceil and floor");
  return std::strtod(fmt::format("{:.{}f}", value.as_real(), digits).c_str(), nullptr);
}

constexpr Filter text_filters[] = {{"abs", apply_abs},
                                   {"capitalize", apply_change<capitalized>},
                                   {"center", apply_center},
                                   {"e", apply_escape},
                                   {"escape", apply_escape},
                                   {"float", apply_float},
                                   {"format", apply_format},
                                   {"indent", apply_indent},
                                   {"int", apply_int},
                                   {"lower", apply_change<lower>},
                                   {"replace", apply_replace},
                                   {"round", apply_round},
                                   {"safe", apply_safe},
                                   {"string", apply_string},
                                   {"title", apply_change<title>},
                                   {"tojson", apply_tojson},
                                   {"trim", apply_trim},
                                   {"upper", apply_change<upper>},
                                   {"wordcount", apply_wordcount}};

}  // namespace

const Filter* find_text_filter(std::string_view name) {
  const auto it =
      std::find_if(std::begin(text_filters), std::end(text_filters), [&](const Filter& f) { return f.name == name; });
  return it == std::end(text_filters) ? nullptr : it;
}

}  // namespace hayloft::runtime::jinja
