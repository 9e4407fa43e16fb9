#include "index/scan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "offload/error.h"
#include "tests/index/scan/column_fixture.h"
#include "tests/support/each_target.h"
#include "tests/support/parameter_name.h"

namespace hayloft::index {
namespace {

using testing::HandmadeLayer;
using testing::normal_keys;

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Shape {
  int kv_heads;
  int group;
  int head_dim;
  int rank;
  int block_tokens;
  std::int64_t tokens;
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "Hkv=" << s.kv_heads << " g=" << s.group << " d=" << s.head_dim << " r=" << s.rank
             << " B=" << s.block_tokens << " S=" << s.tokens << " " << offload::name(s.columns);
}

offload::StoreShape store_shape(const Shape& s) {
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
    for (int i = 0; i < query_heads() * s.rank; ++i) weights.push_back(with_six_bits(unit * normal(engine)));
  }

  static float with_six_bits(float x) {
    int exponent = 0;
    const float fraction = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(fraction * 64), exponent - 6);
  }

  int query_heads() const { return shape.kv_heads * shape.group; }

  ColumnSearch search(std::int64_t limit, int k, GroupRule rule, SelectPer per) const {
    return {query_heads(), shape.rank, components.data(), weights.data(), limit, k, rule, per};
  }

  Shape shape;
  std::vector<std::int32_t> components;
  std::vector<float> weights;
};

struct Found {
  std::vector<std::int32_t> positions;  // [lists][k]
  std::vector<float> max;
  std::vector<float> sum;
  std::vector<float> mass;

  friend bool operator==(const Found&, const Found&) = default;
};

Found find(const HandmadeLayer& layer, const ColumnSearch& search, const offload::Threads& threads,
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

Found find(const HandmadeLayer& layer, const ColumnSearch& search) {
  return find(layer, search, offload::Threads(2));
}

// logits[h][t] of all query heads over all tokens, by score_columns.
std::vector<std::vector<float>> all_logits(const HandmadeLayer& layer, const ColumnSearch& search) {
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

std::vector<std::int32_t> list_of(const Found& found, int list, int k) {
  const auto begin = found.positions.begin() + static_cast<std::ptrdiff_t>(list) * k;
  return {begin, begin + k};
}

// Sum of the g softmaxes in double.
std::vector<double> softmax_scores(const std::vector<std::vector<float>>& logits, int first, int group) {
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
void expect_top(const std::vector<std::int32_t>& chosen, const std::vector<double>& scores, std::int64_t limit,
                double error) {
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
double softmax_error(int group) {
  return 2e-7 + 87 * 0x1p-23 + 40 * 0x1p-24 + group * 0x1p-24;
}

const Shape shapes[] = {
    {1, 1, 8, 1, 16, 16},          {2, 1, 8, 8, 16, 1000},       {1, 2, 16, 5, 32, 2999},
    {2, 4, 64, 16, 64, 4097},      {1, 7, 64, 13, 128, 5000},    {1, 8, 80, 30, 512, 3000},
    {2, 4, 128, 16, 1024, 9000},   {1, 16, 128, 33, 2048, 3333}, {1, 4, 128, 128, 4096, 12345},
    {1, 1, 256, 256, 4096, 12288}, {2, 3, 24, 6, 4096, 70},      {1, 20, 32, 32, 256, 2000},
};

class ColumnSearchShapes : public ::testing::TestWithParam<Shape> {
 protected:
  Shape shape = GetParam();
  HandmadeLayer layer{store_shape(shape), shape.tokens, normal_keys(7)};
  Query query{shape, 11, 2.0f};
};

std::vector<Shape> shapes_in_every_format() {
  std::vector<Shape> all;
  for (const auto format : {offload::ColumnFormat::f16, offload::ColumnFormat::int8, offload::ColumnFormat::int4}) {
    for (Shape shape : shapes) {
      shape.columns = format;
      all.push_back(shape);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ColumnSearchShapes, ::testing::ValuesIn(shapes_in_every_format()), test::by_value);

TEST_P(ColumnSearchShapes, ScoresAreInnerProductsOverTheChosenComponents) {
  const ColumnSearch search = query.search(shape.tokens, 1, GroupRule::softmax, SelectPer::query_head);
  const auto logits = all_logits(layer, search);
  for (int h = 0; h < query.query_heads(); ++h) {
    const int head = h / shape.group;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      double exact = 0;
      double magnitude = 0;
      for (int j = 0; j < shape.rank; ++j) {
        const double product =
            static_cast<double>(query.weights[static_cast<std::size_t>(h * shape.rank + j)]) *
            layer.column_key(head, t, query.components[static_cast<std::size_t>(head * shape.rank + j)]);
        exact += product;
        magnitude += std::abs(product);
      }
      // r roundings, each relative to a partial sum that is at most the sum of magnitudes.
      ASSERT_NEAR(logits[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)], exact,
                  shape.rank * 0x1p-24 * magnitude)
          << "query head " << h << ", position " << t;
    }
  }
}

TEST_P(ColumnSearchShapes, AListPerQueryHeadIsThatOfRankingEveryScore) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  for (const int k : {1, static_cast<int>(std::min<std::int64_t>(37, limit)), static_cast<int>(limit)}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::softmax, SelectPer::query_head);
    const auto logits = all_logits(layer, search);
    const Found found = find(layer, search);
    for (int h = 0; h < query.query_heads(); ++h) {
      EXPECT_EQ(list_of(found, h, k), rank_all(logits[static_cast<std::size_t>(h)], limit, k))
          << "query head " << h << ", k " << k;
    }
  }
}

TEST_P(ColumnSearchShapes, AListPerKvHeadRanksTheSummedLogits) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  for (const int k : {1, static_cast<int>(std::min<std::int64_t>(37, limit)), static_cast<int>(limit)}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::logits, SelectPer::kv_head);
    const auto logits = all_logits(layer, search);
    const Found found = find(layer, search);
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<float> sum = logits[static_cast<std::size_t>(head * shape.group)];
      for (int h = 1; h < shape.group; ++h) {
        for (std::size_t t = 0; t < sum.size(); ++t) {
          sum[t] += logits[static_cast<std::size_t>(head * shape.group + h)][t];
        }
      }
      EXPECT_EQ(list_of(found, head, k), rank_all(sum, limit, k)) << "KV head " << head << ", k " << k;
    }
  }
}

