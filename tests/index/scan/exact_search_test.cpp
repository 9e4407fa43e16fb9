#include "index/scan/exact_search.h"

#include <gtest/gtest.h>

#include "offload/error.h"
#include "tests/support/sparq_scores.h"

namespace hayloft::index {
namespace {

using testing::CacheShape;
using testing::dot;
using testing::expect_top;
using testing::normal;
using testing::RandomCache;
using testing::SparqScores;

constexpr double eps = std::numeric_limits<float>::epsilon();

// Positions i32 [lists][k]. The softmax over the tail, where the search asks for it, comes from sums in double.
std::vector<std::int32_t> select(RandomCache& cache, const std::vector<float>& q, const ExactSearch& search) {
  const int d = cache.shape().head_dim;
  const int group = search.query_heads / cache.shape().kv_heads;
  std::vector<float> max, sum;
  for (int h = 0; h < search.query_heads && needs_tail_softmax(search); ++h) {
    std::vector<double> logits;
    for (std::int64_t t = cache.shape().stored; t < cache.tokens(); ++t) {
      logits.push_back(dot(cache, h / group, t, q.data() + h * d) * exact_scale(d));
    }
    const double largest = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const double logit : logits) total += std::exp(logit - largest);
    max.push_back(static_cast<float>(largest));
    sum.push_back(static_cast<float>(total));
  }
  const int lists = search.per == SelectPer::query_head ? search.query_heads : cache.shape().kv_heads;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(lists * search.k), -1);
  const offload::Threads threads(2);
  search_exact(cache.view().store, q.data(), search, threads,
               {positions.data(), max.empty() ? nullptr : max.data(), sum.empty() ? nullptr : sum.data(), nullptr});
  return positions;
}
TEST(ExactSearch, TakesTheLargestInnerProductsOfEachQueryHead) {
  for (const int d : {8, 64, 80, 256, 512}) {
    RandomCache cache({.kv_heads = 2, .head_dim = d, .block_tokens = 64, .stored = 700});
    const auto q = normal(static_cast<std::size_t>(6 * d), 10);
    ExactSearch args;
    args.query_heads = 6;
    args.k = 37;
    args.limit = 650;
    const auto lists = select(cache, q, args);
    for (int h = 0; h < 6; ++h) {
      std::vector<double> score;
      double error = 0;
      for (std::int64_t t = 0; t < 700; ++t) {
        score.push_back(dot(cache, h / 3, t, q.data() + h * d));
        double magnitude = 0;
        for (int i = 0; i < d; ++i)
          magnitude += std::fabs(q[static_cast<std::size_t>(h * d + i)] * cache.key(h / 3, t, i));
        error = std::max(error, (d + 4) * eps / 2 * magnitude);
      }
      expect_top(score, error, 650, lists.data() + h * args.k, args.k);
    }
  }
}

TEST(ExactSearch, PerKvHeadSumsTheSoftmaxesOverStoreAndTail) {
  // With every component SparQ's approximate scores are the exact ones, so its oracle serves here too. One query head
  // attends to the tail nearly alone: its say in the store must shrink, which only the tail's mass can tell.
  RandomCache cache({.kv_heads = 2, .head_dim = 16, .block_tokens = 64, .stored = 640, .tail = 60});
  auto q = normal(8 * 16, 11);
  for (int i = 0; i < 16; ++i) q[static_cast<std::size_t>(i)] = 2 * static_cast<float>(cache.key(0, 690, i));
  for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
    ExactSearch args;
    args.query_heads = 8;
    args.k = 50;
    args.limit = 640;
    args.per = SelectPer::kv_head;
    args.rule = rule;
    const auto lists = select(cache, q, args);
    for (int head = 0; head < 2; ++head) {
      const SparqScores oracle(cache, head, q.data() + head * 4 * 16, 4, 16, rule);
      expect_top(oracle.score, oracle.score_error, 640, lists.data() + head * args.k, args.k);
    }
  }
}

TEST(ExactSearch, IsThatOfF16ColumnsWhateverTheFormat) {
  for (const int d : {64, 80}) {
    const CacheShape shape{.kv_heads = 2, .head_dim = d, .block_tokens = 256, .stored = 3000, .tail = 17};
    RandomCache exact(shape);
    const auto q = normal(static_cast<std::size_t>(8 * d), 12);
    for (const auto columns : offload::all_column_formats()) {
      if (traits_of(columns).exact) continue;
      CacheShape other = shape;
      other.columns = columns;
      RandomCache cache(other);
      for (const SelectPer per : {SelectPer::query_head, SelectPer::kv_head}) {
        ExactSearch args;
        args.query_heads = 8;
        args.k = 100;
        args.limit = 2900;
        args.per = per;
        args.rule = GroupRule::logits;
        EXPECT_EQ(select(cache, q, args), select(exact, q, args));
      }
    }
  }
}

