#pragma once

#include <cstddef>
#include <cstdint>

namespace hayloft::runtime::jinja {

// The most that a template may use, as it may come from anywhere. Real ones need a hundredth of it. Long conversations
// raise the limits on steps and values by what they hold, since templates go over it some ten times.
struct Limits {
  std::int64_t steps = std::int64_t{1} << 26;      // of evaluation; 8 bytes that are read or made count as one, too
  std::size_t value_bytes = std::size_t{1} << 26;  // of one text or list that is made
  std::size_t output_bytes = std::size_t{1} << 28;
  int depth = 1000;  // of blocks, expressions and macros running inside one another
};

}  // namespace hayloft::runtime::jinja
