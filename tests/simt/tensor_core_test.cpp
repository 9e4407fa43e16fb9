#include "simt/tensor_core.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "offload/half.h"

namespace hayloft::simt {
namespace {

constexpr int kElements = 16;

// Holds the factors of a dot product of f16, as f32 and as f64.
struct Products {
  std::array<float, kElements> a, b;
  std::array<double, kElements> wide_a, wide_b;

  // Draws numbers whose bits, but for the sign, lie in [first_bits, end_bits); `zeros` of a hundred are zero.
  Products(std::mt19937& random, std::uint32_t first_bits, std::uint32_t end_bits, unsigned zeros) {
    std::uniform_int_distribution<std::uint32_t> bits(first_bits, end_bits - 1);
    const auto draw = [&](float& x, double& wide) {
      const std::uint32_t sign = random() % 2 << 15;
      x = to_float(f16{static_cast<std::uint16_t>(sign | (random() % 100 < zeros ? 0 : bits(random)))});
      wide = x;
    };
    for (std::size_t i = 0; i < kElements; ++i) draw(a[i], wide_a[i]), draw(b[i], wide_b[i]);
  }

  // Compares the sums of both, each added to `before`.
  void expect_equal(float before) const {
    const float sum = add_up_halves(before, a.data(), b.data(), kElements);
    const float wide = add_up(before, wide_a.data(), wide_b.data(), kElements);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(sum));
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(sum), std::bit_cast<std::uint32_t>(wide)) << sum << " and " << wide;
    }
  }
};

TEST(TensorCore, SumsOfHalvesAreThoseOfTheSameNumbersToTheBit) {
  std::mt19937 random(1);
  struct Range {
    const char* what;
    std::uint32_t first_bits, end_bits;
    unsigned zeros;
  };
  for (const Range& range : {Range{"around one", 0x3000, 0x4400, 0}, Range{"any", 0, 0x7c00, 10},
                             Range{"subnormal", 0, 0x400, 30}, Range{"with infinity and NaN", 0x7000, 0x7c02, 0},
                             Range{"most of them zero", 0x3000, 0x4400, 90}, Range{"zero", 0, 1, 0}}) {
    SCOPED_TRACE(range.what);
    for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
      const Products products(random, range.first_bits, range.end_bits, range.zeros);
      for (const float before : {0.0F, -0.0F, 1.0F, -3.1415927F, 0x1p-30F, 0x1.8p-140F, 0x1.fp126F, -INFINITY}) {
        products.expect_equal(before);
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::simt
