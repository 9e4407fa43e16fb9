#include <gtest/gtest.h>

#include "gpu/make_backend.h"
#include "index/scan/exact_search.h"
#include "offload/error.h"
#include "offload/host/threads.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/sparq_scores.h"

namespace hayloft {
namespace {

using index::GroupRule;
using testing::CacheShape;
using testing::eps;
using testing::normal;
using testing::RandomCache;

class CpuSelect : public ::testing::Test {
 protected:
  // One whole SparQ step, as appendix B has it: k counts the window of w in; mean_value as section 4.
  void expect_sparq(const CacheShape& shape, int group, int rank, int k, std::int64_t w, bool mean_value,
                    GroupRule rule, index::Temperature temperature = index::Temperature::coverage, int bits = 0) {
    RandomCache cache(shape);
    const int d = shape.head_dim;
    const int query_heads = shape.kv_heads * group;
    const std::int64_t S = cache.tokens();
    const auto q = normal(static_cast<std::size_t>(query_heads * d), shape.seed + 1000);

    gpu::SparqSelect select;
    select.rank = rank;
    select.bits = bits;
    select.limit = std::min(shape.stored, S - w);
    select.k = static_cast<int>(std::min<std::int64_t>(k - w, select.limit));
    select.rule = rule;
    select.temperature = temperature;
    std::vector<std::int32_t> positions(static_cast<std::size_t>(shape.kv_heads * select.k));
    std::vector<float> alpha(static_cast<std::size_t>(query_heads), -1.0f);
    backend->select_sparq(cache.view(), q.data(), query_heads, select, positions.data(), alpha.data(), {});

    gpu::Attended what;
    what.positions = positions.data();
    what.lists = shape.kv_heads;
    what.k = select.k;
    what.ranges[0] = {select.limit, S};
    if (mean_value) what.alpha = alpha.data();
    std::vector<float> y(q.size());
    backend->attend(cache.view(), q.data(), query_heads, what, y.data(), {});

    for (int head = 0; head < shape.kv_heads; ++head) {
      const float* group_q = q.data() + head * group * d;
      const testing::SparqScores oracle(cache, head, group_q, group, rank, rule, temperature, bits);
      const std::int32_t* list = positions.data() + head * select.k;
      testing::expect_top(oracle.score, oracle.score_error, select.limit, list, select.k);
      auto attended = testing::range(select.limit, S);
      attended.insert(attended.end(), list, list + select.k);
      for (int h = 0; h < group; ++h) {
        double expected_alpha = 0;
        for (const auto t : attended) {
          expected_alpha += oracle.share[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)];
        }
        ASSERT_NEAR(alpha[static_cast<std::size_t>(head * group + h)], expected_alpha,
                    oracle.share_error * expected_alpha + eps);
        const auto exact = testing::attention(cache, head, group_q + h * d, attended);
        for (int i = 0; i < d; ++i) {
          double mean = 0;
          for (std::int64_t t = 0; t < S; ++t) mean += cache.value(head, t, i);
          mean /= static_cast<double>(S);
          const double y3 = exact.y[static_cast<std::size_t>(i)];
          const double expected = mean_value ? expected_alpha * y3 + (1 - expected_alpha) * mean : y3;
          const double alpha_error = mean_value ? oracle.share_error * std::fabs(y3 - mean) + 40 * eps : 0;
          ASSERT_NEAR(y[static_cast<std::size_t>((head * group + h) * d + i)], expected, exact.tolerance + alpha_error);
        }
      }
    }
  }

  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
};

TEST_F(CpuSelect, SparqEqualsAppendixBForEveryGroupWithAndWithoutWindowAndMeanValue) {
  for (const int group : {1, 4, 8}) {
    for (const std::int64_t w : {0, 16}) {
      for (const bool mean_value : {false, true}) {
        for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
          expect_sparq({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 1000, .seed = 5}, group, 16, 64, w,
                       mean_value, rule);
        }
      }
    }
  }
}

