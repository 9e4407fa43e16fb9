#pragma once

#include <optional>
#include <string>

#include "runtime/chat/jinja/values/value.h"

namespace hayloft::runtime::jinja {

// As Python's json.dumps writes.
struct JsonStyle {
  bool ascii = false;              // characters beyond ASCII as \uXXXX
  std::optional<int> indent = {};  // spaces a level, each member on a line of its own
  std::string between = ", ";      // members; "," where `indent` is set and nothing else is said
  std::string behind_key = ": ";
  bool sorted = false;
};

// Throws Error on what is no JSON: undefined values, functions.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace hayloft::runtime::jinja
