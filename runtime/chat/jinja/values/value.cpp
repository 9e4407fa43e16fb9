#include "runtime/chat/jinja/values/value.h"

#include <algorithm>
#include <unordered_map>

#include "offload/error.h"
#include "runtime/chat/jinja/values/objects.h"

namespace hayloft::runtime::jinja {

struct Value::Entries {
  Dict dict;
  int nesting;
  std::size_t weight;
};

namespace {

// Nesting and weight of the values in a list or dictionary.
struct Inside {
  int nesting = 0;
  std::size_t weight = 0;

  void add(const Value& value) {
    nesting = std::max(nesting, value.nesting() + 1);
    weight += value.weight();
    if (nesting > most_nesting) fail("lists and objects lie in one another more than {} deep", most_nesting);
    if (weight > most_weight) fail("a list or object holds more than {} values", most_weight);
  }
};

}  // namespace

std::shared_ptr<const Value::Items> Value::make_items(List items) {
  Inside inside{1};
  for (const Value& item : items) inside.add(item);
  return std::make_shared<const Items>(Items{std::move(items), inside.nesting, inside.weight + 1});
}

Value Value::list(List items) {
  Value value;
  value.data_ = make_items(std::move(items));
  return value;
}

Value Value::tuple(List items) {
  Value value;
  value.data_ = Tuple{make_items(std::move(items))};
  return value;
}

Value Value::dict(Dict dict) {
  Inside inside{1};
  for (const auto& [key, item] : dict.items) {
    inside.add(key);
    inside.add(item);
  }
  Value value;
  value.data_ = std::make_shared<const Entries>(Entries{std::move(dict), inside.nesting, inside.weight + 1});
  return value;
}

Value Value::generator(List items) {
  Inside inside{1};
  for (const Value& item : items) inside.add(item);
  Value value;
  value.data_ = std::make_shared<Generator>(Generator{std::move(items), inside.nesting, inside.weight + 1});
  return value;
}

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::move(what)};
  return value;
}

Value Value::markup(std::string text) {
  Value value;
  value.data_ = Text{std::make_shared<const std::string>(std::move(text)), true};
  return value;
}

Value Value::long_integer(std::string digits) {
  Value value;
  value.data_ = LongInteger{std::make_shared<const std::string>(std::move(digits))};
  return value;
}

const List& Value::items() const {
  if (const auto* tuple = std::get_if<Tuple>(&data_)) return tuple->items->items;
  return std::get<std::shared_ptr<const Items>>(data_)->items;
}

const Dict& Value::entries() const {
  return std::get<std::shared_ptr<const Entries>>(data_)->dict;
}

int Value::nesting() const {
  switch (kind()) {
    case Kind::list:
      return std::get<std::shared_ptr<const Items>>(data_)->nesting;
    case Kind::tuple:
      return std::get<Tuple>(data_).items->nesting;
    case Kind::dict:
      return std::get<std::shared_ptr<const Entries>>(data_)->nesting;
    case Kind::generator:
      return generator().nesting;
    case Kind::loop:
      return loop().turns.nesting();
    case Kind::callable:
      return callable().self.nesting();
    default:
      return 0;
  }
}

std::size_t Value::weight() const {
  switch (kind()) {
    case Kind::text:
      return 1 + text().size() / 8;
    case Kind::long_integer:
      return 1 + digits().size() / 8;
    case Kind::list:
      return std::get<std::shared_ptr<const Items>>(data_)->weight;
    case Kind::tuple:
      return std::get<Tuple>(data_).items->weight;
    case Kind::dict:
      return std::get<std::shared_ptr<const Entries>>(data_)->weight;
    case Kind::generator:
      return generator().weight;
    default:
      return 1;
  }
}

bool Value::truth() const {
  switch (kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return boolean();
    case Kind::integer:
      return integer() != 0;
    case Kind::real:
      return real() != 0;
    case Kind::text:
      return !text().empty();
    case Kind::list:
    case Kind::tuple:
      return !items().empty();
    case Kind::dict:
      return !entries().items.empty();
    default:
      return true;
  }
}

