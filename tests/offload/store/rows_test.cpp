#include "offload/store/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "offload/error.h"
#include "offload/store/store.h"
#include "tests/support/each_target.h"

namespace hayloft::offload {
namespace {

// Rows [tokens][2 d] of every kind that there is: any bits, well spread, far from zero, all zero, all alike, outliers.
std::vector<f16> some_rows(int tokens, int d) {
  std::mt19937 random(static_cast<unsigned>(tokens * 31 + d));
  std::normal_distribution<float> normal;
  std::vector<f16> rows(static_cast<std::size_t>(tokens * 2 * d));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t c = i % static_cast<std::size_t>(2 * d), t = i / static_cast<std::size_t>(2 * d);
    const float x = normal(random);
    rows[i] = to_f16(x);
    if (c % 7 == 1) rows[i] = to_f16(40 + x / 8);
    if (c % 7 == 2) rows[i] = {0};
    if (c % 7 == 3) rows[i] = to_f16(-2.75f);
    if (c % 7 == 4) rows[i] = to_f16(x * 1e-6f);
    if (c % 7 == 5 && t % 5 == 0) rows[i] = to_f16(x * 3000);
    if (c % 7 == 6) rows[i] = {static_cast<std::uint16_t>(t % 3 == 0 ? 0x8000 : 0)};
    if (t % 97 == 3) rows[i] = {static_cast<std::uint16_t>(random())};  // infinity and NaN as well
  }
  return rows;
}

std::vector<f16> well_spread_rows(int tokens, int d, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<f16> rows(static_cast<std::size_t>(tokens * 2 * d));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto c = static_cast<int>(i % static_cast<std::size_t>(2 * d));
    rows[i] = to_f16(normal(random) + (c % 16 == 3 && c < d ? 60.0f : 0.0f));  // one component of K in 16 lies far off
  }
  return rows;
}

BlockLayout layout_of(RowFormat format, int d, int B, int heads = 1) {
  return BlockLayout({.layers = 1,
                      .kv_heads = heads,
                      .head_dim = d,
                      .block_tokens = B,
                      .columns = ColumnFormat::int4,
                      .rows = format});
}

class RowsOfEachTarget : public test::EachTarget {};

