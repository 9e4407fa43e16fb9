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

unsigned long long* DecodeAttention::held_bytes(gpu::Backend& backend, gpu::Stream stream) {
  if (!backend.keeps_reads()) return nullptr;
  if (!backend_) {
    const unsigned long long none[3] = {};
    held_ = backend.allocate(sizeof none, stream);
    backend.to_device(held_.as<void>(), none, sizeof none, stream);
    backend_ = &backend;
  }
  return held_.as<unsigned long long>();
}

Counters DecodeAttention::read_counters() const {
  Counters read = counters;
  if (!backend_) return read;
  unsigned long long held[3] = {};
  backend_->to_host(held, held_.as<void>(), sizeof held, backend_->stream());
  constexpr Kind kinds[] = {Kind::columns, Kind::scales, Kind::rows};
  for (int i = 0; i < 3; ++i) {
    const Kind kind = kinds[i];
    const std::uint64_t bytes = held[i];
    read.at(Place::link, kind) -= bytes;
    read.at(Place::device, kind) += bytes;
  }
  return read;
}

double DecodeAttention::held_share(Kind kind) const {
  const std::uint64_t all = counters.at(Place::link, kind);
  if (!backend_ || all == 0) return 0;
  return 1 - static_cast<double>(read_counters().at(Place::link, kind)) / static_cast<double>(all);
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
                   interested.empty() ? nullptr : &trace, state_, held_bytes(at.backend, at.stream)},
                  q, out);
  for (StepObserver* observer : interested) {
    observer->see({at.backend, at.stream, at.layer, at.cache, at.store, at.query_heads, q, out, trace, *method_});
  }
}

}  // namespace hayloft::runtime
