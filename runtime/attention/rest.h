#pragma once

#include <cstdint>

namespace hayloft::runtime {

// Stands in for the positions that a step does not read: the third choice beside what ranks positions and what
// attends to them. A further one is a kind here, and what Attender::attend() makes of it.
struct Rest {
  enum class Kind : std::uint8_t {
    none,        // they count for nothing
    mean,        // the mean of V over every token, by the share of the softmax that they have: SparQ's step 3
    calibrated,  // the same, by the share that a line from approximate to exact logits gives them
    draw         // values drawn by these masses: an estimate of all that is not read, without a mean value
  };
  Kind kind = Kind::none;
  std::uint64_t seed = 1;  // of the draw

  // True where the attender needs the scores of every position: Attender::attend_with_rest().
  bool by_scores() const { return kind == Kind::calibrated || kind == Kind::draw; }
};

}  // namespace hayloft::runtime
