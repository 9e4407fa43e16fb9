#include "runtime/decode/decode_attention.h"

namespace hayloft::runtime {

void DecodeAttention::bind(SharedMethod method, MethodState* state) {
  method_ = std::move(method);
  state_ = state;
}

void DecodeAttention::begin_step(const Cache& cache) {
  if (state_ != nullptr) state_->sync_with_cache(cache.global_views(), {});
}

void DecodeAttention::attend(const GlobalLayer& at, const float* q, int /*rows*/, float* out) {
  std::vector<StepObserver*> interested;
  for (const auto& observer : observers_) {
    if (observer->wants(at.layer, at.cache.tokens() - 1)) interested.push_back(observer.get());
  }
  StepTrace trace;
  method_->attend({at.backend, at.stream, at.cache, at.query_heads, at.scratch, counters,
                   interested.empty() ? nullptr : &trace, state_},
                  q, out);
  for (StepObserver* observer : interested) {
    observer->see({at.backend, at.stream, at.layer, at.cache, at.store, at.query_heads, q, out, trace, *method_});
  }
}

}  // namespace hayloft::runtime
