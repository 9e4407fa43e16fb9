#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// A value of a template, with Python's meaning: what is equal, true, printed how. Lists, tuples and dictionaries never
// change after they are made, as in transformers' immutable sandbox, and are shared between copies; a namespace alone
// can be written to. Not thread-safe.
namespace hayloft::runtime::jinja {

class Value;
struct Dict;
struct Namespace;
struct Generator;
struct Loop;
struct Callable;

using List = std::vector<Value>;

enum class Kind : std::uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  list,
  tuple,
  dict,
  generator,  // what filters such as map give: true, and iterated over once
  names,      // namespace()
  loop,       // the variable of that name inside a loop
  callable,
  long_integer  // of more than 63 bits, from JSON: written and compared, not computed with
};

// Bounds of how deep lists and dictionaries lie in one another, for they are printed, compared and released
// recursively; and of how much they hold, counting what they hold more than once as often as they hold it
// (Value::weight).
constexpr int most_nesting = 128;
constexpr std::size_t most_weight = std::size_t{1} << 24;

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(std::nullptr_t) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int value) : data_(std::int64_t{value}) {}
  Value(std::int64_t value) : data_(value) {}
  Value(std::size_t value) : data_(static_cast<std::int64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(Text{std::make_shared<const std::string>(std::move(text)), false}) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<Namespace> names) : data_(std::move(names)) {}
  Value(std::shared_ptr<const Loop> loop) : data_(std::move(loop)) {}
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}

  // Throw Error when nested deeper than most_nesting or weightier than most_weight.
  static Value list(List items);
  static Value tuple(List items);
  static Value dict(Dict items);
  static Value generator(List items);
  // `what` is the message when it is used: "'x' is undefined".
  static Value undefined(std::string what);
  // Text that HTML escaping leaves alone, and that escapes what is joined to it (markupsafe.Markup).
  static Value markup(std::string text);
  static Value long_integer(std::string digits);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_number() const { return is(Kind::integer) || is(Kind::real) || is(Kind::boolean); }
  bool is_sequence() const { return is(Kind::list) || is(Kind::tuple); }

  // Each for its kind alone, which the caller has made sure of.
  bool boolean() const { return std::get<bool>(data_); }
  std::int64_t integer() const { return std::get<std::int64_t>(data_); }
  double real() const { return std::get<double>(data_); }
  const std::string& text() const { return *std::get<Text>(data_).text; }
  bool is_markup() const { return is(Kind::text) && std::get<Text>(data_).markup; }
  const List& items() const;  // of a list or tuple
  const Dict& entries() const;
  Generator& generator() const { return *std::get<std::shared_ptr<Generator>>(data_); }
  Namespace& names() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Loop& loop() const { return *std::get<std::shared_ptr<const Loop>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  const std::string& digits() const { return *std::get<LongInteger>(data_).digits; }
  const std::string& absence() const { return std::get<Undefined>(data_).what; }

  bool truth() const;
  const char* type_name() const;  // Python's: str, int, list, NoneType
  int nesting() const;            // 0 for scalars, 1 for a flat list
  std::size_t weight() const;     // values in it, itself included, 8 bytes of text counting as one

  // An integer's or a boolean's value, nothing for others.
  std::optional<std::int64_t> as_integer() const;
  double as_real() const;  // of a number

 private:
  struct Undefined {
    std::string what;
  };
  struct None {};
  struct Text {
    std::shared_ptr<const std::string> text;
    bool markup;
  };
  struct LongInteger {
    std::shared_ptr<const std::string> digits;
  };
  struct Items {
    List items;
    int nesting;
    std::size_t weight;
  };
  struct Tuple {
    std::shared_ptr<const Items> items;
  };
  struct Entries;

  static std::shared_ptr<const Items> make_items(List items);

  std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const Items>, Tuple,
               std::shared_ptr<const Entries>, std::shared_ptr<Generator>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Loop>, std::shared_ptr<const Callable>, LongInteger>
      data_;
};

// Keys in the order they came in.
struct Dict {
  std::vector<std::pair<Value, Value>> items;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // replaces in place
};

struct Generator {
  List items;  // empty after they have been iterated over
  int nesting;
  std::size_t weight;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// ==: numbers by value whatever their type, everything else within its kind. Adds to `compared` how many keys of
// dictionaries were compared beyond one for each.
bool equal(const Value& a, const Value& b, std::size_t* compared = nullptr);

// Three-way order of two numbers, texts (by code point) or sequences; nothing where Python has none.
std::optional<int> compare(const Value& a, const Value& b);

void append_text(const Value& value, std::string& out);  // str(): what {{ }} prints
std::string to_text(const Value& value);
std::string repr(const Value& value);  // repr(): as inside a printed list

std::string html_escaped(std::string_view text);

}  // namespace hayloft::runtime::jinja
