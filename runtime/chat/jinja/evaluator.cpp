#include "runtime/chat/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/chat/jinja/evaluator_level.h"
#include "runtime/chat/jinja/values/strings.h"

// The expressions of a template.
namespace hayloft::runtime::jinja {

const Value* Scope::find(std::string_view name, std::size_t& compared) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get()) {
    compared += scope->variables.size() + 1;
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) return void(old = std::move(value));
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::~Evaluator() {
  for (const auto& names : namespaces_) names->items.clear();
}

std::string Evaluator::run(const Body& body, const Value& variables) {
  constexpr std::size_t steps_a_weight = 32, bytes_a_weight = 64;  // of 8 bytes
  most_steps_ += static_cast<std::int64_t>(steps_a_weight * variables.weight());
  most_bytes_ += bytes_a_weight * variables.weight();
  std::string out;
  out_ = &out;
  const auto outermost = std::make_shared<Scope>();
  for (const auto& [key, value] : variables.entries().items) outermost->set(key.text(), value);
  scope_ = std::make_shared<Scope>(Scope{outermost});
  run_body(body);
  return out;
}

void Evaluator::charge(std::size_t bytes) {
  if (bytes > most_bytes_) fail("the template makes a text or list of more than {} bytes", most_bytes_);
  steps_ += 1 + static_cast<std::int64_t>(bytes / 8);
  if (steps_ > most_steps_) fail("the template takes more than {} steps", most_steps_);
}

void Evaluator::charge_values(std::size_t count) {
  charge(count * (sizeof(Value) + 8));
}

void Evaluator::charge_letters(std::size_t bytes) {
  charge(bytes * 4);
}

void Evaluator::charge_search(std::string_view text, std::string_view wanted) {
  constexpr std::size_t short_bytes = 32;  // a search for more takes some steps a byte at worst
  charge(text.size() * (wanted.size() > short_bytes ? 4 : 1));
}

// Names are told apart by their lengths mostly; those that are not are compared some bytes at a time.
void Evaluator::charge_lookup(const Value& dict, const Value& key) {
  const std::size_t entries = dict.entries().items.size();
  charge(entries * 4);
  if (key.is(Kind::text)) {
    charge(std::min(entries * key.text().size() / 16, dict.weight() * 8));
  } else if (key.is_sequence()) {
    charge(std::min(entries * key.weight(), dict.weight()) * 8);
  }
}

List Evaluator::items(const Value& value) {
  constexpr std::size_t character_bytes = 64;  // of a text of one character, besides its value
  if (value.is(Kind::text)) charge(static_cast<std::size_t>(length(value.text())) * character_bytes);
  charge_values(value.is(Kind::text)   ? static_cast<std::size_t>(length(value.text()))
                : value.is_sequence()  ? value.items().size()
                : value.is(Kind::dict) ? value.entries().items.size()
                                       : 0);
  return items_of(value);
}

std::string Evaluator::text_of(const Value& value) {
  charge(value.weight() * (value.is(Kind::text) ? 8 : 32));
  return to_text(value);
}

bool Evaluator::same(const Value& a, const Value& b) {
  charge(std::min(a.weight(), b.weight()) * (a.is(Kind::text) ? 8 : 32));
  std::size_t compared = 0;
  const bool equals = equal(a, b, &compared);
  charge(compared * 4);
  return equals;
}

