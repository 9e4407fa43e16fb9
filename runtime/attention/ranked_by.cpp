#include "runtime/attention/ranked_by.h"

#include <utility>

#include "index/scan/exact_search.h"
#include "runtime/attention/selection.h"

namespace hayloft::runtime {

RankedBy exact_logits(const Step& step, const float* q, const MethodOptions& method) {
  RankedBy by;
  by.rank = step.head_dim();
  by.components = index::every_component(step.kv_heads(), by.rank);
  by.weights = query_on_host(step, q, index::exact_scale(by.rank));
  by.rule = method.rule;
  by.per = selects_per(method);
  by.keys = index::exact_keys(step.cache.store);
  return by;
}

RankedBy sparq_logits(const Step& step, const float* q, const MethodOptions& method, const gpu::SparqSelect& select) {
  RankedBy by;
  by.rank = select.components(step.head_dim());
  by.rule = method.rule;
  by.per = index::SelectPer::kv_head;
  by.with_alpha = true;
  if (step.backend.searches_in_parts() && step.cache.store.tokens > 0) {
    by.on_device = {q, select};
    return by;
  }
  const std::vector<float> query = query_on_host(step, q, 1);
  const int d = step.head_dim(), r = by.rank;
  const int group = step.query_heads / step.kv_heads();
  by.components.resize(static_cast<std::size_t>(step.kv_heads() * r));
  if (select.bits > 0) by.planes.resize(by.components.size());
  const bool spreads = select.bits > 0 || select.order == index::ComponentOrder::qk;
  if (spreads) index::require_planes(step.cache.store.layout->columns);
  for (int head = 0; head < step.kv_heads(); ++head) {
    std::int32_t* const chosen = by.components.data() + head * r;
    const float* const of_group = query.data() + head * group * d;
    const float* const spread = spreads ? step.cache.store.spread.data() + head * d : nullptr;
    int used = r;
    if (select.bits > 0) {
      std::uint8_t* const planes = by.planes.data() + head * r;
      index::plane_components(of_group, group, d, spread, select.bits, chosen, planes);
      while (used > 0 && planes[used - 1] == 0) --used;
    } else {
      index::sparq_components(of_group, group, d, spread, r, chosen);
    }
    for (int h = head * group; h < (head + 1) * group; ++h) {
      const float* const of_head = query.data() + h * d;
      const float tau = index::sparq_temperature(of_head, d, chosen, used, select.temperature);
      for (int j = 0; j < r; ++j) by.weights.push_back(j < used ? of_head[chosen[j]] / tau : 0);
    }
  }
  return by;
}

RankedBy derived_logits(const Step& step, const offload::LayerView& columns, int count, std::vector<float> weights,
                        const MethodOptions& method) {
  RankedBy by;
  by.rank = count;
  by.components = index::every_component(step.kv_heads(), count);
  by.weights = std::move(weights);
  by.rule = method.rule;
  by.per = selects_per(method);
  by.derived = columns;
  return by;
}

}  // namespace hayloft::runtime
