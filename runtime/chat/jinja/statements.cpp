#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/chat/jinja/evaluator.h"
#include "runtime/chat/jinja/evaluator_level.h"

// The statements of a template.
namespace hayloft::runtime::jinja {

void Evaluator::print(std::string_view text) {
  charge(text.size());
  if (text.size() > limits_.output_bytes - std::min(out_->size(), limits_.output_bytes)) {
    fail("the template writes more than {} bytes", limits_.output_bytes);
  }
  *out_ += text;
}

std::shared_ptr<Scope> Evaluator::inner_scope() const {
  return std::make_shared<Scope>(Scope{scope_});
}

// Returns the text that a body writes in `scope`.
std::string Evaluator::captured(const Body& body, std::shared_ptr<Scope> scope) {
  std::string text;
  std::string* const outside = std::exchange(out_, &text);
  const std::shared_ptr<Scope> before = std::exchange(scope_, std::move(scope));
  run_body(body);
  scope_ = before;
  out_ = outside;
  return text;
}

Evaluator::Flow Evaluator::run_body(const Body& body) {
  for (const auto& statement : body) {
    if (const Flow flow = run_statement(*statement); flow != Flow::on) return flow;
  }
  return Flow::on;
}

Evaluator::Flow Evaluator::run_statement(const Statement& s) {
  using Type = Statement::Type;
  const Level level(*this);
  charge();
  line_ = s.line;
  switch (s.type) {
    case Type::data:
      print(s.text);
      break;
    case Type::print: {
      const Value value = value_of(*s.value);
      line_ = s.line;
      print(text_of(value));
      break;
    }
    case Type::condition:
      return run_condition(s);
    case Type::loop:
      return run_loop(s);
    case Type::set:
      assign(*s.target, value_of(*s.value));
      break;
    case Type::set_block:
      assign(*s.target, apply_filters(s.value.get(), captured(s.body, inner_scope())));
      break;
    case Type::macro: {
      Callable macro{Callable::Type::macro, s.macro->name};
      macro.macro = s.macro.get();
      macro.closure = scope_;
      scope_->set(s.macro->name, std::make_shared<const Callable>(std::move(macro)));
      break;
    }
    case Type::call: {
      Callable caller{Callable::Type::macro, "caller"};
      caller.macro = s.macro.get();
      caller.closure = scope_;
      print(text_of(call(*s.value, std::make_shared<const Callable>(std::move(caller)))));
      break;
    }
    case Type::filter:
      print(text_of(apply_filters(s.value.get(), captured(s.body, inner_scope()))));
      break;
    case Type::with: {
      const std::shared_ptr<Scope> outside = scope_;
      std::vector<Value> values;
      for (const auto& [target, value] : s.assignments) values.push_back(value_of(*value));
      scope_ = inner_scope();
      for (std::size_t i = 0; i < values.size(); ++i) assign(*s.assignments[i].first, values[i]);
      const Flow flow = run_body(s.body);
      scope_ = outside;
      return flow;
    }
    case Type::group:
      return run_body(s.body);
    case Type::stop:
      return Flow::stop;
    case Type::next:
      return Flow::next;
  }
  return Flow::on;
}

Evaluator::Flow Evaluator::run_condition(const Statement& s) {
  for (const auto& [test, body] : s.branches) {
    if (!test || value_of(*test).truth()) return run_body(body);
  }
  return Flow::on;
}

Evaluator::Flow Evaluator::run_loop(const Statement& s) {
  const std::shared_ptr<Scope> outside = scope_;
  const Value iterated = value_of(*s.value);
  line_ = s.line;
  List all = items(iterated);
  if (s.filter) {
    List kept;
    for (const Value& item : all) {
      scope_ = std::make_shared<Scope>(Scope{outside});
      assign(*s.target, item);
      if (value_of(*s.filter).truth()) kept.push_back(item);
    }
    all = std::move(kept);
  }
  scope_ = outside;
  if (all.empty()) return run_body(s.otherwise);

  const Value turns = Value::list(std::move(all));
  Flow flow = Flow::on;
  for (std::size_t i = 0; i < turns.items().size() && flow != Flow::stop; ++i) {
    charge();
    scope_ = std::make_shared<Scope>(Scope{outside});
    scope_->set("loop", std::make_shared<const Loop>(Loop{turns, i}));
    assign(*s.target, turns.items()[i]);
    flow = run_body(s.body);
  }
  scope_ = outside;
  return Flow::on;
}

void Evaluator::assign(const Expression& target, const Value& value) {
  switch (target.type) {
    case Expression::Type::name:
      charge(scope_->variables.size() * 2);
      scope_->set(target.name, value);
      return;
    case Expression::Type::attribute: {
      const std::string& name = target.parts[0]->name;
      line_ = target.line;
      std::size_t compared = 0;
      const Value* names = scope_->find(name, compared);
      charge(compared * 2);
      if (!names || !names->is(Kind::names))
        fail("'{}' is no namespace, so '{}.{}' cannot be set", name, name, target.name);
      if (target.name.starts_with('_')) fail("'{}.{}': names that begin with _ cannot be set", name, target.name);
      charge(names->names().items.size() * 2);
      names->names().set(target.name, value);
      return;
    }
    default: {
      const List all = items(value);
      if (all.size() != target.parts.size()) {
        fail("{} names are assigned {} values", target.parts.size(), all.size());
      }
      for (std::size_t i = 0; i < all.size(); ++i) assign(*target.parts[i], all[i]);
    }
  }
}

Value Evaluator::call_macro(const Callable& callable, const Arguments& arguments) {
  const MacroNode& macro = *callable.macro;
  charge(macro.parameters.size() * (macro.parameters.size() + 2 * arguments.named.size()) * 2);
  const std::shared_ptr<Scope> closure = callable.closure.lock();
  if (!closure) fail("macro '{}' is called outside of the block that it was defined in", macro.name);
  const auto scope = std::make_shared<Scope>(Scope{closure});
  const std::size_t given = std::min(arguments.positional.size(), macro.parameters.size());

  List more(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given), arguments.positional.end());
  if (!more.empty() && !macro.reads_varargs) {
    fail("macro '{}' takes {} arguments, not {}", macro.name, macro.parameters.size(), arguments.positional.size());
  }
  if (macro.reads_varargs) scope->set("varargs", Value::tuple(std::move(more)));
  Dict rest;
  for (const auto& [name, value] : arguments.named) {
    const auto known = [&wanted = name](const auto& parameter) { return parameter.first == wanted; };
    const auto at = std::find_if(macro.parameters.begin(), macro.parameters.end(), known);
    if (at != macro.parameters.end()) {
      if (at - macro.parameters.begin() < static_cast<std::ptrdiff_t>(given)) {
        fail("macro '{}' is given '{}' twice", macro.name, name);
      }
    } else if (name == "caller" && macro.reads_caller) {
      scope->set("caller", value);
    } else if (macro.reads_kwargs) {
      rest.set(name, value);
    } else {
      fail("macro '{}' takes no argument '{}'", macro.name, name);
    }
  }
  if (macro.reads_kwargs) scope->set("kwargs", Value::dict(std::move(rest)));
  if (macro.reads_caller && !arguments.find("caller")) {
    scope->set("caller", Value::undefined("no caller is defined: the macro was not called by {% call %}"));
  }

  const std::shared_ptr<Scope> outside = std::exchange(scope_, scope);
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, absent] = macro.parameters[i];
    if (i < given) {
      scope->set(name, arguments.positional[i]);
    } else if (const Value* named = arguments.find(name)) {
      scope->set(name, *named);
    } else if (absent) {
      scope->set(name, value_of(*absent));
    } else {
      scope->set(name, Value::undefined(fmt::format("parameter '{}' was not provided", name)));
    }
  }
  scope_ = outside;
  return captured(macro.body, scope);
}

}  // namespace hayloft::runtime::jinja
