#include "runtime/decode/decode_attention.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace hayloft::runtime {

void DecodeAttention::bind(SharedMethod method, MethodState* state) {
  for (const Choice& choice : choices_) add_use(choice, used_);
  choices_.clear();
  method_ = std::move(method);
  state_ = state;
}

void DecodeAttention::add_observer(std::shared_ptr<StepObserver> observer) {
  if (observer == nullptr) throw std::logic_error("DecodeAttention: there is no observer");
  observers_.push_back(std::move(observer));
}

void DecodeAttention::begin_step(const Cache& cache) {
  if (state_ != nullptr) state_->sync_with_cache(cache.global_views(), {});
}

StepPlan DecodeAttention::plan(const LayerStep& at) {
  const auto layer = static_cast<std::size_t>(at.cache.layer);
  if (choices_.size() <= layer) choices_.resize(layer + 1);
  Choice& choice = choices_[layer];
  const std::int64_t part = tail_part(at.cache);
  const bool stays = choice.store_tokens == at.cache.stored_tokens() && choice.tail_part == part;
  const StepPlan plan = method_->plan(at.cache, at.query_heads, stays ? choice.method : nullptr);
  if (!stays || choice.method == nullptr) {
    add_use(choice, used_);
    choice = {plan.by, at.cache.stored_tokens(), part, 0, choice.noted && choice.method == plan.by};
  }
  ++choice.steps;
  return plan;
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
void DecodeAttention::count(const Method& by, const Counters& of_step, const LayerStep& at) {
  counters += of_step;
  const double lists = by.ranking_options().lists(at.kv_heads(), at.query_heads);
  const auto tail = static_cast<double>(of_step.at(Place::device, Kind::rows)) / (4.0 * at.head_dim());
  const double selected = static_cast<double>(of_step.rows_fetched) - tail;
  const double attended = tail / at.kv_heads() + selected / lists;
  positions_attended_ += attended;
  const bool all = attender_->has_whole_layers() ? attended > every_position * static_cast<double>(at.tokens())
                                                 : by.options().name == "dense";
  bool& noted = choices_[static_cast<std::size_t>(at.cache.layer)].noted;
  if (all || noted) return;
  approximate_.add(at.tokens() - 1, method_label(by.options()));
  noted = true;
}

void DecodeAttention::count_exact(const Counters& cost, std::int64_t tokens, std::int64_t positions, int layers) {
  counters += cost;
  positions_attended_ += static_cast<double>(positions) * layers;
  if (layers > 0) used_["dense"] += tokens * layers;
  for (const auto& observer : observers_) observer->passed_over(tokens);
}

void DecodeAttention::attend(const LayerStep& at, const float* q, int /*queries*/, int /*rows*/, float* out) {
  const Observers interested = observers_.empty() ? Observers() : interested_in(at);
  attend_before(interested, plan(at), at, q, out);
}

std::optional<gpu::Attended> DecodeAttention::attend_or_leave(const LayerStep& at, const float* q, float* out) {
  const Observers interested = observers_.empty() ? Observers() : interested_in(at);
  const StepPlan planned = plan(at);
  if (interested.empty() && attender_->has_whole_layers() && !planned.selection.selects()) {
    count(*planned.by, planned.by->count(at.cache, planned.selection), at);
    return planned.selection.attended();
  }
  attend_before(interested, planned, at, q, out);
  return {};
}

void DecodeAttention::see_experts(int layer, std::int64_t position, int of, std::span<const int> chosen) {
  for (const auto& observer : observers_) observer->see_experts(layer, position, of, chosen);
}

// Called at the first step.
void DecodeAttention::learn_backend(const LayerStep& at) {
  backend_ = &at.backend;
  if (!backend_->keeps_reads()) return;
  const unsigned long long none[5] = {};
  held_ = backend_->allocate(sizeof none, at.stream);
  backend_->to_device(held_.as<void>(), none, sizeof none, at.stream);
}

Counters DecodeAttention::read_counters() const {
  Counters read = counters;
  if (!held_) return read;
  unsigned long long held[5] = {};
  backend_->to_host(held, held_.as<void>(), sizeof held, backend_->stream());
  constexpr Kind kinds[] = {Kind::columns, Kind::scales, Kind::rows};
  for (int i = 0; i < 3; ++i) {
    const Kind kind = kinds[i];
    const std::uint64_t bytes = held[i];
    read.at(Place::link, kind) -= bytes;
    read.at(Place::device, kind) += bytes;
  }
  read.ahead_used += held[3];
  read.ahead_fetched += held[4];
  return read;
}

double DecodeAttention::held_share(Kind kind) const {
  const std::uint64_t all = counters.at(Place::link, kind);
  if (!held_ || all == 0) return 0;
  return 1 - static_cast<double>(read_counters().at(Place::link, kind)) / static_cast<double>(all);
}

DecodeAttention::Observers DecodeAttention::interested_in(const LayerStep& at) const {
  Observers interested;
  for (const auto& observer : observers_) {
    if (observer->wants(at.layer, at.tokens() - 1)) interested.push_back(observer.get());
  }
  return interested;
}

std::int64_t DecodeAttention::unwanted_from(std::int64_t position) const {
  std::int64_t tokens = std::numeric_limits<std::int64_t>::max();
  for (const auto& observer : observers_) tokens = std::min(tokens, observer->unwanted_from(position));
  return tokens;
}

void DecodeAttention::attend_before(const Observers& interested, const StepPlan& plan, const LayerStep& at,
                                    const float* q, float* out) {
  if (backend_ == nullptr) learn_backend(at);
  StepTrace trace;
  StepEstimate estimate;
  const Step step{
      at, q, out, *attender_, state_, interested.empty() ? nullptr : &trace, held_.as<unsigned long long>(), &estimate};
  count(*plan.by, plan.by->attend(step, plan.selection), at);
  predicted.add(estimate, at.layer);
  for (StepObserver* observer : interested) observer->see(step, *plan.by);
}

}  // namespace hayloft::runtime
