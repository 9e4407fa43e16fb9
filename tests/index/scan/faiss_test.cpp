#include <gtest/gtest.h>

#include <set>

#include "index/scan/search.h"
#include "offload/error.h"
#include "tests/index/scan/column_fixture.h"

namespace hayloft::index {
namespace {

using testing::HandmadeLayer;
using testing::normal_keys;

// Exact kNN of the whole key, by both engines.
struct Engines {
  Engines(const HandmadeLayer& store, int group, unsigned seed)
      : layer(store),
        d(layer.view().layout->head_dim),
        kv_heads(layer.view().layout->kv_heads),
        query_heads(group * kv_heads),
        components(static_cast<std::size_t>(kv_heads * d)),
        query(static_cast<std::size_t>(query_heads * d)) {
    for (int head = 0; head < kv_heads; ++head) {
      std::iota(components.begin() + head * d, components.begin() + (head + 1) * d, 0);
    }
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    for (float& x : query) x = normal(engine);
  }

  std::vector<std::int32_t> own(std::int64_t limit, int k) const {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(query_heads) * static_cast<std::size_t>(k));
    const ColumnSearch search{
        {.rank = d, .per = SelectPer::query_head}, query_heads, components.data(), query.data(), limit, k};
    search_columns(layer.view(), search, threads, {positions.data(), nullptr, nullptr, nullptr});
    return positions;
  }

  std::vector<std::int32_t> faiss(std::int64_t limit, int k) const {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(query_heads) * static_cast<std::size_t>(k));
    faiss_flat_search(layer.view(), query.data(), query_heads, limit, k, threads, positions.data());
    return positions;
  }

  double product(int h, std::int64_t position) const {
    const f16* key = layer.view().row(h / (query_heads / kv_heads), position, nullptr);
    double sum = 0;
    for (int c = 0; c < d; ++c)
      sum += static_cast<double>(query[static_cast<std::size_t>(h * d + c)]) * to_float(key[c]);
    return sum;
  }

  const HandmadeLayer& layer;
  int d;
  int kv_heads;
  int query_heads;
  std::vector<std::int32_t> components;
  std::vector<float> query;
  offload::Threads threads{2};
};

TEST(FaissFlatSearch, FindsTheSameAsTheOwnKernel) {
  for (const auto& [d, group, block, tokens] : {std::tuple{8, 1, 16, 500},
                                                {64, 4, 256, 5000},
                                                {128, 8, 4096, 9000},
                                                {256, 2, 1024, 3001},
                                                {32, 24, 512, 2000}}) {
    const HandmadeLayer layer({.layers = 1, .kv_heads = 2, .head_dim = d, .block_tokens = block}, tokens,
                              normal_keys(3));
    const Engines engines(layer, group, 4);
    const std::int64_t limit = tokens - tokens / 7;
    for (const int k : {1, 50, static_cast<int>(limit)}) {
      const auto own = engines.own(limit, k);
      const auto faiss = engines.faiss(limit, k);
      for (int h = 0; h < engines.query_heads; ++h) {
        const std::set<std::int32_t> a(own.begin() + h * k, own.begin() + (h + 1) * k);
        const std::set<std::int32_t> b(faiss.begin() + h * k, faiss.begin() + (h + 1) * k);
        ASSERT_EQ(a.size(), static_cast<std::size_t>(k));
        ASSERT_EQ(b.size(), static_cast<std::size_t>(k));
        ASSERT_TRUE(std::is_sorted(faiss.begin() + h * k, faiss.begin() + (h + 1) * k));
        // The two add up in different orders: a position only one of them has must be level with the worst chosen, to
        // within d roundings of a sum of d products of two unit normals, each below 5 in magnitude, on either side.
        double worst = std::numeric_limits<double>::infinity();
        for (const std::int32_t p : a) worst = std::min(worst, engines.product(h, p));
        const double error = 2 * d * 0x1p-24 * d * 25;
        for (const std::int32_t p : b) {
          if (a.contains(p)) continue;
          EXPECT_NEAR(engines.product(h, p), worst, error) << "query head " << h << ", k " << k;
        }
      }
    }
  }
}

TEST(FaissFlatSearch, TiesGoToTheSmallerPositions) {
  // Sixteen different keys, over and over: whichever of equals Faiss keeps, the answer is the smallest of them. Blocks
  // longer than k, for which Faiss has two ways of keeping the best, by a heap below k = 100 and by partitions above.
  const auto normal = normal_keys(3);
  for (const int block : {128, 2048}) {
    const HandmadeLayer layer({.layers = 1, .kv_heads = 1, .head_dim = 32, .block_tokens = block}, 9000,
                              [&](int, std::int64_t t, int c) { return normal(0, t * 5 % 16, c); });
    const Engines engines(layer, 2, 4);
    for (const int k : {1, 7, 99, 100, 130, 562, 563, 564, 1900, 4500}) {
      EXPECT_EQ(engines.faiss(8990, k), engines.own(8990, k)) << "k " << k << ", B " << block;
    }
  }
}

TEST(FaissFlatSearch, RefusesWhatIsOutOfRange) {
  const HandmadeLayer layer({.layers = 1, .kv_heads = 2, .head_dim = 8, .block_tokens = 16}, 40, normal_keys(3));
  const std::vector<float> query(16);
  std::vector<std::int32_t> positions(200);
  const offload::Threads threads(1);
  EXPECT_THROW(faiss_flat_search(layer.view(), query.data(), 3, 40, 1, threads, positions.data()), Error);
  EXPECT_THROW(faiss_flat_search(layer.view(), query.data(), 2, 41, 1, threads, positions.data()), Error);
  EXPECT_THROW(faiss_flat_search(layer.view(), query.data(), 2, 40, 41, threads, positions.data()), Error);
}

}  // namespace
}  // namespace hayloft::index
