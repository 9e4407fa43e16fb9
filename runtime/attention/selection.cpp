#include "runtime/attention/selection.h"

#include <algorithm>

#include "index/scan/softmax.h"

namespace hayloft::runtime {
namespace {

template <class T>
T* scratch_for(const Step& step, gpu::Buffer& scratch, std::int64_t count) {
  const std::uint64_t bytes = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(count)) * sizeof(T);
  if (scratch.bytes() < bytes) scratch = step.backend.allocate(bytes, step.stream);
  return scratch.as<T>();
}

std::int32_t* positions_on_device(const Step& step, const SelectionPlan& plan) {
  return scratch_for<std::int32_t>(step, step.scratch.positions, plan.positions());
}

void record(const Step& step, const gpu::Attended& what) {
  StepTrace& trace = *step.trace;
  trace.lists = what.lists;
  trace.k = what.k;
  trace.ranges[0] = what.ranges[0];
  trace.ranges[1] = what.ranges[1];
  trace.positions.resize(static_cast<std::size_t>(what.lists) * static_cast<std::size_t>(what.k));
  trace.alpha.clear();
  if (trace.positions.empty()) return;
  step.backend.to_host(trace.positions.data(), what.positions, trace.positions.size() * sizeof(std::int32_t),
                       step.stream);
}

}  // namespace

std::vector<float> query_on_host(const Step& step, const float* q, float scale) {
  std::vector<float> query = copy_to_host(step.backend, q, step.query_elements(), step.stream);
  for (float& x : query) x *= scale;
  return query;
}

TailScores score_tail(const Step& step, const std::vector<float>& weights) {
  return score_tail(HostTail(step.backend, step.cache, step.stream), weights.data(), step.query_heads,
                    step.backend.threads());
}

Selection select_on_host(const Step& step, const SelectionPlan& plan, const HostSearch& host, const TailScores* tail) {
  const std::vector<std::int32_t> components = index::every_component(step.kv_heads(), host.columns);
  index::ColumnSearch search;
  search.query_heads = step.query_heads;
  search.rank = host.columns;
  search.components = components.data();
  search.weights = host.weights.data();
  search.limit = plan.limit;
  search.k = plan.k;
  search.rule = host.rule;
  search.per = host.per;
  search.keys = host.keys;
  Selection selection;
  selection.positions.resize(static_cast<std::size_t>(plan.positions()));
  index::SearchResult result;
  result.positions = selection.positions.data();
  if (tail == nullptr) {
    index::search_columns(host.view, search, step.backend.threads(), result);
    return selection;
  }
  std::vector<float> max = tail->max;
  std::vector<float> sum = tail->sum;
  selection.alpha.resize(max.size());
  result.max = max.data();
  result.sum = sum.data();
  result.mass = selection.alpha.data();
  index::search_columns(host.view, search, step.backend.threads(), result);
  for (std::size_t h = 0; h < max.size(); ++h) {
    const float in_tail = tail->sum[h] * index::rescale(tail->max[h], max[h]);
    float& alpha = selection.alpha[h];
    alpha = std::min((alpha + in_tail) / sum[h], 1.0f);  // rounding alone can take it past one
  }
  return selection;
}

DeviceSelection select_on_device(const Step& step, const SelectionPlan& plan, const float* q, gpu::SparqSelect args) {
  args.limit = plan.limit;
  args.k = plan.k;
  args.held_bytes = step.held_bytes;
  const DeviceSelection selection{positions_on_device(step, plan),
                                  scratch_for<float>(step, step.scratch.alpha, step.query_heads)};
  step.backend.select_sparq(step.cache, q, step.query_heads, args, selection.positions, selection.alpha, step.stream);
  return selection;
}

void attend_positions(const Step& step, const SelectionPlan& plan, const float* q, const std::int32_t* positions,
                      const float* alpha, float* out) {
  gpu::Attended what = plan.attended();
  what.positions = positions;
  what.alpha = alpha;
  if (step.held_bytes) what.held_bytes = step.held_bytes + 2;
  step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
  if (step.trace != nullptr) record(step, what);
}

void attend_selection(const Step& step, const SelectionPlan& plan, const float* q, const Selection& selection,
                      bool mean_value, float* out) {
  std::int32_t* const positions = positions_on_device(step, plan);
  if (!selection.positions.empty()) {
    step.backend.to_device(positions, selection.positions.data(), selection.positions.size() * sizeof(std::int32_t),
                           step.stream);
  }
  float* alpha = nullptr;
  if (mean_value && !selection.alpha.empty()) {
    alpha = scratch_for<float>(step, step.scratch.alpha, step.query_heads);
    step.backend.to_device(alpha, selection.alpha.data(), selection.alpha.size() * sizeof(float), step.stream);
  }
  attend_positions(step, plan, q, positions, alpha, out);
  if (step.trace != nullptr) step.trace->alpha = selection.alpha;
}

std::int64_t sparq_window(const MethodOptions& options, std::int64_t tokens, int layer) {
  return options.window ? std::min(*options.window, tokens) : options.k.at(layer).of(tokens) / 4;
}

}  // namespace hayloft::runtime
