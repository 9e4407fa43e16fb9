#pragma once

#include <cstddef>
#include <cstdint>

namespace hayloft::runtime::jinja {

// What a template may use, as it may come from anywhere. Real ones need a hundredth of it.
struct Limits {
  std::int64_t steps = std::int64_t{1} << 26;  // of evaluation; 8 bytes of text that are made count as one, too
  std::size_t output_bytes = std::size_t{1} << 28;
  int depth = 1000;  // of blocks, expressions and macros running inside one another
};

}  // namespace hayloft::runtime::jinja
