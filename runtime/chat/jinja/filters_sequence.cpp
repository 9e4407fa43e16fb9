#include <algorithm>
#include <charconv>
#include <functional>
#include <string>

#include "offload/error.h"
#include "runtime/chat/jinja/filters.h"
#include "runtime/chat/jinja/values/strings.h"

// Filters over lists and objects.
namespace hayloft::runtime::jinja {
namespace {

bool is_given(const Value* value) {
  return value && !value->is(Kind::none);
}

// item.a.b.0 for the attribute "a.b.0"; the item itself where there is none. absent: instead of what is undefined on
// the way.
Value attribute_of(Evaluator& evaluator, Value item, const Value* path, const Value* absent = nullptr) {
  if (!is_given(path)) return item;
  const auto step = [&](const Value& key) {
    item = evaluator.item(item, key);
    if (is_given(absent) && item.is(Kind::undefined)) item = *absent;
  };
  if (path->as_integer()) {
    step(*path);
    return item;
  }
  const std::string& names = text_argument(*path, "attribute");
  evaluator.charge(names.size() * 16);
  for (const std::string_view part : split(names, ".", -1, false)) {
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size() && part[0] != '-';
    step(number ? Value(index) : Value(part));
  }
  return item;
}

Value folded(Evaluator& evaluator, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::text)) return value;
  evaluator.charge_letters(value.text().size());
  return lower(value.text());
}

bool before(Evaluator& evaluator, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  evaluator.charge(std::min(a.weight(), b.weight()) * 8);
  const auto order = compare(a, b);
  if (!order) fail("a {} and a {} cannot be sorted", a.type_name(), b.type_name());
  return *order < 0;
}

// By keys made of the items once; the order of equal ones stays, also when reversed.
List sorted(Evaluator& evaluator, const List& items, bool reverse, const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) keyed.emplace_back(key(item), item);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? before(evaluator, b.first, a.first) : before(evaluator, a.first, b.first);
  });
  List out;
  for (auto& [unused, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value apply_length(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "length", {});
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::text:
      evaluator.charge(value.text().size());
      return length(value.text());
    case Kind::list:
    case Kind::tuple:
      return value.items().size();
    case Kind::dict:
      return value.entries().items.size();
    default:
      fail("a value of type {} has no length", value.type_name());
  }
}

Value apply_default(Evaluator&, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "default", {"default_value", "boolean"});
  const bool replaces = value.is(Kind::undefined) || (given[1] && given[1]->truth() && !value.truth());
  return !replaces ? value : given[0] ? *given[0] : Value("");
}

Value apply_list(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "list", {});
  return Value::list(evaluator.items(value));
}

Value apply_first(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "first", {});
  const List items = evaluator.items(value);
  return items.empty() ? Value::undefined("there is no first item: the sequence is empty") : items.front();
}

Value apply_last(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "last", {});
  if (value.is(Kind::generator)) fail("a generator has no last item");
  const List items = evaluator.items(value);
  return items.empty() ? Value::undefined("there is no last item: the sequence is empty") : items.back();
}

Value apply_reverse(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "reverse", {});
  List items = evaluator.items(value);
  std::reverse(items.begin(), items.end());
  if (!value.is(Kind::text)) return Value::generator(std::move(items));
  std::string text;
  for (const Value& c : items) text += c.text();
  return text;
}

Value apply_join(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "join", {"d", "attribute"});
  const std::string between = given[0] ? evaluator.text_of(*given[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : evaluator.items(value)) {
    evaluator.charge(between.size());
    if (!std::exchange(first, false)) out += between;
    out += evaluator.text_of(attribute_of(evaluator, item, given[1]));
  }
  return out;
}

Value apply_items(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  bound(arguments, "items", {});
  if (value.is(Kind::undefined)) return Value::generator({});
  if (!value.is(Kind::dict)) fail("'items' needs an object, not a value of type {}", value.type_name());
  evaluator.charge_values(value.entries().items.size() * 4);
  List pairs;
  for (const auto& [key, item] : value.entries().items) pairs.push_back(Value::tuple({key, item}));
  return Value::generator(std::move(pairs));
}

Value apply_dictsort(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  require_defined(value);
  if (!value.is(Kind::dict)) fail("'dictsort' needs an object, not a value of type {}", value.type_name());
  const std::string by = given[1] ? text_argument(*given[1], "dictsort") : "key";
  if (by != "key" && by != "value") fail("'dictsort' sorts by key or value");
  evaluator.charge_values(value.entries().items.size() * 4);
  List pairs;
  for (const auto& [key, item] : value.entries().items) pairs.push_back(Value::tuple({key, item}));
  return Value::list(sorted(evaluator, pairs, given[2] && given[2]->truth(), [&](const Value& pair) {
    return folded(evaluator, pair.items()[by == "key" ? 0 : 1], given[0] && given[0]->truth());
  }));
}

Value apply_sort(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool exact = given[1] && given[1]->truth();
  std::vector<Value> paths;
  if (is_given(given[2]) && given[2]->is(Kind::text)) {
    evaluator.charge(given[2]->text().size() * 64);
    for (const std::string_view path : split(given[2]->text(), ",", -1, false)) paths.emplace_back(path);
  } else if (is_given(given[2])) {
    paths.push_back(*given[2]);
  }
  const auto key = [&](const Value& item) {
    if (paths.empty()) return folded(evaluator, item, exact);
    List keys;
    for (const Value& path : paths) keys.push_back(folded(evaluator, attribute_of(evaluator, item, &path), exact));
    return Value::list(std::move(keys));
  };
  return Value::list(sorted(evaluator, evaluator.items(value), given[0] && given[0]->truth(), key));
}

