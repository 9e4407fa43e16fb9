#include <gtest/gtest.h>

#include <set>

#include "gpu/cpu/select.h"
#include "gpu/make_backend.h"
#include "offload/error.h"
#include "offload/host/threads.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/sparq_oracle.h"

namespace hayloft {
namespace {

using index::GroupRule;
using index::SelectPer;
using testing::CacheShape;
using testing::dot;
using testing::normal;
using testing::RandomCache;

constexpr double eps = std::numeric_limits<float>::epsilon();

// SparQ Attention, appendix B (arXiv 2312.04985), in double, for one KV head and its group. Scores of all positions, in
// the store by the keys its columns hold; choosing and attending follow from them.
struct SparqOracle {
  std::vector<int> components;             // i1
  std::vector<std::vector<double>> share;  // s-hat: the approximate softmax over all positions, [g][S]
  std::vector<double> score;               // what the positions are ranked by, [S]
  double score_error = 0;                  // of an f32 evaluation of `score`

  SparqOracle(const RandomCache& cache, int head, const float* q, int group, int rank, GroupRule rule,
              gpu::Temperature temperature = gpu::Temperature::coverage) {
    const int d = cache.shape().head_dim;
    const std::int64_t S = cache.tokens();
    components = testing::sparq_oracle_components(q, group, d, rank);

    score.assign(static_cast<std::size_t>(S), 0.0);
    double relative_error = 0;
    for (int h = 0; h < group; ++h) {
      const double tau = testing::sparq_oracle_temperature(q + h * d, d, components, temperature);
      std::vector<double> s(static_cast<std::size_t>(S));
      double error = 0;
      for (std::int64_t t = 0; t < S; ++t) {
        double sum = 0;
        double size = 0;
        for (const int i : components) {
          const double key = cache.searched_key(head, t, i);
          sum += q[h * d + i] * key;
          size += std::fabs(q[h * d + i] * key);
        }
        s[static_cast<std::size_t>(t)] = sum / tau;
        error = std::max(error, (rank + 4) * eps / 2 * size / tau);
      }
      const double largest = *std::max_element(s.begin(), s.end());
      const double smallest = *std::min_element(s.begin(), s.end());
      std::vector<double> p(s.size());
      double sum = 0;
      for (std::size_t t = 0; t < s.size(); ++t) sum += p[t] = std::exp(s[t] - largest);
      for (double& x : p) x /= sum;
      for (std::size_t t = 0; t < s.size(); ++t) score[t] += rule == GroupRule::softmax ? p[t] : s[t];
      share.push_back(p);
      // A logit's error is a share's relative error, twice because the normaliser has it too.
      relative_error = std::max(relative_error, 2 * error + 1e-6 + eps * (largest - smallest));
      if (rule == GroupRule::logits) score_error += error;
    }
    if (rule == GroupRule::softmax) {
      score_error = relative_error * *std::max_element(score.begin(), score.end());
    }
    share_error = relative_error;
  }