std::shared_ptr<Namespace> Evaluator::make_namespace() {
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

void require_defined(const Value& value) {
  if (value.is(Kind::undefined)) fail("{}", value.absence().empty() ? "a value is undefined" : value.absence());
}

Value Evaluator::name(const std::string& name) {
  std::size_t compared = 0;
  const Value* value = scope_->find(name, compared);
  charge(compared * 2);
  if (value) return *value;
  if (is_global(name)) return std::make_shared<const Callable>(Callable{Callable::Type::global, name});
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

Value Evaluator::compare_all(const Expression& expression) {
  Value left = value_of(*expression.parts[0]);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = value_of(*expression.parts[i + 1]);
    line_ = expression.line;
    const std::string& op = expression.operators[i];
    bool holds = false;
    if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else if (op == "==" || op == "!=") {
      holds = same(left, right) == (op == "==");
    } else {
      require_defined(left);
      require_defined(right);
      charge(std::min(left.weight(), right.weight()) * 8);
      const auto order = compare(left, right);
      if (!order) fail("'{}' does not compare a {} with a {}", op, left.type_name(), right.type_name());
      holds = op == "<" ? *order < 0 : op == "<=" ? *order <= 0 : op == ">" ? *order > 0 : *order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Arguments Evaluator::arguments_of(const Expression& expression) {
  Arguments arguments;
  for (std::size_t i = 1; i < expression.parts.size(); ++i)
    arguments.positional.push_back(value_of(*expression.parts[i]));
  for (const auto& [name, value] : expression.named) arguments.named.emplace_back(name, value_of(*value));
  return arguments;
}

Value Evaluator::call(const Expression& expression, std::shared_ptr<const Callable> caller) {
  const Value callee = value_of(*expression.parts[0]);
  Arguments arguments = arguments_of(expression);
  if (caller) arguments.named.emplace_back("caller", std::move(caller));
  line_ = expression.line;
  require_defined(callee);
  if (!callee.is(Kind::callable)) fail("a value of type {} cannot be called", callee.type_name());
  const Callable& callable = callee.callable();
  switch (callable.type) {
    case Callable::Type::global:
      return call_global(*this, callable.name, arguments);
    case Callable::Type::method:
      return call_method(*this, callable, arguments);
    case Callable::Type::macro:
      return call_macro(callable, arguments);
  }
  return {};
}

Value Evaluator::apply_filters(const Expression* filters, Value value) {
  if (!filters) return value;
  value = apply_filters(filters->parts[0].get(), std::move(value));
  const Arguments arguments = arguments_of(*filters);
  line_ = filters->line;
  return filter(filters->name, value, arguments);
}

Value Evaluator::value_of(const Expression& e) {
  using Type = Expression::Type;
  const Level level(*this);
  charge();
  switch (e.type) {
    case Type::constant:
      return e.value;
    case Type::name:
      line_ = e.line;
      return name(e.name);
    case Type::list:
    case Type::tuple: {
      List items;
      for (const ExpressionPtr& part : e.parts) items.push_back(value_of(*part));
      return e.type == Type::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
    case Type::dict: {
      constexpr std::size_t most_steps = std::size_t{1} << 20;
      Dict dict;
      for (std::size_t i = 0; i < e.parts.size(); i += 2) {
        Value key = value_of(*e.parts[i]);
        charge(dict.items.size() * (4 + std::min(key.weight(), most_steps)));
        dict.set(std::move(key), value_of(*e.parts[i + 1]));
      }
      return Value::dict(std::move(dict));
    }
    case Type::attribute: {
      const Value object = value_of(*e.parts[0]);
      line_ = e.line;
      return attribute(object, e.name);
    }
    case Type::item: {
      const Value object = value_of(*e.parts[0]);
      const Value key = value_of(*e.parts[1]);
      line_ = e.line;
      return item(object, key);
    }
    case Type::slice:
      return slice(e);
    case Type::call:
      return call(e, nullptr);
    case Type::filter: {
      const Value value = value_of(*e.parts[0]);
      const Arguments arguments = arguments_of(e);
      line_ = e.line;
      return filter(e.name, value, arguments);
    }
    case Type::test: {
      const Value value = value_of(*e.parts[0]);
      const Arguments arguments = arguments_of(e);
      line_ = e.line;
      return test(e.name, value, arguments);
    }
    case Type::negation:
      return !value_of(*e.parts[0]).truth();
    case Type::minus:
    case Type::plus: {
      const Value value = value_of(*e.parts[0]);
      line_ = e.line;
      return e.type == Type::minus ? negative(value) : negative(negative(value));
    }
    case Type::binary: {
      const Value a = value_of(*e.parts[0]);
      const Value b = value_of(*e.parts[1]);
      line_ = e.line;
      return arithmetic(*this, e.name, a, b);
    }
    case Type::concat: {
      std::string text;
      for (const ExpressionPtr& part : e.parts) {
        text += text_of(value_of(*part));
      }
      return text;
    }
    case Type::compare:
      return compare_all(e);
    case Type::logical: {
      Value left = value_of(*e.parts[0]);
      return left.truth() == (e.name == "or") ? left : value_of(*e.parts[1]);
    }
    case Type::condition:
      if (value_of(*e.parts[1]).truth()) return value_of(*e.parts[0]);
      if (e.parts[2]) return value_of(*e.parts[2]);
      return Value::undefined("the inline if was false and has no else");
  }
  return {};
}

}  // namespace hayloft::runtime::jinja