TEST_P(ColumnSearchShapes, AListPerKvHeadRanksTheSummedSoftmaxes) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  for (const int k : {1, static_cast<int>(std::min<std::int64_t>(37, limit)), static_cast<int>(limit)}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::softmax, SelectPer::kv_head);
    const auto logits = all_logits(layer, search);
    const Found found = find(layer, search);
    for (int head = 0; head < shape.kv_heads; ++head) {
      expect_top(list_of(found, head, k), softmax_scores(logits, head * shape.group, shape.group), limit,
                 softmax_error(shape.group));
    }
  }
}

TEST_P(ColumnSearchShapes, ReturnsTheSoftmaxOverOutsideAndStoreAndTheMassOfWhatIsAttended) {
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  const int k = static_cast<int>(std::min<std::int64_t>(37, limit));
  for (const SelectPer per : {SelectPer::kv_head, SelectPer::query_head}) {
    const ColumnSearch search = query.search(limit, k, GroupRule::softmax, per);
    const auto logits = all_logits(layer, search);
    for (const float outside_max : {-infinity, 0.5f, 30.0f}) {
      const float outside_sum = outside_max == -infinity ? 0.0f : 2.5f;
      const Found found = find(layer, search, offload::Threads(2), outside_max, outside_sum);
      for (int h = 0; h < query.query_heads(); ++h) {
        const auto i = static_cast<std::size_t>(h);
        const float max = std::max(outside_max, *std::max_element(logits[i].begin(), logits[i].end()));
        double sum = outside_sum == 0 ? 0 : outside_sum * std::exp(static_cast<double>(outside_max) - max);
        for (const float s : logits[i]) sum += std::exp(static_cast<double>(s) - max);
        double mass = 0;
        for (const std::int32_t p : list_of(found, per == SelectPer::kv_head ? h / shape.group : h, k)) {
          mass += std::exp(static_cast<double>(logits[i][static_cast<std::size_t>(p)]) - max);
        }
        for (auto t = static_cast<std::size_t>(limit); t < logits[i].size(); ++t) {
          mass += std::exp(static_cast<double>(logits[i][t]) - max);
        }
        EXPECT_EQ(found.max[i], max);
        // exp: 2e-7 and, for differences up to 10 where nearly all of the sum lies, 10 * 2^-23; 20 levels of additions.
        const double error = 2e-7 + 10 * 0x1p-23 + 20 * 0x1p-24;
        EXPECT_NEAR(found.sum[i], sum, error * sum);
        // The outside maximum of 30 makes the differences that large.
        EXPECT_NEAR(found.mass[i], mass, (error + 40 * 0x1p-23) * mass + 1e-30);
      }
    }
  }
}