  double share_error = 0;  // relative, of an f32 evaluation of a sum of shares
};

// The list is k ascending positions of [0, limit), and nothing outside it beats anything inside it by more than f32
// can tell.
void expect_top(const std::vector<double>& score, double error, std::int64_t limit, const std::int32_t* list, int k) {
  double worst_inside = std::numeric_limits<double>::infinity();
  for (int i = 0; i < k; ++i) {
    ASSERT_TRUE(list[i] >= 0 && list[i] < limit);
    if (i > 0) {
      ASSERT_LT(list[i - 1], list[i]);
    }
    worst_inside = std::min(worst_inside, score[static_cast<std::size_t>(list[i])]);
  }
  const std::set<std::int32_t> chosen(list, list + k);
  for (std::int64_t t = 0; t < limit; ++t) {
    if (!chosen.contains(static_cast<std::int32_t>(t))) {
      ASSERT_LE(score[static_cast<std::size_t>(t)], worst_inside + 2 * error) << "position " << t;
    }
  }
}

class CpuSelect : public ::testing::Test {
 protected:
  // One whole SparQ step, as appendix B has it: k counts the window of w in; mean_value as section 4.
  void expect_sparq(const CacheShape& shape, int group, int rank, int k, std::int64_t w, bool mean_value,
                    GroupRule rule, gpu::Temperature temperature = gpu::Temperature::coverage) {
    RandomCache cache(shape);
    const int d = shape.head_dim;
    const int query_heads = shape.kv_heads * group;
    const std::int64_t S = cache.tokens();
    const auto q = normal(static_cast<std::size_t>(query_heads * d), shape.seed + 1000);

    gpu::SparqSelect select;
    select.rank = rank;
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
      const SparqOracle oracle(cache, head, group_q, group, rank, rule, temperature);
      const std::int32_t* list = positions.data() + head * select.k;
      expect_top(oracle.score, oracle.score_error, select.limit, list, select.k);
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

  std::vector<std::int32_t> select_exact(RandomCache& cache, const std::vector<float>& q, int query_heads,
                                         const gpu::ExactSelect& args) {
    const int lists = args.per == SelectPer::query_head ? query_heads : cache.shape().kv_heads;
    std::vector<std::int32_t> positions(static_cast<std::size_t>(lists * args.k), -1);
    backend->select_exact(cache.view(), q.data(), query_heads, args, positions.data(), {});
    return positions;
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

TEST_F(CpuSelect, SparqDividesByTheTemperatureAskedFor) {
  for (const auto temperature : {gpu::Temperature::head_dim, gpu::Temperature::rank}) {
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
  for (const int d : {8, 16, 80, 96, 128, 256}) {
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

TEST(SparqComponents, AreTheLargestOverTheGroupTiesToTheSmallerAscending) {
  const std::vector<float> q{1, -5, 2, 0, 4, 0, 3, 1,  //
                             1, 0,  2, 3, 0, 4, 1, -1};
  std::vector<std::int32_t> components(4);
  gpu::sparq_components(q.data(), 2, 8, 4, components.data());
  EXPECT_EQ(components, (std::vector<std::int32_t>{1, 2, 4, 5}));  // 5, 4, 4, 4; component 6 with 4 comes too late
}

TEST(SparqTemperature, IsTheShareOfTheMagnitudeThatWasChosenOrTheDimensionOrTheRank) {
  const std::vector<float> q{3, -1, 0, 2, 0, 0, 0, 2};
  const std::vector<std::int32_t> chosen{0, 3};
  EXPECT_FLOAT_EQ(gpu::sparq_temperature(q.data(), 8, chosen.data(), 2), std::sqrt(8 * 5.0f / 8));
  const std::vector<std::int32_t> nothing{2, 4};
  EXPECT_EQ(gpu::sparq_temperature(q.data(), 8, nothing.data(), 2), 1.0f);
  EXPECT_FLOAT_EQ(gpu::sparq_temperature(q.data(), 8, chosen.data(), 2, gpu::Temperature::head_dim), std::sqrt(8.0f));
  EXPECT_FLOAT_EQ(gpu::sparq_temperature(q.data(), 8, chosen.data(), 2, gpu::Temperature::rank), std::sqrt(2.0f));
}

TEST_F(CpuSelect, ExactSelectionTakesTheLargestInnerProductsOfEachQueryHead) {
  for (const int d : {8, 64, 80, 256}) {
    RandomCache cache({.kv_heads = 2, .head_dim = d, .block_tokens = 64, .stored = 700});
    const auto q = normal(static_cast<std::size_t>(6 * d), 10);
    gpu::ExactSelect args;
    args.k = 37;
    args.limit = 650;
    const auto lists = select_exact(cache, q, 6, args);
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

TEST_F(CpuSelect, ExactSelectionPerKvHeadSumsTheSoftmaxesOverStoreAndTail) {
  // With every component SparQ's approximate scores are the exact ones, so its oracle serves here too. One query head
  // attends to the tail nearly alone: its say in the store must shrink, which only the tail's mass can tell.
  RandomCache cache({.kv_heads = 2, .head_dim = 16, .block_tokens = 64, .stored = 640, .tail = 60});
  auto q = normal(8 * 16, 11);
  for (int i = 0; i < 16; ++i) q[static_cast<std::size_t>(i)] = 2 * static_cast<float>(cache.key(0, 690, i));
  for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
    gpu::ExactSelect args;
    args.k = 50;
    args.limit = 640;
    args.per = SelectPer::kv_head;
    args.rule = rule;
    const auto lists = select_exact(cache, q, 8, args);
    for (int head = 0; head < 2; ++head) {
      const SparqOracle oracle(cache, head, q.data() + head * 4 * 16, 4, 16, rule);
      expect_top(oracle.score, oracle.score_error, 640, lists.data() + head * args.k, args.k);
    }
  }
}

TEST_F(CpuSelect, ExactSelectionIsThatOfF16ColumnsWhateverTheFormat) {
  for (const int d : {64, 80}) {
    const CacheShape shape{.kv_heads = 2, .head_dim = d, .block_tokens = 256, .stored = 3000, .tail = 17};
    RandomCache exact(shape);
    const auto q = normal(static_cast<std::size_t>(8 * d), 12);
    for (const auto columns : {offload::ColumnFormat::int8, offload::ColumnFormat::int4}) {
      CacheShape other = shape;
      other.columns = columns;
      RandomCache cache(other);
      for (const SelectPer per : {SelectPer::query_head, SelectPer::kv_head}) {
        gpu::ExactSelect args;
        args.k = 100;
        args.limit = 2900;
        args.per = per;
        args.rule = GroupRule::logits;
        EXPECT_EQ(select_exact(cache, q, 8, args), select_exact(exact, q, 8, args));
      }
    }
  }
}

TEST_F(CpuSelect, FaissAndOurOwnSearchSelectTheSameSets) {
  for (const auto& [d, columns] : {std::pair{64, offload::ColumnFormat::f16},
                                   {128, offload::ColumnFormat::f16},
                                   {64, offload::ColumnFormat::int8},
                                   {64, offload::ColumnFormat::int4}}) {
    RandomCache cache(
        {.kv_heads = 2, .head_dim = d, .block_tokens = 256, .stored = 3000, .tail = 17, .columns = columns});
    const auto q = normal(static_cast<std::size_t>(8 * d), 12);
    gpu::ExactSelect args;
    args.k = 100;
    args.limit = 2900;
    const auto own = select_exact(cache, q, 8, args);
    args.faiss = true;
    EXPECT_EQ(select_exact(cache, q, 8, args), own);
  }
}

TEST_F(CpuSelect, FaissPerKvHeadIsRefusedWithTheOptionThatHelps) {
  RandomCache cache({.head_dim = 64, .stored = 64});
  gpu::ExactSelect args;
  args.k = 1;
  args.limit = 64;
  args.faiss = true;
  args.per = SelectPer::kv_head;
  EXPECT_THROW(select_exact(cache, normal(64, 13), 1, args), Error);
}

TEST_F(CpuSelect, TopkWithEveryPositionIsDense) {
  RandomCache cache({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 300, .tail = 25});
  const auto q = normal(4 * 64, 14);
  gpu::ExactSelect args;
  args.k = 300;
  args.limit = 300;
  const auto lists = select_exact(cache, q, 4, args);
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
