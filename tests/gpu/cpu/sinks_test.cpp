#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu/make_backend.h"
#include "offload/host/threads.h"
#include "tests/support/cpu_cache.h"

// Attention whose softmax has a logit that no value follows.
namespace hayloft {
namespace {

using testing::CacheShape;
using testing::normal;
using testing::RandomCache;

class CpuSinks : public ::testing::Test {
 protected:
  // Brings down what is attended to by the sink: y Z / (Z + e^sink), where Z is the sum over the positions.
  static testing::Expected expected(const RandomCache& cache, int head, const float* q, float sink,
                                    const std::vector<std::int64_t>& positions) {
    testing::Expected with = testing::attention(cache, head, q, positions);
    double beside = 0;  // the positions' sum over the sink's share
    for (const std::int64_t at : positions) {
      beside += std::exp(testing::dot(cache, head, at, q) / std::sqrt(cache.shape().head_dim) - sink);
    }
    for (double& y : with.y) y *= beside / (1 + beside);
    return with;
  }

  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
};

constexpr int kv_heads = 2, group = 3, heads = kv_heads * group;
// One that counts for nothing, some about as large as what there is, one that takes nearly all.
const std::vector<float> logits_of_sinks = {-90, 1, 3, 5, 7, 60};

TEST_F(CpuSinks, TakeTheirShareOfADecodedTokensSoftmax) {
  for (const int d : {40, 64}) {
    RandomCache cache({.kv_heads = kv_heads, .head_dim = d, .stored = 300, .tail = 21, .seed = 3});
    gpu::CacheView view = cache.view();
    view.sinks = logits_of_sinks.data();
    const std::vector<float> q = normal(static_cast<std::size_t>(heads * d), 4);
    gpu::Attended what;
    what.ranges[0] = {0, 150};
    what.ranges[1] = {170, cache.tokens()};
    std::vector<float> y(q.size()), part(q.size()), max(heads), sum(heads);
    backend->attend(view, q.data(), heads, what, y.data(), {});
    what.partial = {max.data(), sum.data()};
    backend->attend(view, q.data(), heads, what, part.data(), {});
    std::vector<std::int64_t> positions = testing::range(0, 150);
    const std::vector<std::int64_t> more = testing::range(170, cache.tokens());
    positions.insert(positions.end(), more.begin(), more.end());
    for (int h = 0; h < heads; ++h) {
      const auto right = expected(cache, h / group, q.data() + h * d, logits_of_sinks[h], positions);
      for (int i = 0; i < d; ++i) {
        ASSERT_NEAR(y[h * d + i], right.y[i], right.tolerance) << "head " << h << ", component " << i;
        ASSERT_NEAR(part[h * d + i] / sum[h], right.y[i], right.tolerance);
      }
    }
  }
}

TEST_F(CpuSinks, TakeTheirShareOfEveryTokenOfAPrompt) {
  constexpr int d = 64;
  RandomCache cache({.kv_heads = kv_heads, .head_dim = d, .stored = 4096, .tail = 40, .seed = 5});
  gpu::CacheView view = cache.view();
  view.sinks = logits_of_sinks.data();
  for (const std::int64_t window : {0, 24}) {
    for (const int T : {1, 3, 40}) {  // keys of few queries are attended to in segments
      const std::vector<float> q = normal(static_cast<std::size_t>(T * heads * d), 6);
      std::vector<float> y(q.size());
      backend->attend_causal(view, q.data(), T, heads, window, y.data(), {});
      for (int t = 0; t < T; ++t) {
        const std::int64_t seen = cache.tokens() - T + t + 1;
        const auto positions = testing::range(window > 0 ? seen - window : 0, seen);
        for (int h = 0; h < heads; ++h) {
          const std::size_t at = static_cast<std::size_t>(t * heads + h) * d;
          const auto right = expected(cache, h / group, q.data() + at, logits_of_sinks[h], positions);
          for (int i = 0; i < d; ++i) ASSERT_NEAR(y[at + i], right.y[i], right.tolerance) << T << ", head " << h;
        }
      }
    }
  }
}

// alpha = (A Z + e^s) / (Z + e^s), A without a sink: e^s / Z = (alpha - A) / (1 - alpha), e times as much for s + 1.
TEST_F(CpuSinks, CountInAlpha) {
  constexpr int d = 64;
  RandomCache cache({.kv_heads = kv_heads, .head_dim = d, .stored = 512, .tail = 16, .seed = 7});
  const std::vector<float> q = normal(static_cast<std::size_t>(heads * d), 8);
  gpu::SparqSelect select;
  select.rank = 16;
  select.k = 24;
  select.limit = 512;
  select.rule = index::GroupRule::logits;  // which positions these are does not depend on the sinks
  const auto alphas = [&](const std::vector<float>& sinks) {
    gpu::CacheView view = cache.view();
    view.sinks = sinks.empty() ? nullptr : sinks.data();
    std::vector<std::int32_t> positions(kv_heads * 24);
    std::vector<float> alpha(heads);
    backend->select_sparq(view, q.data(), heads, select, positions.data(), alpha.data(), {});
    return alpha;
  };
  const std::vector<float> without = alphas({}), with = alphas(std::vector<float>(heads, 3)),
                           larger = alphas(std::vector<float>(heads, 4));
  for (std::size_t h = 0; h < without.size(); ++h) {
    ASSERT_GT(with[h], without[h]);
    const double once = (with[h] - without[h]) / (1 - with[h]), again = (larger[h] - without[h]) / (1 - larger[h]);
    ASSERT_NEAR(again / once, std::exp(1.0),
                1e-3);  // alphas are good to some eps, and their differences above a hundredth
  }
}

}  // namespace
}  // namespace hayloft
