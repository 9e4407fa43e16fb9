#include "runtime/attention/host_tail.h"
#include "gpu/make_backend.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/cpu_cache.h"

namespace hayloft::runtime {
namespace {

using hayloft::testing::CacheShape;
using hayloft::testing::RandomCache;

class HostTailTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  static CacheShape shape() {
    CacheShape shape;
    shape.kv_heads = 3;
    shape.head_dim = 24;
    shape.stored = 128;
    shape.tail = GetParam();
    return shape;
  }

  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  RandomCache cache{shape()};
  HostTail tail{*backend, cache.view(), backend->stream()};
};

TEST_P(HostTailTest, HoldsTheLiveRowsOfTheTail) {
  EXPECT_EQ(tail.tokens(), GetParam());
  EXPECT_EQ(tail.first(), 128);
  for (int head = 0; head < 3; ++head) {
    for (std::int64_t t = 0; t < tail.tokens(); ++t) {
      const f16* row = tail.rows().row(head, t, nullptr);
      for (int i = 0; i < 24; ++i) {
        ASSERT_EQ(to_float(row[i]), cache.key(head, 128 + t, i));
        ASSERT_EQ(to_float(row[24 + i]), cache.value(head, 128 + t, i));
      }
    }
  }
}

TEST_P(HostTailTest, ScoresItAsDoublePrecisionDoes) {
  constexpr int query_heads = 6;
  const std::vector<float> weights = hayloft::testing::normal(query_heads * 24, 5);
  const TailScores scores = score_tail(tail, weights.data(), query_heads, threads);
  ASSERT_EQ(scores.tokens, GetParam());
  for (int h = 0; h < query_heads; ++h) {
    double sum = 0;
    for (std::int64_t t = 0; t < scores.tokens; ++t) {
      const double expected = dot(cache, h / 2, 128 + t, weights.data() + h * 24);
      // 24 products below 4 * 4 or so, each rounded, added in f32.
      EXPECT_NEAR(scores.logits[static_cast<std::size_t>(h * scores.tokens + t)], expected, 24 * 16 * 0x1p-23);
      sum += std::exp(expected - scores.max[h]);
    }
    EXPECT_NEAR(scores.sum[h], sum, 1e-4 * sum);  // exp of logits with the error above
    if (scores.tokens == 0) {
      EXPECT_EQ(scores.max[h], -std::numeric_limits<float>::infinity());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, HostTailTest, ::testing::Values(0, 1, 63, 64, 200, 1500),
                         [](const auto& tail) { return fmt::format("tail{}", tail.param); });

}  // namespace
}  // namespace hayloft::runtime
