#include "runtime/decode/prefill_attention.h"

#include <algorithm>

#include "runtime/attention/over_ranks.h"

namespace hayloft::runtime {

int PrefillAttention::queries_wanted(const GlobalLayer& at) const {
  int most = 0;
  for (const MethodState* state : states_) most = std::max(most, state->wants_queries(at.cache.layer, at.T));
  return most;
}

void PrefillAttention::see_queries(const GlobalLayer& at, const float* q, int n) {
  const std::int64_t width = static_cast<std::int64_t>(at.query_heads) * at.cache.head_dim;
  for (MethodState* state : states_) {
    const int wanted = state->wants_queries(at.cache.layer, at.T);
    if (wanted > 0) state->see_queries(at.cache, q + (n - wanted) * width, wanted);
  }
}

void PrefillAttention::attend(const GlobalLayer& at, const float* q, int rows, float* out) {
  if (ranks_ != nullptr) {
    return attend_causal_over_ranks(*ranks_, at.backend, at.cache, q, rows, at.query_heads, out, at.stream);
  }
  attend_prefill(at.backend, at.cache, q, rows, at.query_heads, options_, at.scratch, out, at.stream);
}

}  // namespace hayloft::runtime
