#include "index/scan/exact_search.h"

#include "offload/error.h"

namespace hayloft::index {

std::vector<std::int32_t> every_component(int kv_heads, int components) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(kv_heads * components));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i) % components;
  return all;
}

KeySource exact_keys(const offload::LayerView& view) {
  const bool exact = view.tokens == 0 || view.layout->columns == offload::ColumnFormat::f16;
  return exact ? KeySource::columns : KeySource::rows;
}

bool needs_tail_softmax(const ExactSearch& search) {
  return search.k > 0 && search.per == SelectPer::kv_head && search.rule == GroupRule::softmax && !search.faiss;
}

void search_exact(const offload::LayerView& view, const float* q, const ExactSearch& search,
                  const offload::Threads& threads, const SearchResult& result) {
  if (search.k == 0) return;
  if (search.faiss) {
    if (search.per != SelectPer::query_head) {
      fail("Faiss' flat index selects per query head only; search without it to select per KV head");
    }
    return faiss_flat_search(view, q, search.query_heads, search.limit, search.k, threads, result.positions);
  }
  const int d = view.layout->head_dim;
  const std::vector<std::int32_t> components = every_component(view.layout->kv_heads, d);
  std::vector<float> weights(q, q + static_cast<std::ptrdiff_t>(search.query_heads) * d);
  for (float& weight : weights) weight *= exact_scale(d);
  search_columns(view,
                 {search.query_heads, d, components.data(), weights.data(), search.limit, search.k, search.rule,
                  search.per, exact_keys(view)},
                 threads, result);
}

}  // namespace hayloft::index
