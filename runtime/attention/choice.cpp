#include "runtime/attention/choice.h"

#include <algorithm>
#include <cmath>

namespace hayloft::runtime {

gpu::Attended Choice::attended() const {
  gpu::Attended what;
  what.lists = lists;
  what.k = k;
  what.ranges[0] = {limit, tokens};
  return what;
}

std::uint64_t Choice::rows_per_head(int kv_heads) const {
  return static_cast<std::uint64_t>(lists / kv_heads) * static_cast<std::uint64_t>(k) +
         static_cast<std::uint64_t>(tokens - limit);
}

Choice choose(const Method& method, const gpu::CacheView& cache, int query_heads, index::SelectPer per) {
  Choice choice;
  choice.tokens = cache.tokens();
  const std::int64_t k = method.options().k.at(cache.layer).of(choice.tokens);
  const std::int64_t window = method.window(choice.tokens, cache.layer);
  choice.limit = std::min(cache.store.tokens, choice.tokens - window);
  choice.k = static_cast<int>(std::min(std::max<std::int64_t>(0, k - window), choice.limit));
  choice.lists = per == index::SelectPer::kv_head ? cache.kv_heads : query_heads;
  return choice;
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

Chosen choose_with_mass(const offload::LayerView& view, index::ColumnSearch search, const Choice& choice,
                        const TailScores& tail, const offload::Threads& threads) {
  search.limit = choice.limit;
  search.k = choice.k;
  Chosen chosen;
  chosen.positions.resize(static_cast<std::size_t>(choice.lists) * static_cast<std::size_t>(choice.k));
  std::vector<float> max = tail.max;
  std::vector<float> sum = tail.sum;
  chosen.alpha.resize(max.size());
  index::search_columns(view, search, threads, {chosen.positions.data(), max.data(), sum.data(), chosen.alpha.data()});
  for (std::size_t h = 0; h < max.size(); ++h) {
    const float in_tail = tail.sum[h] > 0 ? tail.sum[h] * std::exp(tail.max[h] - max[h]) : 0.0f;
    chosen.alpha[h] = std::min((chosen.alpha[h] + in_tail) / sum[h], 1.0f);  // rounding alone can take it past one
  }
  return chosen;
}

void attend_positions(const Step& step, const float* q, const Choice& choice, const std::int32_t* positions,
                      const float* alpha, float* out) {
  gpu::Attended what = choice.attended();
  what.positions = positions;
  what.alpha = alpha;
  step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
  record(step, what);
}

void attend_chosen(const Step& step, const float* q, const Choice& choice, const Chosen& chosen, bool mean_value,
                   float* out) {
  std::int32_t* const positions = positions_for(step, static_cast<std::int64_t>(chosen.positions.size()));
  if (!chosen.positions.empty()) {
    step.backend.to_device(positions, chosen.positions.data(), chosen.positions.size() * sizeof(std::int32_t),
                           step.stream);
  }
  float* alpha = nullptr;
  if (mean_value && !chosen.alpha.empty()) {
    alpha = alpha_for(step);
    step.backend.to_device(alpha, chosen.alpha.data(), chosen.alpha.size() * sizeof(float), step.stream);
  }
  attend_positions(step, q, choice, positions, alpha, out);
  if (step.trace != nullptr) step.trace->alpha = chosen.alpha;
}

}  // namespace hayloft::runtime
