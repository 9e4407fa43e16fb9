#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "index/scan/search.h"
#include "tests/index/scan/column_fixture.h"

// A layer, a query and the plain definition of what a search over its columns finds.
namespace hayloft::testing {

using index::ColumnSearch;
using index::GroupRule;
using index::SelectPer;

inline constexpr float infinity = std::numeric_limits<float>::infinity();

struct Shape {
  int kv_heads;
  int group;
  int head_dim;
  int rank;
  int block_tokens;
  std::int64_t tokens;
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "Hkv=" << s.kv_heads << " g=" << s.group << " d=" << s.head_dim << " r=" << s.rank
             << " B=" << s.block_tokens << " S=" << s.tokens << " " << offload::name(s.columns);
}

inline offload::StoreShape store_shape(const Shape& s) {
  return {.layers = 1,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .block_tokens = s.block_tokens,
          .columns = s.columns};
}

// Components and weights for a layer, and room for the result.
struct Query {
  // Weights of six significant bits make every product exact in f32 (a key has up to 18), so that processors with and
  // without fused multiply-add agree.
  Query(const Shape& s, unsigned seed, float scale = 1.0f) : shape(s) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    for (int head = 0; head < s.kv_heads; ++head) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(s.head_dim));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), engine);
      std::sort(all.begin(), all.begin() + s.rank);
      components.insert(components.end(), all.begin(), all.begin() + s.rank);
    }
    const float unit = scale / std::sqrt(static_cast<float>(s.rank));
    if (s.columns == offload::ColumnFormat::planes) read_some_planes();
    for (int i = 0; i < query_heads() * s.rank; ++i) weights.push_back(with_six_bits(unit * normal(engine)));
  }

  static float with_six_bits(float x) {
    int exponent = 0;
    const float fraction = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(fraction * 64), exponent - 6);
  }

  int query_heads() const { return shape.kv_heads * shape.group; }

  ColumnSearch search(std::int64_t limit, int k, GroupRule rule, SelectPer per) const {
    ColumnSearch search{
        {.rank = shape.rank, .rule = rule, .per = per}, query_heads(), components.data(), weights.data(), limit, k};
    if (!planes.empty()) search.planes = planes.data();
    return search;
  }

  // Returns how many planes of a KV head's j-th component are read.
  int planes_of(int head, int j) const {
    return planes.empty() ? offload::plane_count : planes[static_cast<std::size_t>(head * shape.rank + j)];
  }

  Shape shape;
  std::vector<std::int32_t> components;
  std::vector<std::uint8_t> planes;  // empty but for columns in planes
  std::vector<float> weights;

 private:
  // From four to none, of which the first component has one at least, by heads in turn.
  void read_some_planes() {
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (int j = 0; j < shape.rank; ++j) {
        const int all = offload::plane_count;
        const int read = all - (j * (all + head % 2) / shape.rank);
        planes.push_back(static_cast<std::uint8_t>(std::max(read, 0)));
      }
    }
  }
};

struct Found {
  std::vector<std::int32_t> positions;  // [lists][k]
  std::vector<float> max;
  std::vector<float> sum;
  std::vector<float> mass;

  friend bool operator==(const Found&, const Found&) = default;
};

inline Found find(const HandmadeLayer& layer, const ColumnSearch& search, const offload::Threads& threads,
                  float outside_max = -infinity, float outside_sum = 0) {
  const int lists = search.per == SelectPer::kv_head ? layer.view().layout->kv_heads : search.query_heads;
  const auto heads = static_cast<std::size_t>(search.query_heads);
  Found found{std::vector<std::int32_t>(static_cast<std::size_t>(lists) * static_cast<std::size_t>(search.k), -1),
              std::vector<float>(heads, outside_max), std::vector<float>(heads, outside_sum),
              std::vector<float>(heads)};
  search_columns(layer.view(), search, threads,
                 {found.positions.data(), found.max.data(), found.sum.data(), found.mass.data()});
  return found;
}

inline Found find(const HandmadeLayer& layer, const ColumnSearch& search) {
  return find(layer, search, offload::Threads(2));
}

// logits[h][t] of all query heads over all tokens, by score_columns.
inline std::vector<std::vector<float>> all_logits(const HandmadeLayer& layer, const ColumnSearch& search) {
  const int kv_heads = layer.view().layout->kv_heads;
  const int group = search.query_heads / kv_heads;
  const auto tokens = static_cast<std::size_t>(layer.view().tokens);
  std::vector<std::vector<float>> logits;
  std::vector<float> out(static_cast<std::size_t>(group) * tokens);
  for (int head = 0; head < kv_heads; ++head) {
    score_columns(layer.view(), search, head, 0, layer.view().tokens, out.data());
    for (int h = 0; h < group; ++h) {
      const auto row = out.begin() + static_cast<std::ptrdiff_t>(h * tokens);
      logits.emplace_back(row, row + static_cast<std::ptrdiff_t>(tokens));
    }
  }
  return logits;
}

// The plain definition: rank everything, ties towards the smaller position.
template <class T>
std::vector<std::int32_t> rank_all(const std::vector<T>& scores, std::int64_t limit, int k) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(limit));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

inline std::vector<std::int32_t> list_of(const Found& found, int list, int k) {
  const auto begin = found.positions.begin() + static_cast<std::ptrdiff_t>(list) * k;
  return {begin, begin + k};
}

// Sum of the g softmaxes in double.
inline std::vector<double> softmax_scores(const std::vector<std::vector<float>>& logits, int first, int group) {
  std::vector<double> scores(logits[0].size());
  for (int h = first; h < first + group; ++h) {
    const auto& s = logits[static_cast<std::size_t>(h)];
    const double max = *std::max_element(s.begin(), s.end());
    double sum = 0;
    for (const float x : s) sum += std::exp(x - max);
    for (std::size_t t = 0; t < s.size(); ++t) scores[t] += std::exp(s[t] - max) / sum;
  }
  return scores;
}

// Every position chosen scores at least as much as every one left out, up to the relative error of one score.
inline void expect_chosen(const std::vector<std::int32_t>& chosen, const std::vector<double>& scores,
                          std::int64_t limit, double error) {
  ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end(), std::less_equal<>())) << "ascending, each once";
  ASSERT_GE(chosen.front(), 0);
  ASSERT_LT(chosen.back(), limit);
  double worst = std::numeric_limits<double>::infinity();
  std::vector<bool> in(static_cast<std::size_t>(limit));
  for (const std::int32_t p : chosen) {
    worst = std::min(worst, scores[static_cast<std::size_t>(p)]);
    in[static_cast<std::size_t>(p)] = true;
  }
  for (std::int64_t t = 0; t < limit; ++t) {
    if (!in[static_cast<std::size_t>(t)]) {
      ASSERT_LE(scores[static_cast<std::size_t>(t)] * (1 - error), worst * (1 + error)) << "position " << t;
    }
  }
}

// A score sum_h exp(s_h - offset_h): 2e-7 + 2^-23 |x| from exp with |x| <= 87, 2^-24 |offset| from rounding the offset
// to f32 (below 40 here), 2^-24 per addition.
inline double softmax_error(int group) {
  return 2e-7 + 87 * 0x1p-23 + 40 * 0x1p-24 + group * 0x1p-24;
}

}  // namespace hayloft::testing
