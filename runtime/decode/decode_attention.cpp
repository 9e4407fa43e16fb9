#include "runtime/decode/decode_attention.h"

namespace hayloft::runtime {

void DecodeAttention::bind(SharedMethod method, MethodState* state) {
  for (const Choice& choice : choices_) add_use(choice, used_);
  choices_.clear();
  method_ = std::move(method);
  state_ = state;
}

void DecodeAttention::begin_step(const Cache& cache) {
  if (state_ != nullptr) state_->sync_with_cache(cache.global_views(), {});
}

const Method& DecodeAttention::chosen(const GlobalLayer& at) {
  const auto layer = static_cast<std::size_t>(at.cache.layer);
  if (choices_.size() <= layer) choices_.resize(layer + 1);
  Choice& choice = choices_[layer];
  const std::int64_t part = tail_part(at.cache);
  if (choice.method == nullptr || choice.store_tokens != at.cache.stored_tokens() || choice.tail_part != part) {
    add_use(choice, used_);
    choice = {&method_->chosen(at.cache, at.query_heads), at.cache.stored_tokens(), part, 0};
  }
  ++choice.steps;
  return *choice.method;
}

void DecodeAttention::add_use(const Choice& choice, std::map<std::string, std::int64_t>& used) {
  if (choice.steps > 0) used[method_label(choice.method->options())] += choice.steps;
}

std::map<std::string, std::int64_t> DecodeAttention::used() const {
  std::map<std::string, std::int64_t> used = used_;
  for (const Choice& choice : choices_) add_use(choice, used);
  return used;
}

// The tail is read once per KV head, what is selected once per list.
void DecodeAttention::count(const Method& by, const Counters& of_step, const GlobalLayer& at) {
  counters += of_step;
  const bool per_query_head = selects_per(by.options()) == index::SelectPer::query_head;
  const double lists = per_query_head ? at.query_heads : at.cache.kv_heads;
  const auto tail = static_cast<double>(of_step.at(Place::device, Kind::rows)) / (4.0 * at.cache.head_dim);
  const double selected = static_cast<double>(of_step.rows_fetched) - tail;
  positions_attended_ += tail / at.cache.kv_heads + selected / lists;
}

void DecodeAttention::attend(const GlobalLayer& at, const float* q, int /*rows*/, float* out) {
  attend_before(interested_in(at), chosen(at), at, q, out);
}

std::optional<gpu::Attended> DecodeAttention::attend_or_leave(const GlobalLayer& at, const float* q, float* out) {
  const Observers interested = interested_in(at);
  const Method& by = chosen(at);
  if (interested.empty() && ranks_ == nullptr) {
    if (const auto ranges = by.ranges(at.cache, at.query_heads)) {
      count(by, by.count(at.cache, at.query_heads), at);
      return ranges;
    }
  }
  attend_before(interested, by, at, q, out);
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

void DecodeAttention::attend_before(const Observers& interested, const Method& by, const GlobalLayer& at,
                                    const float* q, float* out) {
  StepTrace trace;
  Counters of_step;
  by.attend({at.backend, at.stream, at.cache, at.query_heads, at.scratch, of_step,
             interested.empty() ? nullptr : &trace, state_, held_bytes(at.backend, at.stream), ranks_},
            q, out);
  count(by, of_step, at);
  for (StepObserver* observer : interested) {
    observer->see({at.backend, at.stream, at.layer, at.cache, at.store, at.query_heads, q, out, trace, by, state_});
  }
}

}  // namespace hayloft::runtime
