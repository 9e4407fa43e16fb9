#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/gpu/cuda/decode_fixture.h"
#include "tests/support/shards.h"

// Attention to a part of the positions on CUDA, which leaves what other parts are merged with, against the CPU backend.
namespace hayloft::testing {
namespace {

using offload::RowFormat;

// The attention of queries to what they have seen, [queries][d] and [queries].
struct Seen {
  std::vector<float> weighted;
  std::vector<float> max;
  std::vector<float> sum;
};

class Parts : public Decode {
 protected:
  static Seen attend(gpu::Backend& backend, const gpu::CacheView& view, const std::vector<float>& q, int query_heads,
                     gpu::Attended what, const std::vector<std::int32_t>& lists,
                     const std::vector<std::int32_t>& sizes) {
    const gpu::Buffer queries = upload(backend, q), positions = upload(backend, lists), ends = upload(backend, sizes);
    const gpu::Buffer out = backend.allocate(queries.bytes(), backend.stream());
    const gpu::Buffer sums = backend.allocate(2 * sizeof(float) * static_cast<unsigned>(query_heads), backend.stream());
    what.positions = positions.as<std::int32_t>();
    what.sizes = sizes.empty() ? nullptr : ends.as<std::int32_t>();
    what.partial = {sums.as<float>(), sums.as<float>() + query_heads};
    backend.attend(view, queries.as<float>(), query_heads, what, out.as<float>(), backend.stream());
    return {download<float>(backend, out), download<float>(backend, what.partial.max, query_heads),
            download<float>(backend, what.partial.sum, query_heads)};
  }

  static Seen causal(gpu::Backend& backend, const gpu::CacheView& view, const std::vector<float>& q, int T,
                     int query_heads, std::int64_t first) {
    const gpu::Buffer queries = upload(backend, q);
    const gpu::Buffer out = backend.allocate(queries.bytes(), backend.stream());
    const std::int64_t count = std::int64_t{T} * query_heads;
    const gpu::Buffer sums = backend.allocate(2 * sizeof(float) * static_cast<unsigned>(count), backend.stream());
    const gpu::SoftmaxPart partial{sums.as<float>(), sums.as<float>() + count};
    backend.attend_causal_part(view, queries.as<float>(), T, query_heads, first, partial, out.as<float>(),
                               backend.stream());
    return {download<float>(backend, out), download<float>(backend, partial.max, count),
            download<float>(backend, partial.sum, count)};
  }

  // The attention over the part and the logarithm of its sum, which say all of a state whatever its maximum is.
  static void expect_same(const Seen& actual, const Seen& expected, int d, double tolerance) {
    ASSERT_EQ(actual.max.size(), expected.max.size());
    for (std::size_t i = 0; i < expected.max.size(); ++i) {
      SCOPED_TRACE(fmt::format("query {}", i));
      const float* const weighted = actual.weighted.data() + i * static_cast<std::size_t>(d);
      if (expected.sum[i] == 0) {
        ASSERT_EQ(actual.sum[i], 0);
        ASSERT_EQ(actual.max[i], -std::numeric_limits<float>::infinity());
        ASSERT_TRUE(std::all_of(weighted, weighted + d, [](float x) { return x == 0; }));
        continue;
      }
      ASSERT_NEAR(actual.max[i], expected.max[i], tolerance);
      ASSERT_NEAR(actual.max[i] + std::log(actual.sum[i]), expected.max[i] + std::log(expected.sum[i]), tolerance);
      for (int c = 0; c < d; ++c) {
        ASSERT_NEAR(weighted[c] / actual.sum[i],
                    expected.weighted[i * static_cast<std::size_t>(d) + static_cast<std::size_t>(c)] / expected.sum[i],
                    tolerance);
      }
    }
  }

  // Lists of which `sizes` entries are positions and the others lie outside everything.
  static std::vector<std::int32_t> cut_lists(const SharedCache& cache, int k, const std::vector<std::int32_t>& sizes) {
    const int lists = static_cast<int>(sizes.size());
    std::vector<std::int32_t> positions = random_lists(cache, lists, k, 5);
    for (int list = 0; list < lists; ++list) {
      for (int i = sizes[static_cast<std::size_t>(list)]; i < k; ++i) {
        positions[static_cast<std::size_t>(list * k + i)] = std::numeric_limits<std::int32_t>::max();
      }
    }
    return positions;
  }

