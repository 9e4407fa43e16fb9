#pragma once

#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/chat/jinja/limits.h"
#include "runtime/chat/jinja/parse/ast.h"
#include "runtime/chat/jinja/values/objects.h"

namespace hayloft::runtime::jinja {

// The variables of a block that has its own: a turn of a loop, a macro's body.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables = {};

  // Here or further out; adds how many names were compared.
  const Value* find(std::string_view name, std::size_t& compared) const;
  void set(std::string_view name, Value value);  // here
};

// Runs a template once. Errors do not name the template; line() says how far it has come.
class Evaluator {
 public:
  Evaluator(const Limits& limits, std::time_t now)
      : limits_(limits), now_(now), most_steps_(limits.steps), most_bytes_(limits.value_bytes) {}
  ~Evaluator();

  std::string run(const Body& body, const Value& variables);  // a dictionary
  int line() const { return line_; }

  // Services to filters, tests and methods.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value filter(const std::string& name, const Value& value, const Arguments& arguments);
  bool test(const std::string& name, const Value& value, const Arguments& arguments);
  std::shared_ptr<Namespace> make_namespace();
  std::time_t now() const { return now_; }
  // Counts work against the limit: a step, and one for every 8 bytes that are about to be read or made. Throws Error.
  void charge(std::size_t bytes = 0);
  void charge_values(std::size_t count);   // that are about to be made
  void charge_letters(std::size_t bytes);  // whose characters are mapped one by one
  void charge_search(std::string_view text, std::string_view wanted);
  void charge_lookup(const Value& dict, const Value& key);  // about to be looked for there
  // items_of, to_text and equal, charged.
  List items(const Value& value);
  std::string text_of(const Value& value);
  bool same(const Value& a, const Value& b);

 private:
  enum class Flow : std::uint8_t { on, stop, next };
  class Level;

  // Statements (statements.cpp).
  Flow run_body(const Body& body);
  Flow run_statement(const Statement& statement);
  Flow run_condition(const Statement& statement);
  Flow run_loop(const Statement& statement);
  void assign(const Expression& target, const Value& value);
  std::string captured(const Body& body, std::shared_ptr<Scope> scope);
  Value call_macro(const Callable& macro, const Arguments& arguments);
  void print(std::string_view text);
  std::shared_ptr<Scope> inner_scope() const;

  // Expressions (evaluator.cpp, access.cpp).
  Value value_of(const Expression& expression);
  Value name(const std::string& name);
  Value compare_all(const Expression& expression);
  bool contains(const Value& container, const Value& item);
  Value slice(const Expression& expression);
  Value apply_filters(const Expression* filters, Value value);
  Value call(const Expression& expression, std::shared_ptr<const Callable> caller);
  Arguments arguments_of(const Expression& expression);

  const Limits& limits_;
  std::time_t now_;
  std::int64_t steps_ = 0, most_steps_;
  std::size_t most_bytes_;
  int level_ = 0;
  int line_ = 1;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // emptied at the end, whatever refers to whatever
};

// Items that a for loop goes through, a list's, a dictionary's keys, a text's characters. Throws Error on what has
// none.
List items_of(const Value& value);

// Throws Error naming what is undefined; does nothing with anything else.
void require_defined(const Value& value);

// +, -, *, /, //, %, ** of two values (arithmetic.cpp). Throws Error.
Value arithmetic(Evaluator& evaluator, std::string_view op, const Value& a, const Value& b);
Value negative(const Value& value);
// "%s of %d" % values, and "{} of {}".format(...) (text_format.cpp). Throw Error on what is not supported.
std::string percent_format(Evaluator& evaluator, std::string_view format, const Value& values);
std::string brace_format(Evaluator& evaluator, std::string_view format, const Arguments& arguments);

// The parameters of a function in their order, null for one that is not given. Throws Error on what does not fit.
std::vector<const Value*> bound(const Arguments& arguments, const std::string& function,
                                std::initializer_list<std::string_view> parameters, std::size_t required = 0);
// Return the value of a parameter that is meant to be this. Throw Error on anything else.
const std::string& text_argument(const Value& value, std::string_view function);
std::int64_t integer_argument(const Value& value, std::string_view function);

// Methods of texts, lists and dictionaries (methods.cpp), and of the loop.
bool has_method(const Value& object, std::string_view name);
Value call_method(Evaluator& evaluator, const Callable& method, const Arguments& arguments);

// raise_exception, strftime_now, namespace, dict, range (globals.cpp).
bool is_global(std::string_view name);
Value call_global(Evaluator& evaluator, const std::string& name, const Arguments& arguments);

}  // namespace hayloft::runtime::jinja
