#include "offload/store/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "offload/error.h"
#include "offload/store/store.h"
#include "tests/support/each_target.h"
#include "tests/support/random_half.h"

namespace hayloft::offload {
namespace {

using test::any_half;

constexpr ColumnFormat integer_formats[] = {ColumnFormat::int8, ColumnFormat::int4};

// One head of a block, filled from keys [tokens][d]; values are zero. What the block held before is `before`.
class FilledBlock {
 public:
  using Key = std::function<f16(int token, int component)>;

  FilledBlock(ColumnFormat format, int d, int B, int tokens, const Key& key, std::byte before = std::byte{0})
      : layout_({.layers = 1, .kv_heads = 1, .head_dim = d, .block_tokens = B, .columns = format}),
        bytes_(layout_.block_bytes, before) {
    std::vector<f16> rows(static_cast<std::size_t>(tokens) * 2 * static_cast<std::size_t>(d));
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < d; ++c) rows[static_cast<std::size_t>(t * 2 * d + c)] = key(t, c);
    }
    fill_block(layout_, bytes_.data(), 0, rows.data(), 2 * d, tokens);
  }

  int level(int component, int t) const {
    return level_at(layout_.columns, layout_.column(bytes_.data(), 0, component), t);
  }
  f16 scale(int component, int t) const {
    return layout_.scales(bytes_.data(), 0, component)[t / BlockLayout::scale_tokens];
  }
  std::byte byte(int component, int i) const { return layout_.column(bytes_.data(), 0, component)[i]; }
  double dequantised(int component, int t) const { return double{to_float(scale(component, t))} * level(component, t); }

 private:
  BlockLayout layout_;
  std::vector<std::byte> bytes_;
};

// Checks every level and scale of the tokens that were written against the scalar definition.
void expect_as_defined(const FilledBlock& block, ColumnFormat format, int d, int B, int tokens,
                       const FilledBlock::Key& key) {
  const int group = tokens_per_scale(format, B);
  for (int c = 0; c < d; ++c) {
    for (int start = 0; start < tokens; start += group) {
      f16 largest{0};
      for (int t = start; t < std::min(tokens, start + group); ++t) {
        const f16 x = finite(key(t, c));
        if (std::fabs(to_float(x)) > to_float(largest)) largest = {static_cast<std::uint16_t>(x.bits & 0x7fff)};
      }
      const f16 scale = scale_for(format, largest);
      ASSERT_EQ(block.scale(c, start), scale) << "component " << c << ", tokens from " << start;
      for (int t = start; t < start + group; ++t) {
        ASSERT_EQ(block.level(c, t), t < tokens ? quantise(key(t, c), scale) : 0)
            << "component " << c << ", token " << t;
      }
    }
  }
}

class QuantiseOfEachTarget : public test::EachTarget {};

