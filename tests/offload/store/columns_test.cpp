#include "offload/store/columns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "offload/store/store.h"

// Holds every column format to its row of the table.
namespace hayloft::offload {
namespace {

// The largest error of a key that a group's largest magnitude allows: half a level, or half a cell of the planes.
float allowed_column_error(const ColumnTraits& traits, float largest) {
  if (traits.exact) return 0;
  const float steps =
      traits.largest_level > 0 ? static_cast<float>(traits.largest_level) : static_cast<float>(1 << (traits.bits - 1));
  return largest / steps / 2 * 1.01f;
}

TEST(ColumnFormats, NamesAndNumbersGoThereAndBack) {
  std::set<std::string> names, rates;
  for (const ColumnFormat format : all_column_formats()) {
    EXPECT_EQ(column_format(name(format)), format);
    EXPECT_TRUE(names.insert(name(format)).second);
    EXPECT_TRUE(rates.insert(traits_of(format).rate).second) << "two rates of that name: " << traits_of(format).rate;
  }
  EXPECT_EQ(column_format("int5"), std::nullopt);
  EXPECT_FALSE(is_column_format(static_cast<ColumnFormat>(column_format_count)));
  // Saved contexts have these numbers (docs/design.md).
  EXPECT_EQ(static_cast<int>(ColumnFormat::f16), 0);
  EXPECT_EQ(static_cast<int>(ColumnFormat::int8), 1);
  EXPECT_EQ(static_cast<int>(ColumnFormat::int4), 2);
  EXPECT_EQ(static_cast<int>(ColumnFormat::planes), 3);
}

TEST(ColumnFormats, AreChosenByTheirValue) {
  for (const ColumnFormat format : all_column_formats()) {
    int calls = 0;
    with_column_format(format, [&](auto chosen) {
      ++calls;
      EXPECT_EQ(decltype(chosen)::value, format);
    });
    EXPECT_EQ(calls, 1);
  }
}

TEST(ColumnFormats, KeysComeBackAsNearAsTheTableSays) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const ColumnTraits& traits : column_traits) {
    for (const int d : {8, 40}) {
      for (const int B : {16, 64, 512}) {
        for (const int tokens : {1, B / 2 + 1, B}) {
          SCOPED_TRACE(::testing::Message() << traits.name << ", d " << d << ", " << tokens << " of " << B);
          const BlockLayout layout(
              {.layers = 1, .kv_heads = 2, .head_dim = d, .block_tokens = B, .columns = traits.format});
          std::vector<f16> rows(static_cast<std::size_t>(tokens * 2 * d));
          for (f16& x : rows) x = to_f16(normal(random));
          std::vector<std::byte> block(layout.block_bytes), again(layout.block_bytes);
          fill_block(layout, block.data(), 1, rows.data(), 2 * d, tokens);
          fill_block(layout, again.data(), 1, rows.data(), 2 * d, tokens);
          EXPECT_EQ(block, again);
          EXPECT_TRUE(std::all_of(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(layout.head_bytes),
                                  [](std::byte byte) { return byte == std::byte{0}; }));
          const auto key = [&](int t, int c) { return to_float(rows[static_cast<std::size_t>(t * 2 * d + c)]); };
          const int group = tokens_per_scale(traits.format, B);
          for (int c = 0; c < d; ++c) {
            for (int first = 0; first < tokens; first += group) {
              const int end = std::min(tokens, first + group);
              float largest = 0;
              for (int t = first; t < end; ++t) largest = std::max(largest, std::fabs(key(t, c)));
              for (int t = first; t < end; ++t) {
                EXPECT_NEAR(column_key(layout, block.data(), 1, c, t), key(t, c), allowed_column_error(traits, largest))
                    << t;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::offload
