#pragma once

#include <cstdint>
#include <vector>

#include "runtime/attention/method.h"
#include "runtime/decode/attention_policy.h"

namespace hayloft::runtime {

// Says how tokens that are verified in one pass attend: exactly, each as the method `dense` does alone, to the bit. It
// counts what the pass reads, and what of it is that of each token. Of one pass.
class ExactAttention : public AttentionPolicy {
 public:
  explicit ExactAttention(const Method& dense) : dense_(dense) {}

  bool each_as_alone() const override { return true; }
  void attend(const LayerStep& at, const float* q, int queries, int rows, float* out) override;

  // Returns what the pass costs of which the first `kept` tokens stay: the elements, positions and rows of each of
  // those, as steps of their own count them, and the bytes of the pass, which reads the context once for all.
  Counters counters(int kept) const;

 private:
  const Method& dense_;
  std::vector<Counters> of_token_;  // over the layers
  Counters of_pass_;                // bytes alone
};

}  // namespace hayloft::runtime