TEST_P(QuantiseOfEachTarget, EveryInstructionSetWritesWhatTheScalarFunctionsDefine) {
  for (const ColumnFormat format : integer_formats) {
    for (const int d : {8, 80, 256, 512}) {
      for (const int B : {16, 32, 64, 256}) {
        for (const int tokens : {0, 1, 7, B / 2 + 3, B - 1, B}) {
          SCOPED_TRACE(fmt::format("{} d={} B={} tokens={}", name(format), d, B, tokens));
          std::mt19937 random(static_cast<unsigned>(d + B + tokens));
          // Every f16 there is, infinities, NaN and subnormals included; some columns hold small numbers only, so that
          // their scales are small, subnormal or zero.
          std::vector<f16> keys(static_cast<std::size_t>(B * d));
          for (std::size_t i = 0; i < keys.size(); ++i) {
            keys[i] = any_half(random);
            const auto c = static_cast<int>(i) % d;
            if (c % 4 == 1) keys[i].bits &= 0x83ff;
            if (c % 4 == 2) keys[i].bits &= 0x8003;
            if (c % 4 == 3) keys[i].bits &= 0x8000 | 0x7c00 >> (c / 4 % 5);
          }
          const auto key = [&](int t, int c) { return keys[static_cast<std::size_t>(t * d + c)]; };
          // A partly written group of tokens that share a scale ends in zeros whatever was there.
          const FilledBlock block(format, d, B, tokens, key, std::byte{0xa5});
          expect_as_defined(block, format, d, B, tokens, key);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quantise, QuantiseOfEachTarget, test::each_target(), test::target_name);

TEST(Quantise, NoMagnitudeClipsAndTheLargestTakesTheLastLevel) {
  // With the scale rounded up by at most one unit in the last place, the largest magnitude's quotient is at least
  // Q / (1 + 2^-10) > Q - 1/2, so it takes the last level, unless the scale is subnormal.
  for (const ColumnFormat format : integer_formats) {
    const int last = largest_level(format);
    for (std::uint16_t bits = 1; bits < 0x7c00; ++bits) {
      const f16 m{bits};
      const f16 scale = scale_for(format, m);
      ASSERT_GE(double{to_float(scale)} * last, to_float(m)) << std::hex << bits;
      const f16 below{static_cast<std::uint16_t>(scale.bits - 1)};
      ASSERT_LT(double{to_float(below)} * last, to_float(m)) << "not the smallest such scale: " << std::hex << bits;
      const int level = quantise(m, scale);
      ASSERT_LE(level, last) << std::hex << bits;
      if (scale.bits >= 0x400) {
        ASSERT_EQ(level, last) << std::hex << bits;
      }
      ASSERT_EQ(quantise({static_cast<std::uint16_t>(bits | 0x8000)}, scale), -level);
    }
  }
}

TEST(Quantise, TheErrorIsAtMostHalfAScale) {
  std::mt19937 random(3);
  for (const ColumnFormat format : integer_formats) {
    for (int round = 0; round < 200000; ++round) {
      const f16 a = finite(any_half(random));
      const f16 b = finite(any_half(random));
      const float larger = std::max(std::fabs(to_float(a)), std::fabs(to_float(b)));
      const f16 scale = scale_for(format, to_f16(larger));
      for (const f16 x : {a, b}) {
        // Products of an f16 and a level are exact in double.
        const double error = to_float(x) - double{to_float(scale)} * quantise(x, scale);
        ASSERT_LE(std::fabs(error), double{to_float(scale)} / 2) << std::hex << a.bits << " " << b.bits;
      }
      // One unit of f16 at most above the exact quotient: 2^-10 of it, or 2^-24.
      ASSERT_LE(to_float(scale),
                std::max(larger / largest_level(format) * (1 + 0x1p-10), larger / largest_level(format) + 0x1p-24));
    }
  }
}

TEST(Quantise, TiesGoToTheEvenLevel) {
  const auto key = [](int t, int) { return to_f16(t == 0 ? 7.0f : 0.5f * static_cast<float>(t % 8)); };  // scale 1
  const FilledBlock block(ColumnFormat::int4, 8, 16, 16, key);
  EXPECT_EQ(block.scale(0, 0), to_f16(1.0f));
  const std::vector<int> want = {7, 0, 1, 2, 2, 2, 3, 4};  // of 7, 0.5, 1, 1.5, 2, 2.5, 3, 3.5
  for (int t = 0; t < 8; ++t) EXPECT_EQ(block.level(0, t), want[static_cast<std::size_t>(t)]) << t;
}

TEST(Quantise, TheEarlierTokenOfAnInt4ByteLiesInItsLowNibble) {
  const auto key = [](int t, int) { return to_f16(t == 0 ? 7.0f : t == 1 ? -3.0f : t == 2 ? -7.0f : 0.0f); };
  const FilledBlock block(ColumnFormat::int4, 8, 16, 16, key);
  EXPECT_EQ(block.byte(5, 0), std::byte{0xd7});
  EXPECT_EQ(block.byte(5, 1), std::byte{0x09});
}

TEST(Quantise, Int8LevelsAreBytesInTwosComplement) {
  const auto key = [](int t, int) { return to_f16(t == 0 ? -127.0f : static_cast<float>(t)); };
  const FilledBlock block(ColumnFormat::int8, 8, 128, 128, key);
  EXPECT_EQ(block.scale(3, 0), to_f16(1.0f));
  EXPECT_EQ(block.byte(3, 0), std::byte{0x81});
  EXPECT_EQ(block.byte(3, 63), std::byte{63});
  EXPECT_EQ(block.byte(3, 127), std::byte{127});
}

TEST(Quantise, AnInfinityIsTheLargestFiniteNumberAndNaNIsZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {infinity, -infinity, nan, 65504.0f, -0.0f};
  for (const ColumnFormat format : integer_formats) {
    const auto key = [&](int t, int) { return to_f16(t < 5 ? x[static_cast<std::size_t>(t)] : 0.0f); };
    const FilledBlock block(format, 8, 16, 16, key);
    const int last = largest_level(format);
    const std::vector<int> want = {last, -last, 0, last, 0, 0};
    for (int t = 0; t < 6; ++t) EXPECT_EQ(block.level(0, t), want[static_cast<std::size_t>(t)]) << t;
    EXPECT_NEAR(to_float(block.scale(0, 0)), 65504.0 / last, 65504.0 / last * 0x1p-10);
  }
}

TEST(Quantise, AGroupOfZerosHasScaleZero) {
  for (const ColumnFormat format : integer_formats) {
    const auto key = [](int t, int c) { return f16{static_cast<std::uint16_t>((t + c) % 2 ? 0x8000 : 0)}; };
    const FilledBlock block(format, 8, 64, 64, key);
    for (int t = 0; t < 64; ++t) {
      EXPECT_EQ(block.scale(0, t).bits, 0);
      EXPECT_EQ(block.level(0, t), 0);
    }
  }
}

TEST(Quantise, AScaleConcernsItsOwn64TokensOnly) {
  // A key a thousand times larger than the others spoils its neighbours and nobody else.
  const auto key = [](int t, int) { return to_f16(t == 70 ? 1000.0f : static_cast<float>(t % 3)); };
  const FilledBlock block(ColumnFormat::int4, 8, 256, 256, key);
  for (int t = 0; t < 256; ++t) {
    const bool spoilt = t >= 64 && t < 128 && t != 70;
    const double half_scale = to_float(block.scale(0, t)) / 2;
    EXPECT_NEAR(block.dequantised(0, t), to_float(key(t, 0)), half_scale);
    EXPECT_EQ(half_scale > 1, t >= 64 && t < 128);
    if (spoilt) {
      EXPECT_EQ(block.level(0, t), 0);
    }
  }
}

}  // namespace
}  // namespace hayloft::offload
