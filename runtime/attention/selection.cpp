#include "runtime/attention/selection.h"

#include <algorithm>
#include <cmath>

namespace hayloft::runtime {

gpu::Attended SelectionPlan::attended() const {
  gpu::Attended what;
  what.lists = lists;
  what.k = k;
  what.ranges[0] = {limit, tokens};
  return what;
}

std::uint64_t SelectionPlan::rows_per_head(int kv_heads) const {
  return static_cast<std::uint64_t>(lists / kv_heads) * static_cast<std::uint64_t>(k) +
         static_cast<std::uint64_t>(tokens - limit);
}

SelectionPlan plan_selection(const Method& method, const gpu::CacheView& cache, int query_heads, index::SelectPer per) {
  SelectionPlan plan;
  plan.tokens = cache.tokens();
  const std::int64_t k = method.options().k.at(cache.layer).of(plan.tokens);
  const std::int64_t window = method.window(plan.tokens, cache.layer);
  plan.limit = std::min(cache.store.tokens, plan.tokens - window);
  plan.k = static_cast<int>(std::min(std::max<std::int64_t>(0, k - window), plan.limit));
  plan.lists = per == index::SelectPer::kv_head ? cache.kv_heads : query_heads;
  return plan;
}

std::int64_t sparq_window(const MethodOptions& options, std::int64_t tokens, int layer) {
  return options.window ? std::min(*options.window, tokens) : options.k.at(layer).of(tokens) / 4;
}

std::vector<float> query_on_host(const Step& step, const float* q, float scale) {
  std::vector<float> query(static_cast<std::size_t>(step.query_heads) * static_cast<std::size_t>(step.head_dim()));
  step.backend.to_host(query.data(), q, query.size() * sizeof(float), step.stream);
  for (float& x : query) x *= scale;
  return query;
}

std::vector<std::int32_t> every_column(int heads, int columns) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(heads * columns));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i) % columns;
  return all;
}

Selection select_with_mass(const offload::LayerView& view, index::ColumnSearch search, const SelectionPlan& plan,
                           const TailScores& tail, const offload::Threads& threads) {
  search.limit = plan.limit;
  search.k = plan.k;
  Selection selection;
  selection.positions.resize(static_cast<std::size_t>(plan.lists) * static_cast<std::size_t>(plan.k));
  std::vector<float> max = tail.max;
  std::vector<float> sum = tail.sum;
  selection.alpha.resize(max.size());
  index::search_columns(view, search, threads,
                        {selection.positions.data(), max.data(), sum.data(), selection.alpha.data()});
  for (std::size_t h = 0; h < max.size(); ++h) {
    const float in_tail = tail.sum[h] > 0 ? tail.sum[h] * std::exp(tail.max[h] - max[h]) : 0.0f;
    selection.alpha[h] =
        std::min((selection.alpha[h] + in_tail) / sum[h], 1.0f);  // rounding alone can take it past one
  }
  return selection;
}

void attend_positions(const Step& step, const float* q, const SelectionPlan& plan, const std::int32_t* positions,
                      const float* alpha, float* out) {
  gpu::Attended what = plan.attended();
  what.positions = positions;
  what.alpha = alpha;
  step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
  record(step, what);
}

void attend_selection(const Step& step, const float* q, const SelectionPlan& plan, const Selection& selection,
                      bool mean_value, float* out) {
  std::int32_t* const positions = positions_for(step, static_cast<std::int64_t>(selection.positions.size()));
  if (!selection.positions.empty()) {
    step.backend.to_device(positions, selection.positions.data(), selection.positions.size() * sizeof(std::int32_t),
                           step.stream);
  }
  float* alpha = nullptr;
  if (mean_value && !selection.alpha.empty()) {
    alpha = alpha_for(step);
    step.backend.to_device(alpha, selection.alpha.data(), selection.alpha.size() * sizeof(float), step.stream);
  }
  attend_positions(step, q, plan, positions, alpha, out);
  if (step.trace != nullptr) step.trace->alpha = selection.alpha;
}

}  // namespace hayloft::runtime
