#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/gpu/cuda/backends.h"

// Prefill's attention on CUDA against the CPU backend.
namespace hayloft::testing {
namespace {

class Causal : public CudaTest {
 protected:
  static std::vector<float> on_cpu(gpu::Backend& backend, SharedCache& cache, const std::vector<float>& q, int T,
                                   int query_heads, const gpu::CausalWindow& window) {
    std::vector<float> out(q.size());
    backend.attend_causal(cache.on_cpu(), q.data(), T, query_heads, window, out.data(), {});
    return out;
  }

  static std::vector<float> on_cuda(gpu::Backend& backend, SharedCache& cache, const std::vector<float>& q, int T,
                                    int query_heads, const gpu::CausalWindow& window) {
    const gpu::Buffer device_q = upload(backend, q);
    const gpu::Buffer out = backend.allocate(q.size() * sizeof(float), backend.stream());
    backend.attend_causal(cache.on_cuda(), device_q.as<float>(), T, query_heads, window, out.as<float>(),
                          backend.stream());
    return download<float>(backend, out);
  }

  // Queries whose components an f16 holds: only weights are rounded then.
  static std::vector<float> half_query(std::size_t n, std::uint32_t seed, float size = 1) {
    std::vector<float> q = normal(n, seed, size);
    for (float& x : q) x = to_float(to_f16(x));
    return q;
  }

  // The error of outputs against the CPU's: gpu/cuda/kernels/causal.cu rounds weights to f16, off by 2^-11, and a score
  // is in f32 on either side, off by (d + 4) eps / 2 times the sum of its products' magnitudes. Weights and their sum:
  // twice; and the largest value, of some thousand normal variates, is below 5.
  static double tolerance(int head_dim, double products) {
    constexpr double largest_value = 5;
    const double score = 2 * (head_dim + 4) * std::numeric_limits<float>::epsilon() / 2 * products;
    return largest_value * 2 * (std::ldexp(1, -11) + score);
  }

  // Sum over i of |q_i k_i| / sqrt(d), of the largest.
  static double largest_products(const SharedCache& cache, const std::vector<float>& q, int T, int query_heads) {
    const CacheShape& shape = cache.values().shape();
    const std::int64_t first = cache.values().first();
    double largest = 0;
    for (int t = 0; t < T; ++t) {
      for (int h = 0; h < query_heads; ++h) {
        const float* const x = q.data() + (static_cast<std::size_t>(t * query_heads + h)) * shape.head_dim;
        for (std::int64_t at = first; at < cache.values().tokens(); ++at) {
          double sum = 0;
          for (int i = 0; i < shape.head_dim; ++i) {
            sum += std::fabs(x[i] * cache.values().key(h * shape.kv_heads / query_heads, at, i));
          }
          largest = std::max(largest, sum / std::sqrt(shape.head_dim));
        }
      }
    }
    return largest;
  }

