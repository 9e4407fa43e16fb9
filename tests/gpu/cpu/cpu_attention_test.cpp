#include <gtest/gtest.h>

#include <cstring>

#include "gpu/cpu/attention.h"
#include "gpu/make_backend.h"
#include "offload/host/threads.h"
#include "tests/support/cpu_cache.h"

namespace hayloft {
namespace {

using testing::attention;
using testing::CacheShape;
using testing::Expected;
using testing::normal;
using testing::RandomCache;
using testing::range;

class CpuAttention : public ::testing::Test {
 protected:
  std::vector<float> attend(RandomCache& cache, const std::vector<float>& q, int query_heads,
                            const gpu::Attended& what) {
    std::vector<float> out(q.size(), -1.0f);
    backend->attend(cache.view(), q.data(), query_heads, what, out.data(), {});
    return out;
  }
  std::vector<float> attend_causal(RandomCache& cache, const std::vector<float>& q, int T, int query_heads,
                                   std::int64_t window) {
    std::vector<float> out(q.size(), -1.0f);
    backend->attend_causal(cache.view(), q.data(), T, query_heads, window, out.data(), {});
    return out;
  }

  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
};

void expect_attention(const RandomCache& cache, int head, const float* q, const std::vector<std::int64_t>& positions,
                      const float* got) {
  const Expected expected = attention(cache, head, q, positions);
  for (int i = 0; i < cache.shape().head_dim; ++i) {
    ASSERT_NEAR(got[i], expected.y[static_cast<std::size_t>(i)], expected.tolerance)
        << "d " << cache.shape().head_dim << " head " << head << " component " << i;
  }
}

gpu::Attended everything(const RandomCache& cache) {
  gpu::Attended what;
  what.ranges[0] = {cache.first(), cache.tokens()};
  return what;
}

TEST_F(CpuAttention, DenseDecodeEqualsTheOracleForEveryHeadDimensionAndGroup) {
  for (const int d : {8, 16, 64, 80, 96, 128, 256, 512}) {
    for (const int group : {1, 3, 4, 8}) {
      RandomCache cache({.kv_heads = 2, .head_dim = d, .block_tokens = 64, .stored = 192, .tail = 77});
      const auto q = normal(static_cast<std::size_t>(2 * group * d), 7);
      const auto y = attend(cache, q, 2 * group, everything(cache));
      for (int h = 0; h < 2 * group; ++h) {
        expect_attention(cache, h / group, q.data() + h * d, range(0, cache.tokens()), y.data() + h * d);
      }
    }
  }
}

TEST_F(CpuAttention, DenseDecodeEqualsTheOracleForEveryBlockSizeStoreAndTail) {
  for (const int block : {16, 256, 4096}) {
    for (const std::int64_t stored : {0, 4096, 4100, 8192 + 15}) {
      for (const std::int64_t tail : {0, 1, 1500}) {
        if (stored + tail == 0) continue;
        RandomCache cache({.head_dim = 16, .block_tokens = block, .stored = stored, .tail = tail});
        const auto q = normal(2 * 16, 8);
        const auto y = attend(cache, q, 2, everything(cache));
        for (int h = 0; h < 2; ++h) {
          expect_attention(cache, 0, q.data() + h * 16, range(0, cache.tokens()), y.data() + h * 16);
        }
      }
    }
  }
}

TEST_F(CpuAttention, ListsPerKvHeadAndRangesAcrossStoreAndTailAreOneSoftmax) {
  RandomCache cache({.kv_heads = 2, .head_dim = 64, .block_tokens = 32, .stored = 640, .tail = 50});
  const int group = 3;
  const auto q = normal(2 * group * 64, 9);
  std::vector<std::int32_t> lists;
  std::vector<std::vector<std::int64_t>> attended(2);
  for (int head = 0; head < 2; ++head) {
    attended[static_cast<std::size_t>(head)] = range(0, 5);
    for (std::int32_t position = 10 + head; position < 600; position += 4) {
      lists.push_back(position);
      attended[static_cast<std::size_t>(head)].push_back(position);
    }
    for (const auto position : range(610, 670)) attended[static_cast<std::size_t>(head)].push_back(position);
  }
  gpu::Attended what;
  what.positions = lists.data();
  what.lists = 2;
  what.k = static_cast<int>(lists.size()) / 2;

  what.ranges[0] = {0, 5};
  what.ranges[1] = {610, 670};
  const auto y = attend(cache, q, 2 * group, what);
  for (int h = 0; h < 2 * group; ++h) {
    const int head = h / group;
    expect_attention(cache, head, q.data() + h * 64, attended[static_cast<std::size_t>(head)], y.data() + h * 64);
  }
}

TEST_F(CpuAttention, ListsPerQueryHeadAreAttendedByThatQueryHeadAlone) {
  RandomCache cache({.kv_heads = 2, .head_dim = 80, .block_tokens = 64, .stored = 1024, .tail = 9});
  const int query_heads = 8;
  const int k = 200;
  const auto q = normal(query_heads * 80, 10);
  std::vector<std::int32_t> lists;
  for (int h = 0; h < query_heads; ++h) {
    for (int i = 0; i < k; ++i) lists.push_back(h + 5 * i);
  }
  gpu::Attended what;
  what.positions = lists.data();
  what.lists = query_heads;
  what.k = k;
  what.ranges[0] = {1024, cache.tokens()};
  what.ranges[1] = {50, 50};  // empty: ignored
  const auto y = attend(cache, q, query_heads, what);
  for (int h = 0; h < query_heads; ++h) {
    auto positions = range(1024, cache.tokens());
    positions.insert(positions.end(), lists.begin() + h * k, lists.begin() + (h + 1) * k);
    expect_attention(cache, h / 4, q.data() + h * 80, positions, y.data() + h * 80);
  }
}

TEST_F(CpuAttention, PartsThatCoverEverythingEqualDense) {
  RandomCache cache({.head_dim = 128, .block_tokens = 16, .stored = 4096, .tail = 100});
  const auto q = normal(4 * 128, 11);
  std::vector<std::int32_t> list;
  for (std::int32_t position = 64; position < 3000; ++position) list.push_back(position);
  gpu::Attended parts;
  parts.positions = list.data();
  parts.lists = 1;
  parts.k = static_cast<int>(list.size());
  parts.ranges[0] = {0, 64};
  parts.ranges[1] = {3000, cache.tokens()};
  const auto y = attend(cache, q, 4, parts);
  for (int h = 0; h < 4; ++h) {
    expect_attention(cache, 0, q.data() + h * 128, range(0, cache.tokens()), y.data() + h * 128);
  }
}

TEST_F(CpuAttention, ScoresFarApartNeitherOverflowNorLoseTheLargest) {
  RandomCache cache({.head_dim = 64, .block_tokens = 64, .stored = 2048, .tail = 10, .seed = 3, .key_scale = 100});
  const auto q = normal(64, 12, 10);
  const auto y = attend(cache, q, 1, everything(cache));
  expect_attention(cache, 0, q.data(), range(0, cache.tokens()), y.data());
}

TEST_F(CpuAttention, NothingAttendedIsZero) {
  RandomCache cache({.head_dim = 64, .stored = 64, .tail = 3});
  const auto y = attend(cache, normal(2 * 64, 13), 2, {});
  for (const float value : y) EXPECT_EQ(value, 0.0f);
}

TEST_F(CpuAttention, NanInAnAttendedKeyIsNotLost) {
  RandomCache cache({.head_dim = 64, .stored = 64, .tail = 40});
  cache.key_bits(0, 20, 5) = f16{0x7e00};
  const auto y = attend(cache, normal(64, 14), 1, everything(cache));
  for (const float value : y) EXPECT_TRUE(std::isnan(value));
  const auto causal = attend_causal(cache, normal(2 * 64, 14), 2, 1, 0);
  for (const float value : causal) EXPECT_TRUE(std::isnan(value));
}

TEST_F(CpuAttention, MeanValueStandsInForWhatAlphaLeavesOut) {
  const int d = 96;
  for (const std::int64_t stored : {0, 300}) {
    RandomCache cache({.kv_heads = 2, .head_dim = d, .block_tokens = 32, .stored = stored, .tail = 2100});
    const auto q = normal(4 * d, 15);
    const std::vector<float> alpha{1.0f, 0.25f, 0.0f, 0.75f};
    gpu::Attended what;
    what.ranges[0] = {cache.tokens() - 70, cache.tokens()};
    what.alpha = alpha.data();
    const auto y = attend(cache, q, 4, what);
    for (int h = 0; h < 4; ++h) {
      const Expected exact = attention(cache, h / 2, q.data() + h * d, range(cache.tokens() - 70, cache.tokens()));
      for (int i = 0; i < d; ++i) {
        double mean = 0;
        for (std::int64_t position = 0; position < cache.tokens(); ++position) mean += cache.value(h / 2, position, i);
        mean /= static_cast<double>(cache.tokens());
        const double a = alpha[static_cast<std::size_t>(h)];
        // The mean itself: eight values in a row are added in f32, of magnitude at most 5 each.
        ASSERT_NEAR(y[static_cast<std::size_t>(h * d + i)], a * exact.y[static_cast<std::size_t>(i)] + (1 - a) * mean,
                    exact.tolerance + 40 * std::numeric_limits<float>::epsilon());
      }
    }
  }
}

// Every query of a prefill chunk against the oracle over the positions it may see.
void expect_causal(const RandomCache& cache, const std::vector<float>& q, int T, int query_heads, std::int64_t window,
                   const std::vector<float>& y, int every = 1) {
  const int d = cache.shape().head_dim;
  const int group = query_heads / cache.shape().kv_heads;
  for (int t = T - 1; t >= 0; t -= every) {
    const std::int64_t position = cache.tokens() - T + t;
    const std::int64_t begin = window > 0 ? std::max(cache.first(), position - window + 1) : cache.first();
    for (int h = 0; h < query_heads; ++h) {
      const std::int64_t at = static_cast<std::int64_t>(t * query_heads + h) * d;
      expect_attention(cache, h / group, q.data() + at, range(begin, position + 1), y.data() + at);
    }
  }
}

TEST_F(CpuAttention, CausalEqualsTheOracleForEveryChunkLengthAndGroup) {
  for (const int T : {1, 2, 3, 17, 64, 500}) {
    for (const int group : {1, 3, 4, 8}) {
      RandomCache cache({.head_dim = 64, .block_tokens = 64, .stored = 256, .tail = T + 5});
      const auto q = normal(static_cast<std::size_t>(T * group * 64), 16);
      expect_causal(cache, q, T, group, 0, attend_causal(cache, q, T, group, 0), T > 64 ? 37 : 1);
    }
  }
}

TEST_F(CpuAttention, CausalEqualsTheOracleForEveryHeadDimension) {
  for (const int d : {8, 16, 80, 96, 128, 256, 512}) {
    RandomCache cache({.kv_heads = 2, .head_dim = d, .block_tokens = 16, .stored = 48, .tail = 40});
    const auto q = normal(static_cast<std::size_t>(33 * 4 * d), 17);
    expect_causal(cache, q, 33, 4, 0, attend_causal(cache, q, 33, 4, 0));
  }
}

TEST_F(CpuAttention, CausalMayReachBackIntoTheStoreAndStartAnEmptyCache) {
  RandomCache sealed({.head_dim = 32, .block_tokens = 16, .stored = 75});
  const auto q = normal(75 * 2 * 32, 18);
  expect_causal(sealed, q, 75, 2, 0, attend_causal(sealed, q, 75, 2, 0));
  RandomCache fresh({.head_dim = 32, .tail = 75});
  expect_causal(fresh, q, 75, 2, 0, attend_causal(fresh, q, 75, 2, 0));
}

TEST_F(CpuAttention, SlidingWindowEqualsTheNaiveOne) {
  for (const std::int64_t window : {1, 7, 32, 300, 4096}) {
    for (const int T : {1, 3, 64, 500}) {
      // The tail has lost what lies before position 1,000 and still holds a little more than the window needs.
      RandomCache cache(
          {.kv_heads = 2, .head_dim = 64, .tail = T + std::min<std::int64_t>(window, 400) + 3, .position = 1000});
      const auto q = normal(static_cast<std::size_t>(T * 4 * 64), 19);
      expect_causal(cache, q, T, 4, window, attend_causal(cache, q, T, 4, window), T > 64 ? 41 : 1);
    }
  }
}

TEST_F(CpuAttention, ManyKeysForFewQueriesAreSplitAndMerged) {
  RandomCache cache({.head_dim = 16, .block_tokens = 4096, .stored = 16384, .tail = 100});
  const auto q = normal(3 * 2 * 16, 20);
  expect_causal(cache, q, 3, 2, 0, attend_causal(cache, q, 3, 2, 0));
}

TEST_F(CpuAttention, ATokensResultDoesNotDependOnTheChunkItCameIn) {
  const int T = 200;
  const int d = 64;
  RandomCache cache({.head_dim = d, .block_tokens = 64, .stored = 128, .tail = T});
  const auto q = normal(T * 2 * d, 21);
  const auto together = attend_causal(cache, q, T, 2, 50);
  for (const int last : {1, 2, 17, 100}) {
    const std::vector<float> part(q.end() - last * 2 * d, q.end());
    const auto alone = attend_causal(cache, part, last, 2, 50);
    for (int h = 0; h < 2 * last; ++h) {
      const std::int64_t position = cache.tokens() - last + h / 2;
      const Expected expected = attention(cache, 0, part.data() + h * d, range(position - 49, position + 1));
      for (int i = 0; i < d; ++i) {
        const float whole = together[together.size() - static_cast<std::size_t>(last * 2 * d - h * d - i)];
        ASSERT_NEAR(alone[static_cast<std::size_t>(h * d + i)], whole, expected.tolerance);
      }
    }
  }
}

TEST_F(CpuAttention, ResultsAreTheSameBitForBitOnOneThreadAndOnMany) {
  RandomCache cache({.kv_heads = 2, .head_dim = 128, .block_tokens = 1024, .stored = 8192, .tail = 600});
  const auto q = normal(300 * 8 * 128, 22);
  const std::vector<float> alpha(8, 0.5f);
  gpu::Attended what = everything(cache);
  what.alpha = alpha.data();
  std::vector<std::vector<float>> decoded;
  std::vector<std::vector<float>> prefilled;
  for (const int count : {1, 2, 7}) {
    const offload::Threads some(count);
    const auto cpu = gpu::make_cpu_backend(some);
    decoded.emplace_back(8 * 128);
    cpu->attend(cache.view(), q.data(), 8, what, decoded.back().data(), {});
    prefilled.emplace_back(q.size());
    cpu->attend_causal(cache.view(), q.data(), 300, 8, 0, prefilled.back().data(), {});
  }
  for (std::size_t i = 1; i < decoded.size(); ++i) {
    EXPECT_EQ(decoded[i], decoded[0]);
    EXPECT_EQ(prefilled[i], prefilled[0]);
  }
}

TEST_F(CpuAttention, IsTimedWhileSomebodyAsks) {
  RandomCache cache({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 64, .tail = 20});
  const auto q = normal(2 * 4 * 64, 3);
  const auto both = [&] {
    attend(cache, {q.begin(), q.begin() + 4 * 64}, 4, everything(cache));
    attend_causal(cache, q, 2, 4, 0);
  };
  both();
  EXPECT_TRUE(backend->stage_times().empty()) << "nobody asked";
  backend->time_stages(true);
  both();
  both();
  const std::vector<gpu::StageTime> stages = backend->stage_times();
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].name, "attend");
  EXPECT_EQ(stages[0].times, 2);
  EXPECT_EQ(stages[1].name, "attend_causal");
  EXPECT_EQ(stages[1].times, 2);
  backend->time_stages(false);
  EXPECT_TRUE(backend->stage_times().empty());
}

}  // namespace
}  // namespace hayloft