TEST_F(CpuSelect, PlanesSelectAsSparqDoesByTheScoresOfTheirCodes) {
  using enum offload::ColumnFormat;
  for (const int group : {1, 3, 8}) {
    for (const int bits : {1, 16, 32, 100}) {
      for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
        expect_sparq({.kv_heads = 2,
                      .head_dim = 64,
                      .block_tokens = 512,
                      .stored = 1536,
                      .tail = 40,
                      .seed = 11,
                      .columns = planes},
                     group, 0, 64, 16, true, rule, index::Temperature::coverage, bits);
      }
    }
  }
  expect_sparq({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 512, .seed = 5, .columns = planes}, 4, 16,
               64, 16, true, GroupRule::softmax);
}

TEST_F(CpuSelect, PlanesOfOtherColumnsAreRefused) {
  RandomCache cache({.kv_heads = 1, .head_dim = 8, .stored = 64});
  std::vector<std::int32_t> positions(4);
  float alpha = 0;
  const std::vector<float> q(8, 1.0f);
  gpu::SparqSelect select;
  select.rank = 4;
  select.bits = 8;
  select.k = 4;
  select.limit = 64;
  EXPECT_THROW(backend->select_sparq(cache.view(), q.data(), 1, select, positions.data(), &alpha, {}), Error);
  select.bits = 0;
  select.order = index::ComponentOrder::qk;
  EXPECT_THROW(backend->select_sparq(cache.view(), q.data(), 1, select, positions.data(), &alpha, {}), Error);
}

TEST_F(CpuSelect, SparqDividesByTheTemperatureAskedFor) {
  for (const auto temperature : {index::Temperature::head_dim, index::Temperature::rank}) {
    for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
      expect_sparq({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 512, .tail = 40, .seed = 9}, 4, 12, 64,
                   16, true, rule, temperature);
    }
  }
}

TEST_F(CpuSelect, SparqCountsTheTailInTheSoftmaxAndInWhatIsAttended) {
  for (const std::int64_t tail : {1, 40, 1300}) {
    for (const std::int64_t w : {1, 32, 200}) {
      expect_sparq({.kv_heads = 2, .head_dim = 32, .block_tokens = 128, .stored = 1024, .tail = tail, .seed = 6}, 4, 8,
                   250, std::min(w, 1024 + tail), true, GroupRule::softmax);
    }
  }
}

TEST_F(CpuSelect, SparqHoldsForEveryHeadDimensionAndRank) {
  for (const int d : {8, 16, 80, 96, 128, 256, 512}) {
    for (const int rank : {1, 8, d}) {
      expect_sparq({.head_dim = d, .block_tokens = 64, .stored = 320, .tail = 20, .seed = 7}, 3, rank, 48, 12, true,
                   GroupRule::softmax);
    }
  }
}

TEST_F(CpuSelect, SparqSearchesIntegerColumnsAndAttendsTo16BitRows) {
  for (const auto columns : {offload::ColumnFormat::int8, offload::ColumnFormat::int4}) {
    for (const auto& [block, stored] : {std::pair{16, 333}, {64, 1000}, {512, 1024}}) {
      for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
        expect_sparq({.kv_heads = 2,
                      .head_dim = 64,
                      .block_tokens = block,
                      .stored = stored,
                      .tail = 70,
                      .seed = 5,
                      .columns = columns},
                     4, 16, 64, 32, true, rule);
      }
    }
  }
}

TEST_F(CpuSelect, SparqWithEveryComponentAndEveryPositionIsDense) {
  RandomCache cache({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 512, .tail = 30});
  const auto q = normal(8 * 64, 8);
  gpu::SparqSelect select;
  select.rank = 64;
  select.k = 512;
  select.limit = 512;
  std::vector<std::int32_t> positions(2 * 512);
  std::vector<float> alpha(8);
  backend->select_sparq(cache.view(), q.data(), 8, select, positions.data(), alpha.data(), {});
  for (std::int32_t i = 0; i < 1024; ++i) ASSERT_EQ(positions[static_cast<std::size_t>(i)], i % 512);
  gpu::Attended what;
  what.positions = positions.data();
  what.lists = 2;
  what.k = 512;
  what.ranges[0] = {512, 542};
  what.alpha = alpha.data();
  std::vector<float> y(q.size());
  backend->attend(cache.view(), q.data(), 8, what, y.data(), {});
  for (int h = 0; h < 8; ++h) {
    // All mass is attended: two sums of the same 542 numbers in different orders.
    EXPECT_NEAR(alpha[static_cast<std::size_t>(h)], 1, 542 * eps);
    const auto dense = testing::attention(cache, h / 4, q.data() + h * 64, testing::range(0, 542));
    for (int i = 0; i < 64; ++i) {
      EXPECT_NEAR(y[static_cast<std::size_t>(h * 64 + i)], dense.y[static_cast<std::size_t>(i)],
                  dense.tolerance + 542 * eps * 5);
    }
  }
}