TEST(ExactSearch, OfTokensTogetherIsThatOfEachAlone) {
  const offload::Threads threads(2);
  for (const int group : {1, 3, 40}) {
    for (const auto columns : {offload::ColumnFormat::f16, offload::ColumnFormat::int8}) {
      constexpr int kv_heads = 2, d = 24, tokens = 37;
      const int query_heads = kv_heads * group;
      RandomCache cache({.kv_heads = kv_heads, .head_dim = d, .stored = 900, .tail = 20, .columns = columns});
      const auto q = normal(static_cast<std::size_t>(tokens * query_heads * d), 13);
      std::vector<ListSize> sizes;
      std::vector<std::int32_t> expected;
      for (int t = 0; t < tokens; ++t) {
        sizes.push_back({std::min(900, 870 + t), t == 5 ? 0 : 10 + t % 7});
        ExactSearch alone;
        alone.query_heads = query_heads;
        alone.limit = sizes.back().limit;
        alone.k = sizes.back().k;
        const auto first = q.begin() + static_cast<std::ptrdiff_t>(t) * query_heads * d;
        const auto lists = select(cache, {first, first + query_heads * d}, alone);
        expected.insert(expected.end(), lists.begin(), lists.end());
      }
      std::vector<std::int32_t> together(expected.size() + 1, -1);
      search_exact_tokens(cache.view().store, q.data(), query_heads, sizes, threads, together.data());
      EXPECT_EQ(together.back(), -1);
      together.pop_back();
      EXPECT_EQ(together, expected) << group << " query heads, " << offload::name(columns);
    }
  }
}

TEST(ExactSearch, FaissAndOurOwnKernelSelectTheSameSets) {
  for (const auto& [d, columns] : {std::pair{64, offload::ColumnFormat::f16},
                                   {128, offload::ColumnFormat::f16},
                                   {64, offload::ColumnFormat::int8},
                                   {64, offload::ColumnFormat::int4}}) {
    RandomCache cache(
        {.kv_heads = 2, .head_dim = d, .block_tokens = 256, .stored = 3000, .tail = 17, .columns = columns});
    const auto q = normal(static_cast<std::size_t>(8 * d), 12);
    ExactSearch args;
    args.query_heads = 8;
    args.k = 100;
    args.limit = 2900;
    const auto own = select(cache, q, args);
    args.faiss = true;
    EXPECT_EQ(select(cache, q, args), own);
  }
}

TEST(ExactSearch, FaissPerKvHeadIsRefusedWithTheOptionThatHelps) {
  RandomCache cache({.head_dim = 64, .stored = 64});
  ExactSearch args;
  args.query_heads = 1;
  args.k = 1;
  args.limit = 64;
  args.faiss = true;
  args.per = SelectPer::kv_head;
  EXPECT_THROW(select(cache, normal(64, 13), args), Error);
}

TEST(ExactSearch, WithoutQueryHeadsIsRefused) {
  RandomCache cache({.head_dim = 64, .stored = 64});
  const offload::Threads threads(1);
  const std::vector<float> q = normal(64, 13);
  std::vector<std::int32_t> positions(1);
  ExactSearch args;
  args.limit = args.k = 1;
  for (const bool faiss : {false, true}) {
    args.faiss = faiss;
    for (args.query_heads = -1; args.query_heads < 1; ++args.query_heads) {
      EXPECT_THROW(
          search_exact(cache.view().store, q.data(), args, threads, {positions.data(), nullptr, nullptr, nullptr}),
          Error)
          << args.query_heads;
    }
  }
  const auto of_tokens = [&](int query_heads, ListSize size) {
    search_exact_tokens(cache.view().store, q.data(), query_heads, {&size, 1}, threads, positions.data());
  };
  EXPECT_THROW(of_tokens(0, {1, 1}), Error);
  EXPECT_THROW(of_tokens(1, {-1, 0}), Error);
  EXPECT_THROW(of_tokens(1, {5, -1}), Error);
  EXPECT_THROW(of_tokens(1, {65, 1}), Error);
}

TEST(ExactSearch, SelectsNothingFromNothing) {
  RandomCache cache({.head_dim = 64, .tail = 10});
  ExactSearch args;
  args.query_heads = 4;
  EXPECT_TRUE(select(cache, normal(4 * 64, 16), args).empty());
}

}  // namespace
}  // namespace hayloft::index