  void expect_alike(SharedCache& cache, int T, int group, const gpu::CausalWindow& window = {}) {
    const CacheShape& shape = cache.values().shape();
    const int query_heads = shape.kv_heads * group;
    const std::vector<float> q = half_query(static_cast<std::size_t>(T * query_heads * shape.head_dim), 99);
    const double allowed = tolerance(shape.head_dim, largest_products(cache, q, std::min(T, 2), query_heads));
    EXPECT_TRUE(near(on_cuda(*cuda, cache, q, T, query_heads, window), on_cpu(*cpu, cache, q, T, query_heads, window),
                     allowed));
  }
};

TEST_F(Causal, EveryHeadDimensionAndGroup) {
  for (const int head_dim : {8, 64, 80, 96, 128, 256, 264, 512}) {
    for (const int group : {1, 3, 4, 7, 8, 16}) {
      SCOPED_TRACE(fmt::format("d = {}, g = {}", head_dim, group));
      SharedCache cache(*cuda,
                        {.kv_heads = 2, .head_dim = head_dim, .block_tokens = 32, .stored = 64, .tail = 9, .seed = 2});
      expect_alike(cache, 3, group);
    }
  }
}

// Every row of queries reaches products in f16 by a power of two of its own, from its largest component. Here that is
// another one in each row, beyond what an f16 holds by itself; keys are as much smaller.
TEST_F(Causal, TheLargestComponentOfARowMayBeAnyOne) {
  constexpr int head_dim = 128, T = 16, query_heads = 8;
  SharedCache cache(
      *cuda,
      {.kv_heads = 2, .head_dim = head_dim, .block_tokens = 32, .stored = 64, .tail = T, .key_scale = 1.0f / 16384});
  std::vector<float> q = half_query(static_cast<std::size_t>(T * query_heads * head_dim), 98);
  for (std::size_t row = 0; row < T * query_heads; ++row) q[row * head_dim + row % head_dim] = 131072;
  const double allowed = tolerance(head_dim, largest_products(cache, q, T, query_heads));
  EXPECT_TRUE(near(on_cuda(*cuda, cache, q, T, query_heads, {}), on_cpu(*cpu, cache, q, T, query_heads, {}), allowed));
}

TEST_F(Causal, QueriesInTheTailAcrossAndOnTheirOwn) {
  struct Case {
    std::int64_t stored, tail;
    int T;
  };
  for (const auto& [stored, tail, T] : {Case{0, 9, 9}, Case{0, 40, 7}, Case{64, 12, 12}, Case{64, 3, 10},
                                        Case{50, 0, 6}, Case{64, 5, 1}, Case{64, 5, 69}}) {
    SCOPED_TRACE(fmt::format("{} stored, {} in the tail, {} queries", stored, tail, T));
    SharedCache cache(*cuda, {.kv_heads = 2,
                              .head_dim = 64,
                              .block_tokens = 16,
                              .stored = stored,
                              .tail = tail,
                              .position = stored == 0 ? std::int64_t{5} << 30 : 0,  // no 32 bits hold it
                              .seed = 3});
    expect_alike(cache, T, 2);
  }
}

TEST_F(Causal, SeveralTilesOfKeysAndBlocksOfQueries) {
  SharedCache cache(*cuda,
                    {.kv_heads = 1, .head_dim = 64, .block_tokens = 512, .stored = 2048, .tail = 1100, .seed = 4});
  expect_alike(cache, 3, 2);
  SharedCache tail(*cuda, {.kv_heads = 1, .head_dim = 8, .tail = 1100, .seed = 5});
  expect_alike(tail, 1100, 1);
  SharedCache wide(*cuda, {.kv_heads = 1, .head_dim = 512, .block_tokens = 64, .stored = 128, .tail = 70, .seed = 5});
  expect_alike(wide, 60, 2);
}

TEST_F(Causal, WindowsAndSinks) {
  for (const std::int64_t window : {1, 33, 1000}) {
    for (const std::int64_t sinks : {0, 20, 75}) {
      SCOPED_TRACE(fmt::format("window {}, sinks {}", window, sinks));
      SharedCache cache(*cuda,
                        {.kv_heads = 2, .head_dim = 64, .block_tokens = 16, .stored = 64, .tail = 40, .seed = 6});
      expect_alike(cache, 38, 1, {window, sinks});
      SharedCache tail(*cuda, {.kv_heads = 2, .head_dim = 64, .tail = 60, .position = 10, .seed = 7});
      expect_alike(tail, 38, 1, {window, sinks});
      expect_alike(tail, 1, 2, {window, sinks});
    }
  }
}

TEST_F(Causal, StagedMemory) {
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 80, .block_tokens = 32, .stored = 200, .tail = 17, .seed = 8},
                    SharedCache::Host::pageable);
  expect_alike(cache, 20, 3);
  expect_alike(cache, 20, 3, {12, 4});
}

TEST_F(Causal, RowsOfIntegers) {
  for (const offload::RowFormat rows : {offload::RowFormat::int8, offload::RowFormat::int4}) {
    for (const int head_dim : {8, 80, 128, 256, 512}) {
      for (const auto host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
        SCOPED_TRACE(fmt::format("{}, d = {}", offload::name(rows), head_dim));
        SharedCache cache(*cuda,
                          {.kv_heads = 2,
                           .head_dim = head_dim,
                           .block_tokens = 32,
                           .stored = 200,
                           .tail = 17,
                           .seed = 8,
                           .rows = rows},
                          host);
        expect_alike(cache, 20, 3);
        expect_alike(cache, 20, 3, {12, 4});
        expect_alike(cache, 1, 3);
      }
    }
    SharedCache cache(
        *cuda,
        {.kv_heads = 1, .head_dim = 16, .block_tokens = 2048, .stored = 4500, .tail = 30, .seed = 4, .rows = rows});
    expect_alike(cache, 3, 2);
  }
}

