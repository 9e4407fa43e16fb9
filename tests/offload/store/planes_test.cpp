#include "offload/store/planes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "offload/error.h"
#include "offload/store/store.h"
#include "tests/support/each_target.h"
#include "tests/support/random_half.h"

namespace hayloft::offload {
namespace {

using test::any_half;

// Keys [tokens][d] of every kind that there is: any bits, small ones, all alike, all but one alike, well spread.
std::vector<f16> some_keys(int tokens, int d) {
  std::mt19937 random(static_cast<unsigned>(tokens + d));
  std::normal_distribution<float> normal(3, 1);
  std::vector<f16> keys(static_cast<std::size_t>(tokens * d));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t c = i % static_cast<std::size_t>(d);
    keys[i] = any_half(random);
    if (c % 6 == 1) keys[i].bits &= 0x8003;
    if (c % 6 == 2) keys[i] = to_f16(-2.75f);
    if (c % 6 == 3) keys[i] = to_f16(normal(random));
    if (c % 6 == 4) keys[i].bits = static_cast<std::uint16_t>(i % 2 == 0 ? 0x8000 : 0);
    if (c % 6 == 5) keys[i] = to_f16(i / static_cast<std::size_t>(d) == 7 ? 1000.0f : 1.0f);
  }
  return keys;
}

class PlanesOfEachTarget : public test::EachTarget {};

TEST_P(PlanesOfEachTarget, EveryInstructionSetWritesThePlanesThatTheScalarFunctionsDefine) {
  for (const int d : {8, 80, 256, 512}) {
    for (const int B : {16, 64, 256, 1024}) {
      for (const int tokens : {0, 1, 7, B / 2 + 3, B - 1, B}) {
        SCOPED_TRACE(fmt::format("d={} B={} tokens={}", d, B, tokens));
        const BlockLayout layout(
            {.layers = 1, .kv_heads = 1, .head_dim = d, .block_tokens = B, .columns = ColumnFormat::planes});
        const std::vector<f16> keys = some_keys(tokens, d);
        std::vector<f16> rows(static_cast<std::size_t>(tokens * 2 * d));
        for (int t = 0; t < tokens; ++t) {
          for (int c = 0; c < d; ++c) {
            rows[static_cast<std::size_t>(t * 2 * d + c)] = keys[static_cast<std::size_t>(t * d + c)];
          }
        }
        std::vector<std::byte> block(layout.block_bytes, std::byte{0xa5});
        fill_block(layout, block.data(), 0, rows.data(), 2 * d, tokens);
        const int group = tokens_per_scale(layout.columns, B);
        for (int c = 0; c < d; ++c) {
          const auto key = [&](int t) { return finite(keys[static_cast<std::size_t>(t * d + c)]); };
          const std::byte* const column = layout.column(block.data(), 0, c);
          for (int first = 0; first < tokens; first += group) {
            float lo = to_float(key(first)), hi = lo;
            for (int t = first; t < std::min(tokens, first + group); ++t) {
              lo = std::min(lo, to_float(key(t)));
              hi = std::max(hi, to_float(key(t)));
            }
            const PlaneRange range = plane_range(lo, hi);
            const PlaneRange written = plane_ranges(layout, block.data(), 0, c)[first / group];
            ASSERT_EQ(written.centre, range.centre) << "component " << c;
            ASSERT_EQ(written.half, range.half) << "component " << c;
            for (int t = first; t < first + group; ++t) {  // a group that ends early ends in zeros
              ASSERT_EQ(code_at(layout, column, t), t < tokens ? plane_code(key(t), range) : 0)
                  << "component " << c << ", token " << t;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Planes, PlanesOfEachTarget, test::each_target(), test::target_name);

TEST(Planes, FourPlanesAreWithinASixteenthOfTheRange) {
  std::mt19937 random(5);
  for (int round = 0; round < 100000; ++round) {
    const f16 a = finite(any_half(random)), b = finite(any_half(random));
    const PlaneRange range = plane_range(std::min(to_float(a), to_float(b)), std::max(to_float(a), to_float(b)));
    for (const f16 x : {a, b}) {
      const float key = plane_key(plane_code(x, range), plane_count, range);
      // A code is that of x / half as it was rounded; a key is rounded once, to 2^-24 of what is at most 2 x 65504.
      const double rounding = 0x1p-22 * (std::fabs(to_float(range.centre)) + double{to_float(range.half)});
      ASSERT_LE(std::fabs(double{key} - to_float(x)), double{to_float(range.half)} / 16 + rounding)
          << std::hex << a.bits << " " << b.bits;
    }
  }
}

TEST(Planes, APrefixOfThePlanesIsTheCodeOfFewerCells) {
  const PlaneRange range = plane_range(-4, 4);
  for (float x = -4; x <= 4; x += 0.125f) {
    const int code = plane_code(to_f16(x), range);
    for (int planes = 1; planes <= plane_count; ++planes) {
      const float cells = static_cast<float>(1 << planes);
      const int cell = static_cast<int>(std::min(std::floor((x + 4) / 8 * cells), cells - 1));
      EXPECT_EQ(code >> (plane_count - planes), cell) << x;
      const float middle = -4 + 8 / cells * (static_cast<float>(cell) + 0.5f);
      EXPECT_EQ(plane_key(code, planes, range), middle * plane_step(planes) * cells) << x << ", " << planes;
    }
  }
}

TEST(Planes, KeysThatAreAllAlikeAreExact) {
  const PlaneRange range = plane_range(-2.75f, -2.75f);
  EXPECT_EQ(range.half.bits, 0);
  for (int planes = 1; planes <= plane_count; ++planes) {
    EXPECT_EQ(plane_key(plane_code(to_f16(-2.75f), range), planes, range), -2.75f);
  }
}

TEST(Planes, AStoreAddsUpTheSpreadOfItsBlocks) {
  const StoreShape shape{
      .layers = 1, .kv_heads = 2, .head_dim = 8, .block_tokens = 512, .columns = ColumnFormat::planes};
  const Topology topology;
  Arena arena(topology, ArenaOptions{std::uint64_t{1} << 26, "--host-memory", std::uint64_t{1} << 20, nullptr});
  Store store(arena, shape);
  std::vector<double> expected(16);
  for (int block = 0; block < 2; ++block) {
    const std::vector<f16> keys = some_keys(513, 16);
    BlockWriter writer = store.start_block();
    for (int head = 0; head < 2; ++head) fill_block(store.layout(), writer.data(), head, keys.data() + head, 16, 512);
    add_spread(store.layout(), writer.data(), expected.data());
    store.commit(0, std::move(writer), 512);
  }
  const LayerView view = store.layer(0);
  ASSERT_EQ(view.spread.size(), 16u);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(store.exact_spread(0)[i], expected[i]);
    EXPECT_EQ(view.spread[i], static_cast<float>(expected[i]));
  }
  EXPECT_GT(view.spread[0], 0);
  EXPECT_TRUE(Store(arena, {1, 2, 8, 512, ColumnFormat::int4}).layer(0).spread.empty());
}

}  // namespace
}  // namespace hayloft::offload