TEST_P(RowsOfEachTarget, EveryInstructionSetWritesAndReadsTheRowsThatTheScalarFunctionsDefine) {
  for (const RowFormat format : {RowFormat::int8, RowFormat::int4}) {
    for (const int d : {8, 40, 64, 80, 256, 512}) {
      for (const int B : {16, 256, 2048}) {
        for (const int tokens : {1, B / 2 + 3, B}) {
          SCOPED_TRACE(fmt::format("{} d={} B={} tokens={}", name(format), d, B, tokens));
          const BlockLayout layout = layout_of(format, d, B, 2);
          const std::vector<f16> rows = some_rows(tokens, d);
          std::vector<std::byte> block(layout.block_bytes);
          fill_block(layout, block.data(), 1, rows.data(), 2 * d, tokens);
          std::vector<f16> read(rows.size());
          read_rows(layout, block.data(), 1, 0, tokens, read.data());
          const int group = elements_per_scale(format), together = tokens_per_range(B);
          for (int t = 0; t < tokens; ++t) {
            const int first = t / together * together, end = std::min(first + together, tokens);
            const ChannelRange* const ranges = channel_ranges(layout, block.data(), 1, t);
            const std::byte* const row =
                layout.row_data(block.data(), 1) + static_cast<std::uint64_t>(t) * layout.row_bytes;
            const auto at = [&](int token, int i) {
              return to_float(finite(rows[static_cast<std::size_t>(token * 2 * d + i)]));
            };
            if (t == first) {
              for (int c = 0; c < d; ++c) {
                float lo = at(first, c), hi = lo;
                for (int other = first; other < end; ++other) {
                  lo = std::min(lo, at(other, c));
                  hi = std::max(hi, at(other, c));
                }
                const ChannelRange range = channel_range(lo, hi);
                ASSERT_EQ(ranges[c].centre, range.centre);
                ASSERT_EQ(ranges[c].width, range.width);
              }
            }
            std::vector<float> x(static_cast<std::size_t>(2 * d));
            for (int i = 0; i < 2 * d; ++i) {
              x[i] = i < d ? (at(t, i) - to_float(ranges[i].centre)) / to_float(ranges[i].width) : at(t, i);
            }
            const auto* const scales = reinterpret_cast<const f16*>(row + row_scales_offset(layout));
            for (int half = 0; half < 2; ++half) {
              for (int from = 0; from < d; from += group) {
                const int count = std::min(group, d - from);
                const auto begin = x.begin() + half * d + from;
                const f16 scale =
                    row_scale(format, *std::min_element(begin, begin + count), *std::max_element(begin, begin + count));
                ASSERT_EQ(scales[half * key_scales(layout) + from / group], scale);
                for (int i = half * d + from; i < half * d + from + count; ++i) {
                  const int level = level_at(format, row, i);
                  ASSERT_EQ(level, row_level(format, x[i], scale)) << "token " << t << " element " << i;
                  ASSERT_EQ(read[static_cast<std::size_t>(t * 2 * d + i)],
                            half == 0 ? key_of_level(level, scale, ranges[i]) : value_of_level(level, scale))
                      << "token " << t << " element " << i;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(RowsOfEachTarget, KeysAreReadAloneAndFromAnySlotOn) {
  const int d = 48, B = 64;
  for (const RowFormat format : {RowFormat::int8, RowFormat::int4}) {
    const BlockLayout layout = layout_of(format, d, B);
    std::vector<std::byte> block(layout.block_bytes);
    const std::vector<f16> rows = some_rows(B, d);
    fill_block(layout, block.data(), 0, rows.data(), 2 * d, B);
    std::vector<f16> all(rows.size()), part(static_cast<std::size_t>(5 * 2 * d), f16{0x1234});
    read_rows(layout, block.data(), 0, 0, B, all.data());
    read_keys(layout, block.data(), 0, 17, 5, part.data());
    for (int t = 0; t < 5; ++t) {
      for (int i = 0; i < 2 * d; ++i) {
        const f16 expected = i < d ? all[static_cast<std::size_t>((17 + t) * 2 * d + i)] : f16{0x1234};
        EXPECT_EQ(part[static_cast<std::size_t>(t * 2 * d + i)], expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, RowsOfEachTarget, test::each_target(), test::target_name);

// The bound of rows.h, on finite numbers none of whose scales is subnormal.
TEST(RowsTest, WhatIsReadIsOffByAStepOfItsScaleAtMost) {
  for (const RowFormat format : {RowFormat::int8, RowFormat::int4}) {
    const int d = 128, B = 1024;
    const BlockLayout layout = layout_of(format, d, B);
    const std::vector<f16> rows = well_spread_rows(B, d, 5);
    std::vector<std::byte> block(layout.block_bytes);
    fill_block(layout, block.data(), 0, rows.data(), 2 * d, B);
    std::vector<f16> read(rows.size());
    read_rows(layout, block.data(), 0, 0, B, read.data());
    const int group = elements_per_scale(format);
    const float n = static_cast<float>(levels_below_zero(format));
    for (int t = 0; t < B; ++t) {
      const ChannelRange* const ranges = channel_ranges(layout, block.data(), 0, t);
      const auto* const scales =
          reinterpret_cast<const f16*>(layout.row_data(block.data(), 0) +
                                       static_cast<std::uint64_t>(t) * layout.row_bytes + row_scales_offset(layout));
      for (int i = 0; i < 2 * d; ++i) {
        const float scale = std::fabs(to_float(scales[i / d * key_scales(layout) + i % d / group]));
        const float width = i < d ? to_float(ranges[i].width) : 1;
        const float x = to_float(rows[static_cast<std::size_t>(t * 2 * d + i)]);
        const float y = to_float(read[static_cast<std::size_t>(t * 2 * d + i)]);
        const float rounding = std::ldexp(std::fabs(y), -11);  // of what is read to f16
        EXPECT_LE(std::fabs(x - y), scale * width * (1 + std::ldexp(n, -11)) * 1.0001f + rounding) << t << ' ' << i;
      }
    }
  }
}

// Ranges keep precision: a component that lies far off does not cost the others their precision.
TEST(RowsTest, AComponentFarFromZeroDoesNotCostItsNeighboursPrecision) {
  const int d = 64, B = 256;
  const BlockLayout layout = layout_of(RowFormat::int4, d, B);
  const std::vector<f16> rows = well_spread_rows(B, d, 9);
  std::vector<std::byte> block(layout.block_bytes);
  fill_block(layout, block.data(), 0, rows.data(), 2 * d, B);
  std::vector<f16> read(rows.size());
  read_rows(layout, block.data(), 0, 0, B, read.data());
  double squares = 0;
  for (int t = 0; t < B; ++t) {
    for (int c = 0; c < d; ++c) {
      const auto i = static_cast<std::size_t>(t * 2 * d + c);
      squares += std::pow(to_float(rows[i]) - to_float(read[i]), 2);
    }
  }
  // Steps of 4 / 8 of a normal component's spread at most: errors of a quarter of that on average, far below the 60 / 8
  // / sqrt(12) that a scale shared with a component at 60 would leave.
  EXPECT_LT(std::sqrt(squares / (B * d)), 0.3);
}

TEST(RowsTest, ABlockOfIntegerRowsTakesWhatItsFormatSays) {
  const auto bytes = [](RowFormat format, int d) { return layout_of(format, d, 4096).row_bytes; };
  EXPECT_EQ(bytes(RowFormat::f16, 128), 512u);
  EXPECT_EQ(bytes(RowFormat::int8, 128), 2 * 128 + 2 * 2 * 2u);
  EXPECT_EQ(bytes(RowFormat::int4, 128), 128 + 2 * 4 * 2u);
  EXPECT_EQ(bytes(RowFormat::int8, 64), 2 * 64 + 2 * 2 + 4u);  // filled up to a multiple of 8
  EXPECT_EQ(bytes(RowFormat::int4, 80), 80 + 2 * 3 * 2 + 4u);
  const BlockLayout layout = layout_of(RowFormat::int8, 128, 4096);
  EXPECT_EQ(layout.value_sum_offset - layout.ranges_offset, 4u * 128 * 4);
  EXPECT_EQ(layout.columns_offset, 4096u * 264);
}

}  // namespace
}  // namespace hayloft::offload
