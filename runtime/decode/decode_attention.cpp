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
  attend_before(interested_in(at), at, q, out);
}

std::optional<gpu::Attended> DecodeAttention::attend_or_leave(const GlobalLayer& at, const float* q, float* out) {
  const Observers interested = interested_in(at);
  if (interested.empty()) {
    if (const auto ranges = method_->ranges(at.cache, at.query_heads)) {
      counters += method_->count(at.cache, at.query_heads);
      return ranges;
    }
  }
  attend_before(interested, at, q, out);
  return {};
}

DecodeAttention::Observers DecodeAttention::interested_in(const GlobalLayer& at) const {
  Observers interested;
  for (const auto& observer : observers_) {
    if (observer->wants(at.layer, at.cache.tokens() - 1)) interested.push_back(observer.get());
  }
  return interested;
}

void DecodeAttention::attend_before(const Observers& interested, const GlobalLayer& at, const float* q, float* out) {
  StepTrace trace;
  method_->attend({at.backend, at.stream, at.cache, at.query_heads, at.scratch, counters,
                   interested.empty() ? nullptr : &trace, state_},
                  q, out);
  for (StepObserver* observer : interested) {
    observer->see({at.backend, at.stream, at.layer, at.cache, at.store, at.query_heads, q, out, trace, *method_});
  }
}

}  // namespace hayloft::runtime
