#pragma once

#include <string_view>

#include "runtime/chat/jinja/evaluator.h"

namespace hayloft::runtime::jinja {

// A filter by name: value | NAME(arguments).
struct Filter {
  std::string_view name;
  Value (*apply)(Evaluator& evaluator, const Value& value, const Arguments& arguments);
};

// Null where the name is not known. Text: filters_text.cpp; lists and objects: filters_sequence.cpp.
const Filter* find_text_filter(std::string_view name);
const Filter* find_sequence_filter(std::string_view name);

}  // namespace hayloft::runtime::jinja