TEST_P(ColumnSearchShapes, DoesNotDependOnTheNumberOfThreads) {
  const int k = static_cast<int>(std::min<std::int64_t>(37, shape.tokens));
  for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
    for (const SelectPer per : {SelectPer::kv_head, SelectPer::query_head}) {
      const ColumnSearch search = query.search(shape.tokens, k, rule, per);
      EXPECT_EQ(find(layer, search, offload::Threads(1)), find(layer, search, offload::Threads(5)));
    }
  }
}

TEST_P(ColumnSearchShapes, EveryInstructionSetFindsTheSame) {
  const int k = static_cast<int>(std::min<std::int64_t>(37, shape.tokens));
  for (const auto& [rule, per] :
       {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
        std::pair{GroupRule::softmax, SelectPer::query_head}}) {
    const ColumnSearch search = query.search(shape.tokens, k, rule, per);
    const Found best = find(layer, search);
    const auto best_logits = all_logits(layer, search);
    for (std::int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
      test::choose_target(targets & -targets);
      const Found found = find(layer, search);
      const auto logits = all_logits(layer, search);
      test::choose_target(0);
      EXPECT_EQ(logits, best_logits) << hwy::TargetName(targets & -targets);
      EXPECT_EQ(found.positions, best.positions) << hwy::TargetName(targets & -targets);
      EXPECT_EQ(found.max, best.max);
    }
  }
}

TEST_P(ColumnSearchShapes, AScoreIsOffTheExactOneByHalfAScalePerComponentAtMost) {
  const ColumnSearch search = query.search(shape.tokens, 1, GroupRule::softmax, SelectPer::query_head);
  const auto logits = all_logits(layer, search);
  for (int h = 0; h < query.query_heads(); ++h) {
    const int head = h / shape.group;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      double exact = 0;
      double quantisation = 0;
      double magnitude = 0;
      for (int j = 0; j < shape.rank; ++j) {
        const int c = query.components[static_cast<std::size_t>(head * shape.rank + j)];
        const double w = query.weights[static_cast<std::size_t>(h * shape.rank + j)];
        exact += w * to_float(layer.view().row(head, t)[c]);
        magnitude += std::abs(w * layer.column_key(head, t, c));
        if (shape.columns != offload::ColumnFormat::f16) {
          quantisation += std::abs(w) * to_float(layer.scale(head, t, c)) / 2;
        }
      }
      // What quantise.h says of a key, and r roundings of the sum.
      ASSERT_NEAR(logits[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)], exact,
                  quantisation + shape.rank * 0x1p-24 * magnitude)
          << "query head " << h << ", position " << t;
    }
  }
}

TEST_P(ColumnSearchShapes, TheRowsGiveWhatF16ColumnsGive) {
  const HandmadeLayer f16_layer(
      {.layers = 1, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim, .block_tokens = shape.block_tokens},
      shape.tokens, normal_keys(7));
  const std::int64_t limit = shape.tokens - shape.tokens / 10;
  const int k = static_cast<int>(std::min<std::int64_t>(37, limit));
  for (const auto& [rule, per] :
       {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
        std::pair{GroupRule::softmax, SelectPer::query_head}}) {
    ColumnSearch search = query.search(limit, k, rule, per);
    const auto want_logits = all_logits(f16_layer, search);
    const Found want = find(f16_layer, search);
    search.keys = KeySource::rows;
    EXPECT_EQ(all_logits(layer, search), want_logits);
    const Found found = find(layer, search);
    EXPECT_EQ(found.max, want.max);
    if (rule == GroupRule::softmax && per == SelectPer::kv_head) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        expect_top(list_of(found, head, k), softmax_scores(want_logits, head * shape.group, shape.group), limit,
                   softmax_error(shape.group));
      }
    } else {
      EXPECT_EQ(found.positions, want.positions);
    }
  }
}

TEST_P(ColumnSearchShapes, ScoresTheSameBitsFromAnyStartOf64Tokens) {
  const ColumnSearch search = query.search(shape.tokens, 1, GroupRule::softmax, SelectPer::query_head);
  const auto logits = all_logits(layer, search);
  const std::int64_t last = (shape.tokens - 1) / 64 * 64;
  for (const std::int64_t begin : {std::int64_t{0}, last / 128 * 64, last}) {
    for (const std::int64_t end : {begin + 1, std::min(begin + 640, shape.tokens), shape.tokens}) {
      const std::int64_t n = end - begin;
      std::vector<float> out(static_cast<std::size_t>(shape.group * n));
      score_columns(layer.view(), search, 0, begin, end, out.data());
      for (int h = 0; h < shape.group; ++h) {
        for (std::int64_t t = 0; t < n; ++t) {
          ASSERT_EQ(out[static_cast<std::size_t>(h * n + t)],
                    logits[static_cast<std::size_t>(h)][static_cast<std::size_t>(begin + t)])
              << begin << " to " << end;
        }
      }
    }
  }
}

