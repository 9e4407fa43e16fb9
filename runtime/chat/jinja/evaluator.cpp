#include "runtime/chat/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/chat/jinja/evaluator_level.h"

// The expressions of a template.
namespace hayloft::runtime::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get()) {
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

std::string Evaluator::run(const Body& body, const Dict& variables) {
  std::string out;
  out_ = &out;
  const auto outermost = std::make_shared<Scope>();
  for (const auto& [key, value] : variables.items) outermost->set(key.text(), value);
  scope_ = std::make_shared<Scope>(Scope{outermost});
  run_body(body);
  return out;
}

void Evaluator::charge(std::size_t bytes) {
  steps_ += 1 + static_cast<std::int64_t>(bytes / 8);
  if (steps_ > limits_.steps) fail("the template takes more than {} steps", limits_.steps);
}

std::string Evaluator::text_of(const Value& value) {
  charge(value.weight() * 8);
  return to_text(value);
}

bool Evaluator::same(const Value& a, const Value& b) {
  charge(std::min(a.weight(), b.weight()) * 8);
  return equal(a, b);
}

std::shared_ptr<Namespace> Evaluator::make_namespace() {
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

void require_defined(const Value& value) {
  if (value.is(Kind::undefined)) fail("{}", value.absence().empty() ? "a value is undefined" : value.absence());
}

Value Evaluator::name(const std::string& name) {
  if (const Value* value = scope_->find(name)) return *value;
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
      Dict dict;
      for (std::size_t i = 0; i < e.parts.size(); i += 2) {
        Value key = value_of(*e.parts[i]);
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
