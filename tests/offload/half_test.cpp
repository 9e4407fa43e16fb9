#include "offload/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "offload/text/format.h"

namespace hayloft {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// The value of a finite f16, from the definition of binary16.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// The f16 nearest to x, ties to even: x is scaled so that f16's spacing around it becomes 1, which double does exactly,
// and rounded there.
double rounded_to_f16(double x) {
  const double magnitude = std::abs(x);
  int exponent = -14;  // of the smallest normal; subnormals have its spacing
  if (magnitude >= 0x1p-14) exponent = std::ilogb(magnitude);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, 10 - exponent)), exponent - 10);
  return std::copysign(rounded > 65504 ? infinity : rounded, x);
}

TEST(Half, EveryValueBecomesTheFloatItStandsFor) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(f16{static_cast<std::uint16_t>(bits)});
    ASSERT_EQ(std::signbit(x), (bits & 0x8000) != 0) << std::hex << bits;
    if ((bits & 0x7c00) != 0x7c00) {
      ASSERT_EQ(static_cast<double>(x), value_of(static_cast<std::uint16_t>(bits))) << std::hex << bits;
    } else if (bits & 0x3ff) {
      ASSERT_TRUE(std::isnan(x)) << std::hex << bits;
    } else {
      ASSERT_TRUE(std::isinf(x)) << std::hex << bits;
    }
  }
}

TEST(Half, EveryValueSurvivesTheRoundTripThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 x{static_cast<std::uint16_t>(bits)};
    const f16 back = to_f16(to_float(x));
    if (std::isnan(to_float(x))) {
      ASSERT_TRUE(std::isnan(to_float(back))) << std::hex << bits;
    } else {
      ASSERT_EQ(back, x) << std::hex << bits;
    }
  }
}

void expect_rounded(float x) {
  const float got = to_float(to_f16(x));
  const double want = rounded_to_f16(x);
  ASSERT_EQ(got, want) << "from " << std::hexfloat << x;
  ASSERT_EQ(std::signbit(got), std::signbit(x)) << "from " << std::hexfloat << x;
}

TEST(Half, RoundsToTheNearestEvenAtEveryBoundary) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    // Halfway to the next f16 (65536 beyond the largest, where rounding to infinity begins) is exact in f32.
    const double here = value_of(static_cast<std::uint16_t>(bits));
    const double next = bits == 0x7bff ? 65536.0 : value_of(static_cast<std::uint16_t>(bits + 1));
    const float halfway = static_cast<float>((here + next) / 2);
    for (const float x : {halfway, std::nextafter(halfway, 0.0f), std::nextafter(halfway, 1e30f)}) {
      expect_rounded(x);
      expect_rounded(-x);
    }
  }
}

TEST(Half, RoundsRandomFloatsOfEveryMagnitude) {
  std::mt19937 random(20240607);
  for (int i = 0; i < 2'000'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(x)) {
      expect_rounded(x);
    } else {
      ASSERT_EQ(std::isnan(x), std::isnan(to_float(to_f16(x))));
    }
    expect_rounded(
        std::ldexp(1.0f + static_cast<float>(random() & 0x7fffff) * 0x1p-23f, static_cast<int>(random() % 48) - 30));
  }
}

TEST(Half, KeepsInfinityAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_f16(inf).bits, 0x7c00);
  EXPECT_EQ(to_f16(-inf).bits, 0xfc00);
  // A NaN whose payload lies only in bits that f16 has no room for must not turn into infinity.
  EXPECT_TRUE(std::isnan(to_float(to_f16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_f16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(Bf16, IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(to_float(bf16{0x3f80}), 1.0f);
  EXPECT_EQ(to_float(bf16{0xc2f7}), -123.5f);
  EXPECT_EQ(to_float(bf16{0x0001}), 0x1p-133f);
  EXPECT_TRUE(std::isinf(to_float(bf16{0x7f80})));
}

template <class Parse>
std::string message_of(Parse parse, const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "(no Error)";
}

TEST(Format, BytesAreWrittenInBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(26424115), "25.2 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{8} << 30), "8.0 GiB");
  EXPECT_EQ(format_bytes((std::uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
}

TEST(Format, BytesAreReadInBinaryAndDecimalUnits) {
  const std::vector<std::pair<std::string, std::uint64_t>> cases = {
      {"0", 0},
      {"4096", 4096},
      {"4096B", 4096},
      {"64k", 65536},
      {"64K", 65536},
      {"1M", 1048576},
      {"16G", std::uint64_t{16} << 30},
      {"2T", std::uint64_t{2} << 40},
      {"64KiB", 65536},
      {"16GiB", std::uint64_t{16} << 30},
      {"16gib", std::uint64_t{16} << 30},
      {"16 GiB", std::uint64_t{16} << 30},
      {"500MB", 500'000'000},
      {"1kB", 1000},
      {"3TB", 3'000'000'000'000},
      {"1.5GiB", std::uint64_t{3} << 29},
      {"0.25MiB", 262144},
      {"18446744073709551615", std::numeric_limits<std::uint64_t>::max()},
  };
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(Format, WhatIsNoSizeIsRefusedWithTheTextAndAnExample) {
  for (const char* text :
       {"", " ", "GiB", "-1", "+1", "1X", "1GiBs", "1 2", "1.", ".5", "1e9", "0x10", "16GiG", "1  k", "nan", "1,5G"}) {
    const std::string message = message_of(parse_bytes, text);
    EXPECT_NE(message.find(fmt::format("'{}' is not a size", text)), std::string::npos) << message;
    EXPECT_NE(message.find("16GiB"), std::string::npos) << message;
  }
  for (const char* text : {"18446744073709551616", "16777216T", "18446744073709551615.5k"}) {
    EXPECT_NE(message_of(parse_bytes, text).find(text), std::string::npos) << text;
  }
}

TEST(Format, CountsAreWholeNumbersWithBinaryShorthand) {
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("4096"), 4096);
  EXPECT_EQ(parse_count("64k"), 65536);
  EXPECT_EQ(parse_count("1M"), 1048576);
  EXPECT_EQ(parse_count("2G"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_count("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  for (const char* text : {"", "k", "-4", "1.5k", "64kB", "64KiB", "4096 tokens", "ten"}) {
    EXPECT_NE(message_of(parse_count, text).find(fmt::format("'{}' is not a whole number", text)), std::string::npos)
        << text;
  }
  for (const char* text : {"9223372036854775808", "8388608T"}) {
    EXPECT_NE(message_of(parse_count, text).find("63 bits"), std::string::npos) << text;
  }
}

TEST(Format, CountsAreWrittenAsShortAsTheyAreReadBack) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(5000), "5000");
  EXPECT_EQ(format_count(65536), "64k");
  EXPECT_EQ(format_count(1048576), "1M");
  EXPECT_EQ(format_count(1048577), "1048577");
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1536}, std::int64_t{3} << 30, std::int64_t{1} << 62}) {
    EXPECT_EQ(parse_count(format_count(count)), count);
  }
}

}  // namespace
}  // namespace hayloft
