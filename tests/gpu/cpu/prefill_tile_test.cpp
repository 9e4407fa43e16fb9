#include "gpu/cpu/prefill_tile.h"

#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/attention_state.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/each_target.h"

// Tests tiles of keys and values, and rows of queries against them.
namespace hayloft::gpu {
namespace {

using testing::normal;

hwy::AlignedFreeUniquePtr<float[]> floats(std::size_t n, float filled) {
  auto memory = hwy::AllocateAligned<float>(n);
  std::fill_n(memory.get(), n, filled);
  return memory;
}

// Fills a tile with n rows [K | V]; its rest holds what would spoil everything.
struct Filled {
  Filled(int keys, int head_dim) : n(keys), d(head_dim) {
    const auto values = normal(static_cast<std::size_t>(2 * n * d), 1);
    for (const float each : values) rows.push_back(to_f16(each));
    const float spoils = std::numeric_limits<float>::quiet_NaN();
    memory = floats(KeyTile::key_floats(d) + KeyTile::value_floats(d), spoils);
    tile = {memory.get(), memory.get() + KeyTile::key_floats(d), d};
    for (int at = 0; at < n; at += kPackedKeys) {
      const f16* listed[kPackedKeys];
      const int count = std::min(kPackedKeys, n - at);
      for (int i = 0; i < count; ++i) listed[i] = rows.data() + std::int64_t{at + i} * 2 * d;
      pack_keys(listed, count, at, tile);
    }
  }
  double key(int row, int i) const { return to_float(rows[static_cast<std::size_t>(row * 2 * d + i)]); }
  double value(int row, int i) const { return key(row, d + i); }

  int n, d;
  std::vector<f16> rows;
  hwy::AlignedFreeUniquePtr<float[]> memory;
  KeyTile tile;
};

struct Queries {
  Queries(int count, int group, int head_dim)
      : padded(static_cast<std::size_t>(padded_queries(count))), d(static_cast<std::size_t>(head_dim)) {
    q = normal(padded * d, 2, 1 / std::sqrt(head_dim));
    weighted.resize(padded * static_cast<std::size_t>(weighted_stride(head_dim)));
    max.resize(padded, AttentionState{}.max);
    sum.resize(padded);
    scores.resize(std::size_t{kPaddedQueries} * kTileKeys);
    view = {q.data(), count, group, weighted.data(), max.data(), sum.data(), scores.data()};
  }
  double score(const Filled& of, int row, int key) const {
    double sum_of = 0;
    for (std::size_t i = 0; i < d; ++i)
      sum_of += static_cast<double>(q[static_cast<std::size_t>(row) * d + i]) * of.key(key, static_cast<int>(i));
    return sum_of;
  }