Value apply_unique(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "unique", {"case_sensitive", "attribute"});
  List out, seen;
  for (const Value& item : evaluator.items(value)) {
    Value key = folded(evaluator, attribute_of(evaluator, item, given[1]), given[0] && given[0]->truth());
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& each) { return evaluator.same(each, key); })) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return Value::generator(std::move(out));
}

Value extreme(Evaluator& evaluator, const Value& value, const Arguments& arguments, bool least) {
  const auto given = bound(arguments, least ? "min" : "max", {"case_sensitive", "attribute"});
  const List items = evaluator.items(value);
  if (items.empty()) return Value::undefined("the sequence is empty");
  const auto key = [&](const Value& item) {
    return folded(evaluator, attribute_of(evaluator, item, given[1]), given[0] && given[0]->truth());
  };
  const Value* best = &items[0];
  for (const Value& item : items) {
    if (least ? before(evaluator, key(item), key(*best)) : before(evaluator, key(*best), key(item))) best = &item;
  }
  return *best;
}

Value apply_min(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  return extreme(evaluator, value, arguments, true);
}
Value apply_max(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  return extreme(evaluator, value, arguments, false);
}

Value apply_sum(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "sum", {"attribute", "start"});
  Value total = given[1] ? *given[1] : Value(0);
  for (const Value& item : evaluator.items(value)) {
    total = arithmetic(evaluator, "+", total, attribute_of(evaluator, item, given[0]));
  }
  return total;
}

Value apply_batch(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const auto given = bound(arguments, "batch", {"linecount", "fill_with"}, 1);
  const std::int64_t size = integer_argument(*given[0], "batch");
  const List items = evaluator.items(value);
  if (size < 1 || size > (1 << 20)) fail("'batch' of {} items is not supported", size);
  List batches, batch;
  for (const Value& item : items) {
    if (static_cast<std::int64_t>(batch.size()) == size) batches.push_back(Value::list(std::exchange(batch, {})));
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (is_given(given[1])) {
      evaluator.charge_values(static_cast<std::size_t>(size));
      batch.resize(static_cast<std::size_t>(size), *given[1]);
    }
    batches.push_back(Value::list(std::move(batch)));
  }
  return Value::generator(std::move(batches));
}

// A value that is not true, none included, is nothing to go over.
Value apply_map(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  if (!value.truth()) return Value::generator({});
  List out;
  if (arguments.positional.empty()) {
    const auto given = bound(arguments, "map", {"attribute", "default"}, 1);
    for (const Value& item : evaluator.items(value)) {
      out.push_back(attribute_of(evaluator, item, given[0], given[1]));
    }
    return Value::generator(std::move(out));
  }
  const std::string& name = text_argument(arguments.positional[0], "map");
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  for (const Value& item : evaluator.items(value)) out.push_back(evaluator.filter(name, item, rest));
  return Value::generator(std::move(out));
}

// select, reject, selectattr, rejectattr: the items that pass a test, or fail it, themselves or by an attribute.
template <bool wanted, bool by_attribute>
Value apply_select(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  if (!value.truth()) return Value::generator({});
  std::vector<Value> given = arguments.positional;
  if (by_attribute && given.empty()) fail("'selectattr' needs the name of an attribute");
  const Value path = by_attribute ? given[0] : Value(nullptr);
  if (by_attribute) given.erase(given.begin());
  const bool tested = !given.empty();
  const std::string name = tested ? text_argument(given[0], "select") : "";
  if (tested) given.erase(given.begin());
  const Arguments rest{given, arguments.named};
  List out;
  for (const Value& item : evaluator.items(value)) {
    const Value looked_at = attribute_of(evaluator, item, &path);
    if ((tested ? evaluator.test(name, looked_at, rest) : looked_at.truth()) == wanted) out.push_back(item);
  }
  return Value::generator(std::move(out));
}

constexpr Filter filters[] = {{"batch", apply_batch},
                              {"count", apply_length},
                              {"d", apply_default},
                              {"default", apply_default},
                              {"dictsort", apply_dictsort},
                              {"first", apply_first},
                              {"items", apply_items},
                              {"join", apply_join},
                              {"last", apply_last},
                              {"length", apply_length},
                              {"list", apply_list},
                              {"map", apply_map},
                              {"max", apply_max},
                              {"min", apply_min},
                              {"reject", apply_select<false, false>},
                              {"rejectattr", apply_select<false, true>},
                              {"reverse", apply_reverse},
                              {"select", apply_select<true, false>},
                              {"selectattr", apply_select<true, true>},
                              {"sort", apply_sort},
                              {"sum", apply_sum},
                              {"unique", apply_unique}};

}  // namespace

const Filter* find_sequence_filter(std::string_view name) {
  const auto it = std::find_if(std::begin(filters), std::end(filters), [&](const Filter& f) { return f.name == name; });
  return it == std::end(filters) ? nullptr : it;
}

}  // namespace hayloft::runtime::jinja
