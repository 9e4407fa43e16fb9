#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "index/ann/ann.h"
#include "tests/index/scan/column_fixture.h"

namespace hayloft::index::testing {

using hayloft::testing::HandmadeLayer;
using hayloft::testing::normal_keys;
using Positions = std::vector<std::int32_t>;

// Keys as attention has them: a few directions matter, and all have a mean in common; positions repeat nothing.
inline HandmadeLayer::Key attention_keys(unsigned seed) {
  const auto normal = normal_keys(seed);
  return [normal](int head, std::int64_t t, int c) {
    return normal(head, t, c) * (c % 8 == 0 ? 3.0f : 0.5f) + (c % 5 == 0 ? 2.0f : 0.0f);
  };
}

struct Fixture {
  explicit Fixture(int d = 64, std::int64_t tokens = 20000, int group = 2)
      : layer({.layers = 1, .kv_heads = 2, .head_dim = d, .block_tokens = 1024}, tokens, attention_keys(3)),
        query_heads(2 * group),
        query(static_cast<std::size_t>(query_heads * d)) {
    std::mt19937 engine(4);
    std::normal_distribution<float> normal;
    for (float& x : query) x = normal(engine);
  }

  // The first `tokens` of the layer.
  offload::LayerView first(std::int64_t tokens) const {
    offload::LayerView view = layer.view();
    view.tokens = tokens;
    return view;
  }

  Ann build(const std::string& factory, bool aware = true) const {
    Ann ann({factory, aware}, 1, 2, d());
    ann.sync_with_store(std::vector{layer.view()}, threads);
    return ann;
  }

  AnnSearch asked(int k) const { return {.query_heads = query_heads, .limit = layer.view().tokens, .k = k}; }

  Positions find(const Ann& ann, const AnnSearch& search, AnnCost* cost = nullptr) const {
    Positions found(static_cast<std::size_t>(query_heads * search.k));
    const AnnCost spent = ann.search(0, layer.view(), query.data(), search, threads, found.data());
    if (cost) *cost = spent;
    return found;
  }

  Positions exact(int k, std::int64_t limit) const {
    Positions found(static_cast<std::size_t>(query_heads * k));
    std::vector<std::int32_t> components(static_cast<std::size_t>(2 * d()));
    for (int i = 0; i < 2 * d(); ++i) components[static_cast<std::size_t>(i)] = i % d();
    const ColumnSearch search{
        {.rank = d(), .per = SelectPer::query_head}, query_heads, components.data(), query.data(), limit, k};
    search_columns(layer.view(), search, threads, {found.data(), nullptr, nullptr, nullptr});
    return found;
  }

  double recall(const Positions& found, int k, std::int64_t limit) const {
    const Positions truth = exact(k, limit);
    int caught = 0;
    for (int h = 0; h < query_heads; ++h) {
      const auto begin = found.begin() + h * k;
      for (int i = 0; i < k; ++i)
        caught += std::binary_search(begin, begin + k, truth[static_cast<std::size_t>(h * k + i)]);
    }
    return caught / static_cast<double>(query_heads * k);
  }

  int d() const { return layer.view().layout->head_dim; }

  HandmadeLayer layer;
  int query_heads;
  std::vector<float> query;
  offload::Threads threads{2};
};

// Lists of k distinct ascending positions below the limit.
inline void expect_lists(const Positions& found, int k, std::int64_t limit) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_GE(found[i], 0);
    ASSERT_LT(found[i], limit);
    if (i % static_cast<std::size_t>(k) != 0) {
      ASSERT_GT(found[i], found[i - 1]);
    }
  }
}

}  // namespace hayloft::index::testing
