#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/chat/jinja/values/value.h"

// Things that templates call, and the variable that loops offer.
namespace hayloft::runtime::jinja {

struct MacroNode;
struct Scope;

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  const Value* find(std::string_view name) const {
    for (const auto& [known, value] : named) {
      if (known == name) return &value;
    }
    return nullptr;
  }
};

// Something that can be called: a global function, a method of a value, a macro or a macro's caller.
struct Callable {
  enum class Type : std::uint8_t { global, method, macro };
  Type type;
  std::string name;
  Value self = {};                    // of a method
  const MacroNode* macro = nullptr;   // part of the template
  std::weak_ptr<Scope> closure = {};  // where the macro was defined, which may have been left
};

// The variable `loop` of one turn of a loop.
struct Loop {
  Value turns;  // the list of all items
  std::size_t index0;

  // loop.NAME; an undefined value for what does not exist there. Throws Error naming what is not supported.
  Value attribute(std::string_view name) const;
};

}  // namespace hayloft::runtime::jinja