TEST(ColumnSearch, ScoringWritesNothingPastTheEnd) {
  const Shape shape{1, 4, 64, 19, 256, 3000};
  const HandmadeLayer layer(store_shape(shape), shape.tokens, normal_keys(1));
  const Query query(shape, 2);
  const ColumnSearch search = query.search(shape.tokens, 1, GroupRule::softmax, SelectPer::query_head);
  for (const auto& [begin, end] : {std::pair{64, 65}, {128, 1100}, {2944, 3000}}) {
    std::vector<float> out(static_cast<std::size_t>(4 * (end - begin) + 1), 42.0f);
    score_columns(layer.view(), search, 0, begin, end, out.data());
    EXPECT_EQ(out.back(), 42.0f);
  }
}

TEST(ColumnSearch, EqualKeysGiveTheSmallestPositions) {
  const Shape shape{1, 4, 16, 8, 1024, 9000};
  const HandmadeLayer layer(store_shape(shape), shape.tokens, [](int, std::int64_t, int c) { return c * 0.25f; });
  const Query query(shape, 3);
  std::vector<std::int32_t> smallest(300);
  std::iota(smallest.begin(), smallest.end(), 0);
  for (const auto& [rule, per] :
       {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
        std::pair{GroupRule::softmax, SelectPer::query_head}}) {
    EXPECT_EQ(list_of(find(layer, query.search(8000, 300, rule, per)), 0, 300), smallest);
  }
}

TEST(ColumnSearch, TiesAtTheEdgeOfTheListGoToTheSmallerPositions) {
  // Five levels of scores, so that the k-th best is one of thousands of equals.
  const Shape shape{1, 2, 8, 1, 512, 20000};
  const HandmadeLayer layer(store_shape(shape), shape.tokens,
                            [](int, std::int64_t t, int) { return static_cast<float>(t * 7919 % 5); });
  Query query(shape, 3);
  std::fill(query.weights.begin(), query.weights.end(), 0.5f);
  for (const int k : {1, 100, 3999, 4000, 4001, 9000}) {
    for (const auto& [rule, per] :
         {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
          std::pair{GroupRule::softmax, SelectPer::query_head}}) {
      const ColumnSearch search = query.search(19990, k, rule, per);
      EXPECT_EQ(list_of(find(layer, search), 0, k), rank_all(all_logits(layer, search)[0], 19990, k)) << "k " << k;
    }
  }
}

TEST(ColumnSearch, FindsWhatNoSampleOfTheLayerFellUpon) {
  // One query head's softmax is all but one position, far from the tiles that the guess is made from; the others are
  // flat. The guess is then off by orders of magnitude for one head, and the list must not be.
  const Shape shape{1, 4, 8, 4, 1024, 100000};
  const auto noise = normal_keys(5);
  const HandmadeLayer layer(store_shape(shape), shape.tokens, [&](int head, std::int64_t t, int c) {
    return t == 77777 && c == 0 ? 60.0f : noise(head, t, c);
  });
  Query query(shape, 6);
  query.components = {0, 1, 2, 3};
  for (int h = 0; h < 4; ++h) {
    for (int j = 0; j < 4; ++j) query.weights[static_cast<std::size_t>(h * 4 + j)] = h == j ? 1.0f : 0.0f;
  }
  const ColumnSearch search = query.search(shape.tokens, 50, GroupRule::softmax, SelectPer::kv_head);
  const auto chosen = list_of(find(layer, search), 0, 50);
  EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), 77777));
  expect_top(chosen, softmax_scores(all_logits(layer, search), 0, 4), shape.tokens, softmax_error(4));
}

TEST(ColumnSearch, RanksTheStoreEvenWhenAllTheSoftmaxLiesOutsideIt) {
  const Shape shape{1, 4, 32, 16, 256, 5000};
  const HandmadeLayer layer(store_shape(shape), shape.tokens, normal_keys(8));
  const Query query(shape, 9);
  const ColumnSearch search = query.search(4500, 40, GroupRule::softmax, SelectPer::kv_head);
  const auto logits = all_logits(layer, search);
  std::vector<double> scores(static_cast<std::size_t>(shape.tokens));  // every head's normaliser is e^10000
  for (const auto& s : logits) {
    for (std::size_t t = 0; t < scores.size(); ++t) scores[t] += std::exp(static_cast<double>(s[t]));
  }
  const Found found = find(layer, search, offload::Threads(2), 1e4f, 1.0f);
  expect_top(list_of(found, 0, 40), scores, 4500, softmax_error(4));
  EXPECT_EQ(found.max, std::vector<float>(4, 1e4f));
  EXPECT_EQ(found.sum, std::vector<float>(4, 1.0f));
}

