#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "tests/index/scan/search_fixture.h"

// Searches at the edges: ties, empty stores, numbers that are not finite, arguments out of range.
namespace hayloft::index {
namespace {

using namespace hayloft::testing;

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
  expect_chosen(chosen, softmax_scores(all_logits(layer, search), 0, 4), shape.tokens, softmax_error(4));
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
  expect_chosen(list_of(found, 0, 40), scores, 4500, softmax_error(4));
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
