#include "runtime/fidelity/audit_sample.h"

#include <cmath>
#include <numeric>

namespace hayloft::runtime {
namespace {

std::vector<float> to_host(const LayerStep& at, const float* values) {
  return copy_to_host(at.backend, values, at.query_elements(), at.stream);
}

std::int64_t budget_of(const LayerStep& at, const Method& by) {
  const std::int64_t k = by.recall_k(at.tokens(), at.cache.layer);
  // A method without a k attends to everything, or is held to what others would have had.
  return k > 0 ? k : by.options().k.at(at.cache.layer).of(at.tokens());
}

}  // namespace

StepSample::StepSample(const Step& step, const Method& by)
    : layer_(step.at.layer),
      global_layer_(step.at.cache.layer),
      query_heads_(step.at.query_heads),
      store_(step.at.store.fork()),
      store_view_(store_.layer(global_layer_)),
      tail_(step.at.backend, step.at.cache, step.at.stream),
      q_(to_host(step.at, step.q)),
      out_(to_host(step.at, step.out)),
      sinks_(sinks_on_host(step.at.backend, step.at.cache, step.at.query_heads, step.at.stream)),
      trace_(*step.trace),
      k_(budget_of(step.at, by)) {}

std::uint64_t StepSample::bytes() const {
  return static_cast<std::uint64_t>(query().tokens() * tail_.kv_heads()) * 4 *
         static_cast<std::uint64_t>(tail_.head_dim());
}

StepFidelity StepSample::measure(gpu::Backend& host) {
  const StepQuery step = query();
  const bool per_query_head = trace_.lists == query_heads_ && query_heads_ != step.kv_heads();
  const index::SelectPer per = per_query_head ? index::SelectPer::query_head : index::SelectPer::kv_head;
  const Scores scores = exact_scores(step);
  const RankedPositions exact = rank_positions(step, scores, k_, per, host.threads());

  StepFidelity fidelity{layer_, position(), k_, {}, {}, {}};
  const std::vector<double> lists = recall_of(exact, trace_);
  const auto per_head = static_cast<std::ptrdiff_t>(lists.size()) / step.kv_heads();
  for (auto first = lists.begin(); first != lists.end(); first += per_head) {
    fidelity.recall.push_back(std::accumulate(first, first + per_head, 0.0) / static_cast<double>(per_head));
  }
  fidelity.mass = caught_mass(step, scores, exact, trace_);
  fidelity.error = output_errors(host);
  return fidelity;
}

std::vector<double> StepSample::output_errors(gpu::Backend& host) {
  gpu::CacheView cache;
  cache.layer = global_layer_;
  cache.kv_heads = tail_.kv_heads();
  cache.head_dim = tail_.head_dim();
  cache.store = store_view_;
  cache.tail = tail_.view();
  if (!sinks_.empty()) cache.sinks = sinks_.data();
  gpu::Attended everything;
  everything.ranges[0] = {0, cache.tokens()};
  std::vector<float> exact(out_.size());
  host.attend(cache, q_.data(), query_heads_, everything, exact.data(), host.stream());

  std::vector<double> errors;
  const auto d = static_cast<std::size_t>(cache.head_dim);
  for (std::size_t at = 0; at < exact.size(); at += d) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = at; i < at + d; ++i) {
      difference += std::pow(double{out_[i]} - double{exact[i]}, 2);
      norm += std::pow(double{exact[i]}, 2);
    }
    errors.push_back(norm > 0 ? std::sqrt(difference / norm) : 0.0);
  }
  return errors;
}

}  // namespace hayloft::runtime