TEST(ColumnSearch, AnEmptyStoreLeavesTheStateAsItWas) {
  const Shape shape{2, 2, 16, 4, 64, 0};
  const HandmadeLayer layer(store_shape(shape), 0, normal_keys(1));
  const Query query(shape, 1);
  const Found found =
      find(layer, query.search(0, 0, GroupRule::softmax, SelectPer::kv_head), offload::Threads(2), 1.5f, 3.0f);
  EXPECT_EQ(found.max, std::vector<float>(4, 1.5f));
  EXPECT_EQ(found.sum, std::vector<float>(4, 3.0f));
  EXPECT_EQ(found.mass, std::vector<float>(4, 0.0f));
}

TEST(ColumnSearch, SelectingNothingStillWeighsWhatIsAttendedAnyway) {
  const Shape shape{1, 2, 16, 4, 64, 500};
  const HandmadeLayer layer(store_shape(shape), shape.tokens, normal_keys(1));
  const Query query(shape, 1);
  const Found found = find(layer, query.search(0, 0, GroupRule::softmax, SelectPer::kv_head));
  for (std::size_t h = 0; h < 2; ++h) {
    // Everything is attended; the same 20 levels of additions and exp errors twice.
    EXPECT_NEAR(found.mass[h], found.sum[h], 2 * (2e-7 + 10 * 0x1p-23 + 20 * 0x1p-24) * found.sum[h]);
  }
}

TEST(ColumnSearch, PositionsNeedNoSoftmaxState) {
  const Shape shape{2, 4, 32, 16, 256, 5000};
  const HandmadeLayer layer(store_shape(shape), shape.tokens, normal_keys(8));
  const Query query(shape, 9);
  for (const auto& [rule, per] :
       {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
        std::pair{GroupRule::softmax, SelectPer::query_head}}) {
    const ColumnSearch search = query.search(4500, 40, rule, per);
    const Found found = find(layer, search);
    std::vector<std::int32_t> positions(found.positions.size());
    search_columns(layer.view(), search, offload::Threads(2), {positions.data(), nullptr, nullptr, nullptr});
    EXPECT_EQ(positions, found.positions);
  }
}

TEST(ColumnSearch, NonFiniteKeysGiveValidPositionsAndShowInTheSum) {
  const Shape shape{1, 4, 16, 8, 256, 5000};
  const Query query(shape, 9);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (const bool everywhere : {false, true}) {
      const auto noise = normal_keys(8);
      const HandmadeLayer layer(store_shape(shape), shape.tokens, [&](int head, std::int64_t t, int c) {
        return everywhere || (t % 700 == 3 && c == query.components[0]) ? bad : noise(head, t, c);
      });
      for (const auto& [rule, per] :
           {std::pair{GroupRule::softmax, SelectPer::kv_head}, std::pair{GroupRule::logits, SelectPer::kv_head},
            std::pair{GroupRule::softmax, SelectPer::query_head}}) {
        for (const int k : {40, 4500}) {
          const Found found = find(layer, query.search(4500, k, rule, per));
          for (int list = 0; list < (per == SelectPer::kv_head ? 1 : 4); ++list) {
            const auto chosen = list_of(found, list, k);
            EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end(), std::less_equal<>()));
            EXPECT_GE(chosen.front(), 0);
            EXPECT_LT(chosen.back(), 4500);
          }
          if (std::isnan(bad)) {
            for (const float sum : found.sum) EXPECT_TRUE(std::isnan(sum));
          }
        }
      }
    }
  }
}

TEST(ColumnSearch, RefusesWhatIsOutOfRange) {
  const Shape shape{2, 2, 16, 4, 64, 100};
  const HandmadeLayer layer(store_shape(shape), shape.tokens, normal_keys(1));
  const Query query(shape, 1);
  const ColumnSearch good = query.search(100, 10, GroupRule::softmax, SelectPer::kv_head);
  const auto refused = [&](auto change) {
    ColumnSearch search = good;
    change(search);
    EXPECT_THROW(find(layer, search), Error);
  };
  refused([](ColumnSearch& s) { s.query_heads = 3; });
  refused([](ColumnSearch& s) { s.rank = 0; });
  refused([](ColumnSearch& s) { s.rank = 17; });
  refused([](ColumnSearch& s) { s.limit = 101; });
  refused([](ColumnSearch& s) { s.k = 101; });
  EXPECT_NO_THROW(find(layer, good));
}

}  // namespace
}  // namespace hayloft::index
