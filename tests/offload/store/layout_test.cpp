#include "offload/store/layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "offload/store/store.h"
#include "tests/support/each_target.h"
#include "tests/support/refusal.h"

namespace hayloft::offload {
namespace {

using test::message_of;

StoreShape shape_of(int kv_heads, int d, int B, ColumnFormat columns = ColumnFormat::f16) {
  StoreShape shape;
  shape.layers = 1;
  shape.kv_heads = kv_heads;
  shape.head_dim = d;
  shape.block_tokens = B;
  shape.columns = columns;
  return shape;
}

TEST(BlockLayout, AnEightHeadBlockOf128ComponentsIsJustOver25MiB) {
  const BlockLayout layout(shape_of(8, 128, 4096));
  EXPECT_EQ(layout.row_bytes, 512u);
  EXPECT_EQ(layout.column_bytes, 8192u);
  EXPECT_EQ(layout.scale_bytes, 0u);
  EXPECT_EQ(layout.columns_offset, 4096u * 512u);
  EXPECT_EQ(layout.value_sum_offset, 4096u * (512u + 256u));
  EXPECT_EQ(layout.head_bytes, 4096u * (512u + 256u) + 512u);
  EXPECT_EQ(layout.block_bytes, 8 * layout.head_bytes);
}

TEST(BlockLayout, IntegerColumnsCostTheirBitsAndAScalePer64Tokens) {
  // An integer mirror adds to the rows at d = 128 a quarter for int8, an eighth for int4, and 2 bytes per 64 tokens of
  // a column.
  const BlockLayout int8(shape_of(1, 128, 4096, ColumnFormat::int8));
  EXPECT_EQ(int8.column_bytes, 4096u);
  EXPECT_EQ(int8.scale_bytes, 128u);
  EXPECT_EQ(int8.value_sum_offset - int8.columns_offset, 128u * (4096u + 128u));
  const BlockLayout int4(shape_of(1, 128, 4096, ColumnFormat::int4));
  EXPECT_EQ(int4.column_bytes, 2048u);
  EXPECT_EQ(int4.scale_bytes, 128u);
  // A block shorter than 64 tokens still has one scale per column.
  EXPECT_EQ(BlockLayout(shape_of(1, 8, 16, ColumnFormat::int4)).scale_bytes, 2u);
}

TEST(BlockLayout, PartsFollowEachOtherAlignedWithoutOverlapInEveryShape) {
  for (const ColumnFormat format : all_column_formats()) {
    for (int d = 8; d <= most_head_dim; d += 8) {
      for (int B = 16; B <= 4096; B *= 2) {
        SCOPED_TRACE(fmt::format("{} d={} B={}", name(format), d, B));
        const BlockLayout layout(shape_of(3, d, B, format));
        const std::uint64_t components = static_cast<std::uint64_t>(d);
        const std::uint64_t tokens = static_cast<std::uint64_t>(B);
        EXPECT_GE(layout.columns_offset, tokens * layout.row_bytes);
        EXPECT_GE(layout.scales_offset, layout.columns_offset + components * layout.column_bytes);
        EXPECT_GE(layout.value_sum_offset, layout.scales_offset + components * layout.scale_bytes);
        EXPECT_GE(layout.head_bytes, layout.value_sum_offset + components * sizeof(float));
        EXPECT_LT(layout.head_bytes, tokens * layout.row_bytes +
                                         components * (layout.column_bytes + layout.scale_bytes + sizeof(float)) +
                                         4 * 64);
        for (const std::uint64_t offset :
             {layout.columns_offset, layout.scales_offset, layout.value_sum_offset, layout.head_bytes}) {
          EXPECT_EQ(offset % 64, 0u);
        }
        EXPECT_EQ(layout.block_bytes, 3 * layout.head_bytes);
      }
    }
  }
}

TEST(BlockLayout, PointersLandWhereTheOffsetsSay) {
  const BlockLayout layout(shape_of(2, 16, 64, ColumnFormat::int8));
  const std::vector<std::byte> block(layout.block_bytes);
  const std::byte* const head = block.data() + layout.head_bytes;
  EXPECT_EQ(static_cast<const void*>(layout.row_data(block.data(), 1)), head);
  EXPECT_EQ(layout.column(block.data(), 1, 3), head + layout.columns_offset + 3 * 64);
  EXPECT_EQ(static_cast<const void*>(layout.scales(block.data(), 1, 3)), head + layout.scales_offset + 3 * 2);
  EXPECT_EQ(static_cast<const void*>(layout.value_sum(block.data(), 1)), head + layout.value_sum_offset);
}

TEST(BlockLayout, AShapeOutOfRangeIsAnErrorThatNamesFieldAndValue) {
  StoreShape none = shape_of(1, 64, 64);
  none.layers = -1;
  const std::vector<std::pair<StoreShape, std::string>> cases = {
      {none, "layers is -1"},
      {shape_of(0, 64, 64), "kv_heads is 0"},
      {shape_of(-1, 64, 64), "kv_heads is -1"},
      {shape_of(1, 0, 64), "head_dim is 0"},
      {shape_of(1, 520, 64), "head_dim is 520"},
      {shape_of(1, 12, 64), "head_dim is 12, must be a multiple of 8"},
      {shape_of(1, 64, 8), "block_tokens is 8"},
      {shape_of(1, 64, 48), "block_tokens is 48, must be a power of two"},
      {shape_of(1, 64, 1 << 21), "block_tokens is 2097152"},
      {shape_of(1, 64, 64, static_cast<ColumnFormat>(9)), "9 is not a column format"},
  };
  for (const auto& [shape, text] : cases) {
    const std::string message = message_of([&] { BlockLayout{shape}; });
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }
}

// A block, exactly as long as it must be, so that a sanitizer sees writes past its end.
struct Block {
  explicit Block(const BlockLayout& of) : layout(of), bytes(std::make_unique<std::byte[]>(of.block_bytes)) {}