TEST_F(CpuSelect, AnEmptyStoreLeavesTheTailWithAllTheMass) {
  RandomCache cache({.head_dim = 64, .tail = 100});
  std::vector<float> alpha(4, 0.0f);
  gpu::SparqSelect select;
  select.rank = 16;
  backend->select_sparq(cache.view(), normal(4 * 64, 9).data(), 4, select, nullptr, alpha.data(), {});
  for (const float a : alpha) EXPECT_EQ(a, 1.0f);
}

TEST_F(CpuSelect, AQueryOfZerosSelectsWithoutNan) {
  RandomCache cache({.head_dim = 64, .block_tokens = 64, .stored = 256, .tail = 44});
  const std::vector<float> q(2 * 64, 0.0f);
  gpu::SparqSelect select;
  select.rank = 8;
  select.k = 30;
  select.limit = 256;
  std::vector<std::int32_t> positions(30, -1);
  std::vector<float> alpha(2);
  backend->select_sparq(cache.view(), q.data(), 2, select, positions.data(), alpha.data(), {});
  for (std::int32_t i = 0; i < 30; ++i) EXPECT_EQ(positions[static_cast<std::size_t>(i)], i);  // ties: the smallest
  for (const float a : alpha) EXPECT_NEAR(a, 74.0 / 300, 300 * eps);  // every position has the same share
}

TEST_F(CpuSelect, TopkWithEveryPositionIsDense) {
  RandomCache cache({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 300, .tail = 25});
  const auto q = normal(4 * 64, 14);
  index::ExactSearch args;
  args.query_heads = 4;
  args.k = 300;
  args.limit = 300;
  std::vector<std::int32_t> lists(4 * 300);
  index::search_exact(cache.view().store, q.data(), args, threads, {lists.data(), nullptr, nullptr, nullptr});
  gpu::Attended what;
  what.positions = lists.data();
  what.lists = 4;
  what.k = 300;
  what.ranges[0] = {300, 325};
  std::vector<float> y(q.size());
  backend->attend(cache.view(), q.data(), 4, what, y.data(), {});
  for (int h = 0; h < 4; ++h) {
    const auto dense = testing::attention(cache, h / 2, q.data() + h * 64, testing::range(0, 325));
    for (int i = 0; i < 64; ++i) {
      ASSERT_NEAR(y[static_cast<std::size_t>(h * 64 + i)], dense.y[static_cast<std::size_t>(i)], dense.tolerance);
    }
  }
}

TEST_F(CpuSelect, SelectionIsTheSameOnOneThreadAndOnMany) {
  RandomCache cache({.kv_heads = 2, .head_dim = 64, .block_tokens = 512, .stored = 8192, .tail = 700});
  const auto q = normal(8 * 64, 15);
  gpu::SparqSelect sparq;
  sparq.rank = 16;
  sparq.k = 128;
  sparq.limit = 8192;
  std::vector<std::vector<std::int32_t>> lists;
  std::vector<std::vector<float>> masses;
  for (const int count : {1, 2, 7}) {
    const offload::Threads some(count);
    const auto cpu = gpu::make_cpu_backend(some);
    lists.emplace_back(2 * 128);
    masses.emplace_back(8);
    cpu->select_sparq(cache.view(), q.data(), 8, sparq, lists.back().data(), masses.back().data(), {});
  }
  for (std::size_t i = 1; i < lists.size(); ++i) {
    EXPECT_EQ(lists[i], lists[0]);
    EXPECT_EQ(masses[i], masses[0]);
  }
}

}  // namespace
}  // namespace hayloft