  std::size_t padded, d;
  std::vector<float> q, weighted, max, sum, scores;
  TileQueries view;
};

// Scores are sums of d products in f32, of queries of length about 1 and keys of about sqrt(d).
double score_bound(int d) {
  return d * 0x1p-24 * 4 * std::sqrt(d);
}

TEST(PrefillTile, ScoresAreThoseOfTheKeys) {
  test::for_each_target([] {
    for (const int d : {8, 40, 64, 256, 512}) {
      const Filled filled(77, d);
      const Queries queries(31, 1, d);
      auto scores = floats(queries.padded * kTileKeys, 0);
      score_tile(filled.tile, filled.n, queries.q.data(), 31, scores.get());
      for (int row = 0; row < 31; ++row) {
        for (int key = 0; key < filled.n; ++key)
          ASSERT_NEAR(scores[row * kTileKeys + key], queries.score(filled, row, key), score_bound(d))
              << row << ' ' << key;
      }
    }
  });
}

TEST(PrefillTile, ARowSeesItsKeysAndNoOthers) {
  test::for_each_target([] {
    struct Case {
      int n, rows, group;
      std::int64_t begin, end;
    };
    for (const int d : {24, 64, 128}) {
      // These see all of it; a triangle; a band; a few keys; a tile that only the last tokens reach.
      for (const Case& c : {Case{256, 50, 1, -1000, 1000}, Case{256, 255, 3, -1000, 180}, Case{200, 96, 4, -12, 5},
                            Case{3, 7, 7, -9, 3}, Case{64, 40, 2, -1000, -15}}) {
        const Filled filled(c.n, d);
        Queries queries(c.rows, c.group, d);
        attend_tile(filled.tile, c.n, c.begin, c.end, queries.view);
        for (int row = 0; row < c.rows; ++row) {
          const auto begin = std::clamp<std::int64_t>(c.begin + row / c.group, 0, c.n);
          const auto end = std::clamp<std::int64_t>(c.end + row / c.group, begin, c.n);
          const auto at = static_cast<std::size_t>(row);
          if (begin == end) {
            ASSERT_EQ(queries.sum[at], 0);
            ASSERT_EQ(queries.max[at], AttentionState{}.max);
          }
          std::vector<double> wanted(static_cast<std::size_t>(d));
          double sum = 0;
          for (auto key = static_cast<int>(begin); key < static_cast<int>(end); ++key) {
            const double p = std::exp(queries.score(filled, row, key) - static_cast<double>(queries.max[at]));
            ASSERT_LE(p, 1 + 2 * score_bound(d));
            sum += p;
            for (int i = 0; i < d; ++i) wanted[static_cast<std::size_t>(i)] += p * filled.value(key, i);
          }
          // Each weight is off by its score's error, and each sum of n terms by n roundings.
          const double off = 2 * score_bound(d) + c.n * 0x1p-23;
          ASSERT_NEAR(queries.sum[at], sum, off * sum);
          for (int i = 0; i < d; ++i) {
            const float got =
                queries.weighted[at * static_cast<std::size_t>(weighted_stride(d)) + static_cast<std::size_t>(i)];
            ASSERT_NEAR(got, wanted[static_cast<std::size_t>(i)], off * sum * 5) << "values are below 5";
          }
        }
      }
    }
  });
}

TEST(PrefillTile, WhatARowGetsDoesNotDependOnTheOthers) {
  test::for_each_target([] {
    constexpr int d = 64, n = 150;
    const Filled filled(n, d);
    Queries all(57, 1, d);
    attend_tile(filled.tile, n, -30, 20, all.view);
    attend_tile(filled.tile, n, -1000, 1000, all.view);  // and on with what was seen
    for (int row = 0; row < 57; ++row) {
      Queries one(1, 1, d);
      std::copy_n(all.q.begin() + row * d, d, one.q.begin());
      attend_tile(filled.tile, n, -30 + row, 20 + row, one.view);
      attend_tile(filled.tile, n, -1000, 1000, one.view);
      ASSERT_EQ(one.max[0], all.max[static_cast<std::size_t>(row)]);
      ASSERT_EQ(one.sum[0], all.sum[static_cast<std::size_t>(row)]);
      ASSERT_TRUE(std::equal(one.weighted.begin(), one.weighted.begin() + d,
                             all.weighted.begin() + std::ptrdiff_t{row} * weighted_stride(d)));
    }
  });
}

TEST(PrefillTile, BlocksOfScoresAreSummedUnderARowsLargest) {
  test::for_each_target([] {
    constexpr int rows = 3, columns = 64, block = 16, tiles = 2;
    auto s = floats(rows * kTileKeys, 0);
    const auto scores = normal(rows * columns, 5, 4);
    for (int row = 0; row < rows; ++row)
      std::copy_n(scores.begin() + row * columns, columns, s.get() + row * kTileKeys);
    std::vector<float> max(rows * tiles), sum(rows * tiles * (kTileKeys / block));
    softmax_blocks({s.get(), rows, columns, kTileKeys, block, tiles, max.data() + 1, sum.data() + kTileKeys / block});
    for (int row = 0; row < rows; ++row) {
      const float* const from = scores.data() + row * columns;
      const float largest = *std::max_element(from, from + columns);
      EXPECT_EQ(max[static_cast<std::size_t>(row * tiles + 1)], largest);
      for (int b = 0; b < columns / block; ++b) {
        double wanted = 0;
        for (int i = 0; i < block; ++i) wanted += std::exp(static_cast<double>(from[b * block + i]) - largest);
        EXPECT_NEAR(sum[static_cast<std::size_t>((row * tiles + 1) * (kTileKeys / block) + b)], wanted,
                    wanted * 0x1p-18);
      }
    }
  });
}

}  // namespace
}  // namespace hayloft::gpu
