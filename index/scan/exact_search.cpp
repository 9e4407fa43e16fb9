#include "index/scan/exact_search.h"

#include <algorithm>
#include <iterator>

#include "offload/error.h"

namespace hayloft::index {
namespace {

// Queries that a pass takes together on each KV head: enough arithmetic per key that memory is no longer what it waits
// for, and few enough that their scores of a tile stay in the second-level cache.
constexpr std::int64_t queries_per_pass = 32;
constexpr std::int64_t pass_bytes = std::int64_t{64} << 20;  // of notes: 12 bytes of a query for each 64 keys

int tokens_per_pass(const offload::LayerView& view, int query_heads) {
  const std::int64_t by_queries = queries_per_pass * view.layout->kv_heads / query_heads;
  const std::int64_t by_bytes = pass_bytes / (query_heads * (view.tokens / 64 + 64) * 12);
  return static_cast<int>(std::max<std::int64_t>(1, std::min(by_queries, by_bytes)));
}

// Tokens as if each KV head had the query heads of all of them: [Hkv][tokens][g].
void search_together(const offload::LayerView& view, const float* q, int query_heads, std::span<const ListSize> tokens,
                     const offload::Threads& threads, std::int32_t* positions) {
  const int kv_heads = view.layout->kv_heads, d = view.layout->head_dim, group = query_heads / kv_heads;
  const auto T = static_cast<int>(tokens.size());
  ColumnSearch search;
  search.query_heads = T * query_heads;
  search.rank = d;
  search.per = SelectPer::query_head;
  search.keys = exact_keys(view);
  std::vector<ListSize> sizes;
  std::vector<float> weights;
  const auto each_list = [&](const auto& use) {  // use(token, query head), in the order of the lists
    for (int head = 0; head < kv_heads; ++head) {
      for (int t = 0; t < T; ++t) {
        for (int h = head * group; h < (head + 1) * group; ++h) use(t, h);
      }
    }
  };
  each_list([&](int t, int h) {
    sizes.push_back(tokens[static_cast<std::size_t>(t)]);
    search.limit = std::max(search.limit, sizes.back().limit);
    search.k = std::max(search.k, sizes.back().k);
    const float* const query = q + (static_cast<std::int64_t>(t) * query_heads + h) * d;
    std::transform(query, query + d, std::back_inserter(weights), [&](float x) { return x * exact_scale(d); });
  });
  const std::vector<std::int32_t> components = every_component(kv_heads, d);
  search.components = components.data();
  search.weights = weights.data();
  search.sizes = sizes.data();
  if (search.k == 0) return;
  std::vector<std::int32_t> found(sizes.size() * static_cast<std::size_t>(search.k));
  search_columns(view, search, threads, {found.data(), nullptr, nullptr, nullptr});

  std::vector<std::int32_t*> of_token;
  for (const ListSize& size : tokens) {
    of_token.push_back(positions);
    positions += static_cast<std::int64_t>(query_heads) * size.k;
  }
  const std::int32_t* next = found.data();
  each_list([&](int t, int h) {
    const int k = tokens[static_cast<std::size_t>(t)].k;
    std::copy_n(next, k, of_token[static_cast<std::size_t>(t)] + static_cast<std::int64_t>(h) * k);
    next += search.k;
  });
}

}  // namespace

std::vector<std::int32_t> every_component(int kv_heads, int components) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(kv_heads * components));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i) % components;
  return all;
}

KeySource exact_keys(const offload::LayerView& view) {
  const bool exact =
      view.tokens == 0 || (traits_of(view.layout->columns).exact && view.layout->row_format == offload::RowFormat::f16);
  return exact ? KeySource::columns : KeySource::rows;
}

bool needs_tail_softmax(const ExactSearch& search) {
  return search.k > 0 && search.per == SelectPer::kv_head && search.rule == GroupRule::softmax && !search.faiss;
}

void search_exact(const offload::LayerView& view, const float* q, const ExactSearch& search,
                  const offload::Threads& threads, const SearchResult& result) {
  if (search.query_heads < 1) fail("search: {} query heads: there must be one at least", search.query_heads);
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
  ColumnSearch by;
  by.query_heads = search.query_heads;
  by.rank = d;
  by.rule = search.rule;
  by.per = search.per;
  by.components = components.data();
  by.weights = weights.data();
  by.limit = search.limit;
  by.k = search.k;
  by.keys = exact_keys(view);
  search_columns(view, by, threads, result);
}

void search_exact_tokens(const offload::LayerView& view, const float* q, int query_heads,
                         std::span<const ListSize> tokens, const offload::Threads& threads, std::int32_t* positions) {
  if (query_heads < 1) fail("search: {} query heads: there must be one at least", query_heads);
  for (const ListSize& size : tokens) {
    if (size.k < 0 || size.limit < size.k) fail("search: k {} of {} positions is out of range", size.k, size.limit);
  }
  if (view.tokens == 0) return;
  const std::int64_t width = static_cast<std::int64_t>(query_heads) * view.layout->head_dim;
  const auto at_once = static_cast<std::size_t>(tokens_per_pass(view, query_heads));
  while (!tokens.empty()) {
    const auto now = tokens.first(std::min(at_once, tokens.size()));
    search_together(view, q, query_heads, now, threads, positions);
    for (const ListSize& size : now) positions += static_cast<std::int64_t>(query_heads) * size.k;
    q += static_cast<std::int64_t>(now.size()) * width;
    tokens = tokens.subspan(now.size());
  }
}

}  // namespace hayloft::index
