#include "runtime/decode/prefill_attention.h"

#include <algorithm>

namespace hayloft::runtime {

int PrefillAttention::queries_wanted(const LayerStep& at) const {
  int most = 0;
  for (const MethodState* state : states_) most = std::max(most, state->wants_queries(at.cache.layer, at.T));
  return most;
}

void PrefillAttention::attend(const LayerStep& at, const float* q, int queries, int rows, float* out) {
  for (MethodState* state : states_) {
    const int wanted = state->wants_queries(at.cache.layer, at.T);
    if (wanted > 0) state->see_queries(at.cache, q + (queries - wanted) * at.query_elements(), wanted);
  }
  if (rows == 0) return;
  gpu::SparseRead read;
  attend_prefill(at, q + (queries - rows) * at.query_elements(), rows, options_, *attender_, out, read);
  if (read_ == nullptr || read.visible == 0) return;
  const auto layer = static_cast<std::size_t>(at.cache.layer);
  if (read_->size() <= layer) read_->resize(layer + 1);
  (*read_)[layer].add(read);
}

}  // namespace hayloft::runtime