  f16 column(int head, int component, int token) const {
    f16 value;
    std::memcpy(&value, layout.column(bytes.get(), head, component) + token * sizeof(f16), sizeof value);
    return value;
  }

  const BlockLayout& layout;
  std::unique_ptr<std::byte[]> bytes;
};

// f16 [tokens][stride] of all kinds of values, subnormals, infinities and NaN left out.
std::vector<f16> random_rows(int tokens, std::int64_t stride, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<f16> rows(static_cast<std::size_t>(tokens * stride));
  for (f16& x : rows) {
    x.bits = static_cast<std::uint16_t>(random());
    if ((x.bits & 0x7c00) == 0x7c00) x.bits &= 0x83ff;  // a subnormal instead of infinity or NaN
  }
  return rows;
}

// The plain meaning of fill_block, checked element by element.
void expect_filled(const Block& block, int head, const std::vector<f16>& rows, std::int64_t stride, int tokens) {
  const BlockLayout& layout = block.layout;
  const int d = layout.head_dim;
  const f16* const got_rows = f16_row(layout, block.bytes.get(), head, 0);
  std::vector<double> sum(static_cast<std::size_t>(d));
  for (int t = 0; t < layout.block_tokens; ++t) {
    for (int c = 0; c < 2 * d; ++c) {
      const f16 want = t < tokens ? rows[static_cast<std::size_t>(t * stride + c)] : f16{0};
      ASSERT_EQ(got_rows[t * 2 * d + c], want) << "row " << t << ", element " << c;
      if (c < d) {
        ASSERT_EQ(block.column(head, c, t), want) << "column " << c << ", token " << t;
      } else {
        sum[static_cast<std::size_t>(c - d)] += to_float(want);
      }
    }
  }
  const float* const got_sum = layout.value_sum(block.bytes.get(), head);
  for (int c = 0; c < d; ++c) {
    ASSERT_EQ(got_sum[c], static_cast<float>(sum[static_cast<std::size_t>(c)])) << "sum of component " << c;
  }
}

class LayoutOfEachTarget : public test::EachTarget {};

TEST_P(LayoutOfEachTarget, ColumnsAreTheTransposedKeysAndSumsAreExactInDouble) {
  for (const int d : {8, 24, 64, 128, 256, 512}) {
    for (const int B : {16, 64, 256}) {
      const BlockLayout layout(shape_of(2, d, B));
      for (const int tokens : {0, 1, 7, 8, 15, B / 2 + 3, B}) {
        SCOPED_TRACE(fmt::format("d={} B={} tokens={}", d, B, tokens));
        const Block block(layout);
        const std::int64_t stride = 2 * d + 8;
        const std::vector<f16> rows = random_rows(tokens, stride, static_cast<unsigned>(d + B + tokens));
        fill_block(layout, block.bytes.get(), 1, rows.data(), stride, tokens);
        expect_filled(block, 1, rows, stride, tokens);
        expect_filled(block, 0, {}, 0, 0);  // the other head is untouched
      }
    }
  }
}

TEST_P(LayoutOfEachTarget, EveryHalfIsWidenedExactlyForTheSum) {
  constexpr int d = 256, B = 16;
  const BlockLayout layout(shape_of(1, d, B));
  for (std::uint32_t first = 0; first < 0x10000; first += d) {
    std::vector<f16> row(2 * d);
    for (int c = 0; c < d; ++c)
      row[static_cast<std::size_t>(d + c)].bits = static_cast<std::uint16_t>(first + static_cast<std::uint32_t>(c));
    const Block block(layout);
    fill_block(layout, block.bytes.get(), 0, row.data(), 2 * d, 1);
    for (int c = 0; c < d; ++c) {
      const float want = to_float(row[static_cast<std::size_t>(d + c)]);
      const float got = layout.value_sum(block.bytes.get(), 0)[c];
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << std::hex << first + static_cast<std::uint32_t>(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(FillBlock, LayoutOfEachTarget, test::each_target(), test::target_name);

TEST(FillBlock, RowsAlreadyInPlaceAreLeftThere) {
  constexpr int d = 64, B = 64;
  const BlockLayout layout(shape_of(1, d, B));
  const Block block(layout);
  const std::vector<f16> rows = random_rows(B, 2 * d, 5);
  std::memcpy(block.bytes.get(), rows.data(), rows.size() * sizeof(f16));
  fill_block(layout, block.bytes.get(), 0, f16_row(layout, block.bytes.get(), 0, 0), 2 * d, B);
  expect_filled(block, 0, rows, 2 * d, B);
}

TEST(FillBlock, RefusesWhatItCannotDo) {
  const BlockLayout f16_layout(shape_of(1, 8, 16));
  const Block block(f16_layout);
  const std::vector<f16> rows = random_rows(17, 16, 6);
  EXPECT_THROW(fill_block(f16_layout, block.bytes.get(), 1, rows.data(), 16, 16), std::logic_error);
  EXPECT_THROW(fill_block(f16_layout, block.bytes.get(), 0, rows.data(), 16, 17), std::logic_error);
}

}  // namespace
}  // namespace hayloft::offload