  // Both backends may be off by what tests/support/cpu_cache.h derives.
  double tolerance(SharedCache& cache, const std::vector<float>& q, int group) const {
    double most = 0;
    for (int head = 0; head < group * cache.values().shape().kv_heads; ++head) {
      const float* const of_head = q.data() + head * cache.values().shape().head_dim;
      most = std::max(
          most, attention(cache.values(), head / group, of_head, range(cache.values().first(), cache.values().tokens()))
                    .tolerance);
    }
    return 2 * most;
  }
};

TEST_F(Parts, AListEndsAtItsSize) {
  constexpr int k = 40, d = 64;
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8, RowFormat::int4}) {
    for (const auto host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
      SharedCache cache(
          *cuda, {.kv_heads = 2, .head_dim = d, .block_tokens = 64, .stored = 150, .tail = 9, .seed = 3, .rows = rows},
          host);
      for (const int per : {1, 3}) {
        const std::vector<float> q = random_query(6, d, 7);
        const double allowed = tolerance(cache, q, 3);
        for (int size = 0; size <= k; size += rows == RowFormat::f16 && per == 1 ? 1 : 13) {
          SCOPED_TRACE(fmt::format("{} rows, {} lists a head, {} of {}", offload::name(rows), per, size, k));
          std::vector<std::int32_t> sizes(static_cast<std::size_t>(2 * per));
          for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = i % 2 == 0 ? size : k - size;
          gpu::Attended what;
          what.lists = 2 * per;
          what.k = k;
          if (size % 2 == 0) what.ranges[1] = {148, 155};
          const std::vector<std::int32_t> lists = cut_lists(cache, k, sizes);
          expect_same(attend(*cuda, cache.on_cuda(), q, 6, what, lists, sizes),
                      attend(*cpu, cache.on_cpu(), q, 6, what, lists, sizes), d, allowed);
        }
      }
    }
  }
}

// Buffers hold some 50 rows per head, so that lists end in any chunk.
TEST_F(Parts, ListsEndInAnyChunk) {
  constexpr int k = 170, d = 64;
  const std::unique_ptr<gpu::Backend> small = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
  const gpu::DeviceMemory memory = small->memory();
  const gpu::Buffer taken = small->allocate(memory.budget_bytes - memory.used_bytes - (256 << 10), small->stream());
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8}) {
    SharedCache cache(
        *small, {.kv_heads = 2, .head_dim = d, .block_tokens = 64, .stored = 400, .tail = 9, .seed = 13, .rows = rows},
        SharedCache::Host::pageable);
    const std::vector<float> q = random_query(4, d, 7);
    for (const std::vector<std::int32_t>& sizes : {std::vector<std::int32_t>{170, 0}, {3, 111}, {60, 170}, {0, 0}}) {
      gpu::Attended what;
      what.lists = 2;
      what.k = k;
      what.ranges[0] = {150, 260};
      const std::vector<std::int32_t> lists = cut_lists(cache, k, sizes);
      expect_same(attend(*small, cache.on_cuda(), q, 4, what, lists, sizes),
                  attend(*cpu, cache.on_cpu(), q, 4, what, lists, sizes), d, tolerance(cache, q, 2));
    }
  }
}

TEST_F(Parts, OnlyAttendedRowsAreKeptAndCounted) {
  constexpr int k = 40, d = 64;
  const std::unique_ptr<gpu::Backend> keeper =
      make_cuda({.memory_bytes = std::uint64_t{1} << 30, .row_cache_bytes = gpu::row_cache_rest});
  SharedCache cache(*keeper, {.kv_heads = 2, .head_dim = d, .block_tokens = 64, .stored = 400, .tail = 9, .seed = 3});
  const std::vector<float> q = random_query(4, d, 7);
  const std::vector<std::int32_t> lists = random_lists(cache, 2, k, 9), sizes{11, 29}, all;
  const auto held_rows = [&](const std::vector<std::int32_t>& ends) {
    const gpu::Buffer held = upload(*keeper, std::vector<unsigned long long>(1, 0));
    gpu::Attended what;
    what.lists = 2;
    what.k = k;
    what.held_bytes = held.as<unsigned long long>();
    attend(*keeper, cache.on_cuda(), q, 4, what, lists, ends);
    return download<unsigned long long>(*keeper, held)[0] / cache.on_cuda().store.layout->row_bytes;
  };
  EXPECT_EQ(held_rows(sizes), 0u);
  EXPECT_EQ(held_rows(sizes), 40u);
  EXPECT_EQ(held_rows(all), 40u) << "what lies behind the ends was not read";
  EXPECT_EQ(held_rows(sizes), 40u);
  EXPECT_EQ(held_rows(all), 80u);
}

TEST_F(Parts, ACausalPartEndsWhereItsQueriesOrItsRowsDo) {
  constexpr int d = 32, B = 64;
  struct Case {
    std::int64_t stored, tail;
  };
  for (const Case& of : {Case{2 * B, 0}, Case{2 * B, 50}, Case{0, 50}}) {
    SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = d, .block_tokens = B, .stored = of.stored, .tail = of.tail});
    const std::int64_t tokens = of.stored + of.tail;
    for (const int T : {1, 20}) {
      std::vector<float> q = normal(static_cast<std::size_t>(T * 4 * d), 9);
      for (float& x : q) x = to_float(to_f16(x));
      // Weights are rounded to f16, off by 2^-11 of themselves, and with them their sum; values are below 5, as
      // tests/gpu/cuda/causal_test.cpp says of outputs. Scores differ by less.
      const double allowed = 5 * 2 * (std::ldexp(1, -11) + 2e-5);
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{B - 1}, std::int64_t{B}, of.stored, tokens}) {
        SCOPED_TRACE(fmt::format("{} stored, {} in the tail, {} queries from {}", of.stored, of.tail, T, first));
        expect_same(causal(*cuda, cache.on_cuda(), q, T, 4, first), causal(*cpu, cache.on_cpu(), q, T, 4, first), d,
                    allowed);
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::testing
