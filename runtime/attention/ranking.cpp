#include "runtime/attention/ranking.h"

#include <utility>

#include "index/scan/exact_search.h"
#include "runtime/attention/host_tail.h"

namespace hayloft::runtime {

SelectionPlan in_entries(const SelectionPlan& plan, const Ranking& ranking) {
  SelectionPlan entries = plan;
  entries.limit /= ranking.entry_tokens;
  entries.k /= ranking.entry_tokens;
  return entries;
}

std::vector<std::int32_t> as_positions(std::vector<std::int32_t> entries, const Ranking& ranking) {
  if (ranking.entry_tokens == 1) return entries;
  std::vector<std::int32_t> positions;
  positions.reserve(entries.size() * static_cast<std::size_t>(ranking.entry_tokens));
  for (const std::int32_t entry : entries) {
    for (std::int32_t t = 0; t < ranking.entry_tokens; ++t) positions.push_back(entry * ranking.entry_tokens + t);
  }
  return positions;
}

std::vector<float> query_on_host(const Step& step) {
  return copy_to_host(step.at.backend, step.q, step.at.query_elements(), step.at.stream);
}

HostRanking::HostRanking(const Step& step, const Ranking& ranking) : step_(step), ranking_(ranking) {
  const LayerStep& at = step.at;
  switch (ranking.source) {
    case Ranking::Source::given:
      break;
    case Ranking::Source::components:
      query_ = index::sparq_query(query_on_host(step).data(), at.query_heads, at.kv_heads(), at.head_dim(),
                                  at.cache.store, ranking.by);
      break;
    case Ranking::Source::keys:
      query_.rank = at.head_dim();
      query_.weights = query_on_host(step);
      for (float& x : query_.weights) x *= index::exact_scale(at.head_dim());
      keys_ = index::exact_keys(at.cache.store);
      break;
    case Ranking::Source::derived:
      query_.rank = ranking.by.rank;
      query_.weights = ranking.weights;
      break;
  }
  if (query_.components.empty()) query_.components = index::every_component(at.kv_heads(), query_.rank);
}

index::ColumnSearch HostRanking::search(std::int64_t limit, int k) const {
  index::ColumnSearch search;
  search.rule = ranking_.by.rule;
  search.per = ranking_.by.per;
  search.rank = query_.rank;
  search.query_heads = step_.at.query_heads;
  search.components = query_.components.data();
  search.weights = query_.weights.data();
  if (!query_.planes.empty()) search.planes = query_.planes.data();
  search.keys = keys_;
  search.limit = limit;
  search.k = k;
  return search;
}

std::vector<float> HostRanking::key_weights() const {
  if (!ranking_.tail_weights.empty()) return ranking_.tail_weights;
  const LayerStep& at = step_.at;
  std::vector<float> weights(static_cast<std::size_t>(at.query_elements()));
  query_.spread_out(at.kv_heads(), at.query_heads, at.head_dim(), at.head_dim(), weights.data());
  return weights;
}

}  // namespace hayloft::runtime