// As causal.cu derives it for queries that an f16 does not hold.
TEST_F(Causal, QueriesAreRoundedToHalfPrecision) {
  const int T = 6, d = 64, query_heads = 4;
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = d, .block_tokens = 32, .stored = 64, .tail = 20, .seed = 9});
  const std::vector<float> q = normal(T * query_heads * d, 10);
  const double products = largest_products(cache, q, T, query_heads);
  EXPECT_TRUE(near(on_cuda(*cuda, cache, q, T, query_heads, {}), on_cpu(*cpu, cache, q, T, query_heads, {}),
                   tolerance(d, products) + 2 * 5 * std::ldexp(products, -11)));
}

// A query's size is no matter: keys are made small by as much, so that scores stay as they are.
TEST_F(Causal, QueriesFarOutsideTheRangeOfHalfPrecision) {
  const int T = 4, d = 64, query_heads = 2;
  for (const float size : {0x1p20f, 0x1p-20f, 0x1p-120f}) {
    SCOPED_TRACE(size);
    SharedCache cache(*cuda, {.kv_heads = 1,
                              .head_dim = d,
                              .block_tokens = 32,
                              .stored = 64,
                              .tail = 20,
                              .seed = 11,
                              .key_scale = std::clamp(1 / size, 0x1p-9f, 0x1p9f)});
    std::vector<float> q = half_query(T * query_heads * d, 12);
    for (float& x : q) x *= size;
    const double products = largest_products(cache, q, T, query_heads);
    EXPECT_TRUE(near(on_cuda(*cuda, cache, q, T, query_heads, {}), on_cpu(*cpu, cache, q, T, query_heads, {}),
                     tolerance(d, products)));
  }
}

// One key far ahead of thousands behind it that are alike: each of their weights is far below what an f16 can hold, all
// of them together are not.
TEST_F(Causal, ManySmallWeightsAddUp) {
  const int T = 2;
  for (const int d : {8, 512}) {
    SCOPED_TRACE(d);
    SharedCache cache(*cuda, {.kv_heads = 1, .head_dim = d, .tail = 4098, .seed = 13, .key_scale = 0});
    const gpu::CacheView views[] = {cache.on_cpu(), cache.on_cuda()};
    const f16 ahead = to_f16(12 * std::sqrt(static_cast<float>(d)));
    const std::int64_t at = views[0].tail.first * 2 * d;
    views[0].tail.rows[at] = ahead;
    cuda->to_device(views[1].tail.rows + at, &ahead, sizeof ahead, cuda->stream());
    std::vector<float> q(static_cast<std::size_t>(T * d), 0.0f);
    q[0] = q[static_cast<std::size_t>(d)] = 1;
    const std::vector<float> expected = on_cpu(*cpu, cache, q, T, 1, {});
    // Tensor cores may cut off, rather than round, what they add up: 2^-23 of the sum for each of the 4096 keys that
    // they sum up together, of which one is far ahead; of weighted values and of their normaliser. Without the others
    // it would be 4096 exp(-12) = 2.5e-2.
    EXPECT_TRUE(near(on_cuda(*cuda, cache, q, T, 1, {}), expected, 1e-6, 2 * 4096 * std::ldexp(1, -23)));
  }
}

TEST_F(Causal, NaNsReachThoseWhoSeeThem) {
  const int T = 6, d = 64;
  for (const int component : {3, d + 3}) {
    SharedCache cache(*cuda, {.kv_heads = 1, .head_dim = d, .block_tokens = 16, .stored = 32, .tail = 10, .seed = 14});
    const gpu::CacheView view = cache.on_cuda();
    const f16 nan{0x7e00};
    cuda->to_device(view.tail.rows + view.tail.first * 2 * d + component, &nan, sizeof nan, cuda->stream());
    const std::vector<float> q = normal(T * d, 15);
    const std::vector<float> y = on_cuda(*cuda, cache, q, T, 1, {});
    for (int i = 0; i < T * d; ++i) EXPECT_EQ(std::isnan(y[i]), component < d || i % d == 3) << i;
  }
}

}  // namespace
}  // namespace hayloft::testing
