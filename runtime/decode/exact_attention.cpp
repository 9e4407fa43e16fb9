#include "runtime/decode/exact_attention.h"

#include <algorithm>

namespace hayloft::runtime {

void ExactAttention::attend(const LayerStep& at, const float* q, int queries, int rows, float* out) {
  std::vector<gpu::AttendStep> steps;
  of_token_.resize(static_cast<std::size_t>(rows));
  q += (queries - rows) * at.query_elements();
  for (int row = 0; row < rows; ++row) {
    gpu::CacheView view = at.cache;  // as it was when the token was the newest
    view.tail.tokens -= rows - 1 - row;
    const StepPlan plan = dense_.plan(view, at.query_heads);
    Counters counted = plan.by->count(view, plan.selection);
    if (row + 1 == rows) of_pass_ += {.bytes = counted.bytes};
    counted.bytes = {};
    of_token_[static_cast<std::size_t>(row)] += counted;
    steps.push_back({view, q + row * at.query_elements(), plan.selection.attended(), out + row * at.query_elements()});
  }
  at.backend.attend_together(steps, at.query_heads, at.stream);
}

Counters ExactAttention::counters(int kept) const {
  Counters counters = of_pass_;
  for (std::size_t i = 0; i < std::min(of_token_.size(), static_cast<std::size_t>(kept)); ++i) {
    counters += of_token_[i];  // none in a model without global layers
  }
  return counters;
}

}  // namespace hayloft::runtime