const char* Value::type_name() const {
  switch (kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::text:
      return is_markup() ? "Markup" : "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::generator:
      return "generator";
    case Kind::names:
      return "namespace";
    case Kind::loop:
      return "loop";
    case Kind::callable:
      return "function";
    case Kind::long_integer:
      return "int";
  }
  return "?";
}

std::optional<std::int64_t> Value::as_integer() const {
  if (is(Kind::integer)) return integer();
  if (is(Kind::boolean)) return boolean() ? 1 : 0;
  return std::nullopt;
}

double Value::as_real() const {
  return is(Kind::real) ? real() : static_cast<double>(*as_integer());
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [known, value] : items) {
    if (equal(known, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [known, value] : items) {
    if (known.is(Kind::text) && known.text() == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [known, old] : items) {
    if (equal(known, key)) return void(old = std::move(value));
  }
  items.emplace_back(std::move(key), std::move(value));
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [known, value] : items) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [known, old] : items) {
    if (known == name) return void(old = std::move(value));
  }
  items.emplace_back(name, std::move(value));
}

namespace {

// Members are in one order mostly; where they are not, texts are found by their hash and others one by one.
bool equal_entries(const Dict& a, const Dict& b, std::size_t* compared) {
  if (a.items.size() != b.items.size()) return false;
  std::unordered_map<std::string_view, const Value*> texts;
  std::size_t others = 0;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    const auto& [key, value] = a.items[i];
    const Value* other = nullptr;
    if (texts.empty() && others == 0 && equal(key, b.items[i].first, compared)) {
      other = &b.items[i].second;
    } else if (key.is(Kind::text)) {
      if (texts.empty()) {
        for (const auto& [name, item] : b.items) {
          if (name.is(Kind::text)) texts.emplace(name.text(), &item);
        }
      }
      const auto found = texts.find(key.text());
      if (found != texts.end()) other = found->second;
    } else {
      ++others;
      if (compared) *compared += b.items.size();
      other = b.find(key);
    }
    if (!other || !equal(value, *other, compared)) return false;
  }
  return true;
}

}  // namespace

bool equal(const Value& a, const Value& b, std::size_t* compared) {
  if (a.is_number() && b.is_number()) {
    const auto x = a.as_integer(), y = b.as_integer();
    return x && y ? *x == *y : a.as_real() == b.as_real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::text:
      return a.text() == b.text();
    case Kind::long_integer:
      return a.digits() == b.digits();
    case Kind::list:
    case Kind::tuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [&](const Value& x, const Value& y) { return equal(x, y, compared); });
    case Kind::dict:
      return equal_entries(a.entries(), b.entries(), compared);
    case Kind::generator:
      return &a.generator() == &b.generator();
    case Kind::names:
      return &a.names() == &b.names();
    case Kind::loop:
      return &a.loop() == &b.loop();
    default:
      return a.is(Kind::callable) && &a.callable() == &b.callable();
  }
}

std::optional<int> compare(const Value& a, const Value& b) {
  const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (a.is_number() && b.is_number()) {
    const auto x = a.as_integer(), y = b.as_integer();
    return x && y ? sign(*x, *y) : sign(a.as_real(), b.as_real());
  }
  if (a.is(Kind::text) && b.is(Kind::text)) return sign(a.text(), b.text());  // UTF-8 orders as its code points do
  if (!a.is_sequence() || a.kind() != b.kind()) return std::nullopt;
  const List &x = a.items(), &y = b.items();
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    const std::optional<int> order = compare(x[i], y[i]);
    if (order ? *order != 0 : x[i].is_sequence() || !equal(x[i], y[i])) return order;
  }
  return sign(x.size(), y.size());
}

}  // namespace hayloft::runtime::jinja
