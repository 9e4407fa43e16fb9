#pragma once

#include <cstdint>

namespace hayloft::runtime {

// Stands in for the positions that a step does not read: the third choice beside what ranks positions and what
// attends to them. A further one is a kind here, and what Attender::attend() makes of it.
struct Rest {
  enum class Kind : std::uint8_t {
    none,  // they count for nothing
    mean   // the mean of V over every token, by the share of the softmax that they have: SparQ's step 3
  };
  Kind kind = Kind::none;
};

}  // namespace hayloft::runtime
