#include <cmath>
#include <cstring>
#include <limits>

#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/gpu/cuda/matrices.h"

// The operations that treat every element alike, against exact results in double.
namespace hayloft::testing {
namespace {

constexpr double elementwise_eps = std::numeric_limits<float>::epsilon();
constexpr float infinity = std::numeric_limits<float>::infinity();

class ElementwiseTest : public CudaTest {
 protected:
  gpu::Stream stream() const { return cuda->stream(); }
};

TEST_F(ElementwiseTest, EmbedTakesTheTokensRowsAndRefusesATokenOutsideTheTable) {
  for (const auto type : {gpu::DType::f32, gpu::DType::f16, gpu::DType::bf16}) {
    const TypedMatrix table(type, 50, 24, 6);
    const gpu::Buffer memory = upload(*cuda, table.bytes);
    const gpu::Buffer out = cuda->allocate(4 * 24 * sizeof(float), stream());
    const std::vector<std::int32_t> tokens{0, 49, 7, 7};
    cuda->embed(table.at(memory), tokens.data(), 4, out.as<float>(), stream());
    const auto rows = download<float>(*cuda, out);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i], table.values[static_cast<std::size_t>(tokens[i / 24]) * 24 + i % 24]);
    }
    for (const std::int32_t outside : {50, -1}) {
      EXPECT_THROW(cuda->embed(table.at(memory), &outside, 1, out.as<float>(), stream()), Error);
    }
  }
}

TEST_F(ElementwiseTest, EmbedIsDoneWithTheTokensWhenItReturns) {
  const TypedMatrix table(gpu::DType::f32, 9000, 8, 6);
  const gpu::Buffer memory = upload(*cuda, table.bytes);
  std::vector<std::int32_t> tokens(9000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(8999 - i);
  const auto asked = tokens;
  const gpu::Buffer out = cuda->allocate(tokens.size() * 8 * sizeof(float), stream());
  cuda->embed(table.at(memory), tokens.data(), 9000, out.as<float>(), stream());
  std::fill(tokens.begin(), tokens.end(), -1);
  const auto rows = download<float>(*cuda, out);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i], table.values[static_cast<std::size_t>(asked[i / 8]) * 8 + i % 8]);
  }
}

TEST_F(ElementwiseTest, RmsNormEqualsTheOracleAlsoInPlace) {
  for (const int n : {1, 8, 80, 1000}) {
    const int rows = 5;
    const auto input = normal(static_cast<std::size_t>(rows * n), 7, 3);
    const auto weight = normal(static_cast<std::size_t>(n), 8);
    const gpu::Buffer x = upload(*cuda, input);
    const gpu::Buffer w = upload(*cuda, weight);
    cuda->rms_norm(x.as<float>(), rows, n, w.as<float>(), 1e-5f, x.as<float>(), stream());
    const auto y = download<float>(*cuda, x);
    for (int row = 0; row < rows; ++row) {
      double squares = 0;
      for (int i = 0; i < n; ++i) squares += std::pow(double{input[static_cast<std::size_t>(row * n + i)]}, 2);
      const double scale = 1 / std::sqrt(squares / n + 1e-5);
      for (int i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(row * n + i);
        const double expected = input[at] * scale * weight[static_cast<std::size_t>(i)];
        // The sum of n squares is off by n eps / 2 relatively, its root by half of that; five more roundings.
        ASSERT_NEAR(y[at], expected, (n / 4.0 + 5) * elementwise_eps * std::fabs(expected) + 1e-30);
      }
    }
  }
}

TEST_F(ElementwiseTest, AddAndSiluMulEqualTheOracleOverTheWholeRange) {
  std::vector<float> gate = normal(30003, 9, 30);
  gate[0] = -1000;  // silu vanishes
  gate[1] = 1000;   // silu is the identity
  gate[2] = 0;
  const auto up = normal(gate.size(), 10);
  const auto n = static_cast<std::int64_t>(gate.size());
  const gpu::Buffer y = upload(*cuda, gate);
  const gpu::Buffer x = upload(*cuda, up);
  cuda->add(y.as<float>(), x.as<float>(), n, stream());
  const auto sum = download<float>(*cuda, y);
  for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], gate[i] + up[i]);

  cuda->to_device(y.as<float>(), gate.data(), gate.size() * sizeof(float), stream());
  cuda->silu_mul(y.as<float>(), x.as<float>(), n, stream());
  const auto product = download<float>(*cuda, y);
  for (std::size_t i = 0; i < product.size(); ++i) {
    const double g = gate[i];
    const double expected = g / (1 + std::exp(-g)) * up[i];
    // exp is good to 2 units in the last place, and four roundings; far below one, denormal results end at 2^-149.
    ASSERT_NEAR(product[i], expected, 6 * elementwise_eps * std::fabs(expected) + 1e-40) << g;
  }
}

TEST_F(ElementwiseTest, SigmoidMulEqualsTheOracleOverTheWholeRange) {
  std::vector<float> gate = normal(30003, 29, 30);
  gate[0] = -1000;  // nothing passes
  gate[1] = 1000;   // all does
  gate[2] = 0;
  const auto input = normal(gate.size(), 30);
  const gpu::Buffer x = upload(*cuda, input), g = upload(*cuda, gate);
  cuda->sigmoid_mul(x.as<float>(), g.as<float>(), static_cast<std::int64_t>(gate.size()), stream());
  const auto product = download<float>(*cuda, x);
  for (std::size_t i = 0; i < product.size(); ++i) {
    const double expected = input[i] / (1 + std::exp(-double{gate[i]}));
    // exp is good to 2 units in the last place, and three roundings; denormal results end at 2^-149.
    ASSERT_NEAR(product[i], expected, 5 * elementwise_eps * std::fabs(expected) + 1e-40) << gate[i];
  }
}

TEST_F(ElementwiseTest, ClampedMulEqualsTheOracleOnBothSidesOfItsLimits) {
  const auto gate = normal(30003, 29, 4);
  const auto up = normal(gate.size(), 30, 4);
  const gpu::Buffer y = upload(*cuda, gate);
  const gpu::Buffer x = upload(*cuda, up);
  cuda->clamped_mul(y.as<float>(), x.as<float>(), static_cast<std::int64_t>(gate.size()), 2.5f, stream());
  const auto product = download<float>(*cuda, y);
  for (std::size_t i = 0; i < product.size(); ++i) {
    const double g = std::min(gate[i], 2.5f), u = std::clamp(up[i], -2.5f, 2.5f);
    const double expected = (u + 1) * g / (1 + std::exp(-1.702 * g));
    // As for silu, with the rounding of 1.702 g, and of u + 1, which may all but vanish.
    const double relative = elementwise_eps * (2 * 1.702 * std::fabs(g) + 6);
    ASSERT_NEAR(product[i], expected, relative * std::fabs(expected) + elementwise_eps * 2.5) << g << ", " << u;
  }
}

TEST_F(ElementwiseTest, SoftCapEqualsTheOracleAndHidesNoInfinity) {
  auto values = normal(30003, 41, 30);
  values[0] = 1e30f;
  values[1] = std::numeric_limits<float>::infinity();
  values[2] = std::numeric_limits<float>::quiet_NaN();
  const gpu::Buffer x = upload(*cuda, values);
  cuda->soft_cap(x.as<float>(), static_cast<std::int64_t>(values.size()), 30, stream());
  const auto capped = download<float>(*cuda, x);
  for (std::size_t i = 0; i < capped.size(); ++i) {
    if (!std::isfinite(values[i])) {
      ASSERT_FALSE(std::isfinite(capped[i])) << values[i];
      continue;
    }
    ASSERT_NEAR(capped[i], 30 * std::tanh(double{values[i]} / 30), 30 * 4 * elementwise_eps) << values[i];
  }
}

TEST_F(ElementwiseTest, GeluMulAndScaleEqualTheOracleOverTheWholeRange) {
  std::vector<float> gate = normal(30003, 19, 4);
  gate[0] = -1e30f;  // gelu vanishes
  gate[1] = 1e30f;   // gelu is the identity
  gate[2] = 0;
  const auto up = normal(gate.size(), 20);
  const auto n = static_cast<std::int64_t>(gate.size());
  const gpu::Buffer y = upload(*cuda, gate);
  const gpu::Buffer x = upload(*cuda, up);
  cuda->gelu_mul(y.as<float>(), x.as<float>(), n, stream());
  const auto product = download<float>(*cuda, y);
  for (std::size_t i = 0; i < product.size(); ++i) {
    const double g = gate[i];
    const double z = 2 * std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
    const double expected = g / (1 + std::exp(-z)) * up[i];
    // The argument is good to 4 roundings of itself, which exp turns into as many absolute ones; then as for silu.
    const double relative = elementwise_eps * (4 * std::min(std::fabs(z), 90.0) + 6);
    ASSERT_NEAR(product[i], expected, relative * std::fabs(expected) + 1e-36) << g;
  }
  cuda->scale(x.as<float>(), n, 0.3f, stream());
  const auto scaled = download<float>(*cuda, x);
  for (std::size_t i = 0; i < scaled.size(); ++i) ASSERT_EQ(scaled[i], up[i] * 0.3f);
}

TEST_F(ElementwiseTest, OneNonFiniteNumberLowersTheFlagToTheTagAndNeverRaisesIt) {
  for (const float bad : {std::nanf(""), infinity, -infinity}) {
    auto values = normal(40003, 13, 1e30f);
    const auto n = static_cast<std::int64_t>(values.size());
    const gpu::Buffer flag = upload(*cuda, std::vector<std::int32_t>{40});
    const gpu::Buffer x = upload(*cuda, values);
    cuda->flag_nonfinite(x.as<float>(), n, 7, flag.as<std::int32_t>(), stream());
    EXPECT_EQ(download<std::int32_t>(*cuda, flag)[0], 40);
    values.back() = bad;
    cuda->to_device(x.as<float>(), values.data(), values.size() * sizeof(float), stream());
    cuda->flag_nonfinite(x.as<float>(), n, 7, flag.as<std::int32_t>(), stream());
    EXPECT_EQ(download<std::int32_t>(*cuda, flag)[0], 7);
    cuda->flag_nonfinite(x.as<float>(), n, 9, flag.as<std::int32_t>(), stream());
    EXPECT_EQ(download<std::int32_t>(*cuda, flag)[0], 7);
  }
}

TEST_F(ElementwiseTest, RopeTurnsHalfSplitPairsExactlyEvenAtFourMillion) {
  for (const int d : {8, 64, 80, 256, 512}) {
    std::vector<float> inverse_frequency(static_cast<std::size_t>(d / 2));
    for (int i = 0; i < d / 2; ++i) {
      inverse_frequency[static_cast<std::size_t>(i)] = static_cast<float>(std::pow(10000.0, -2.0 * i / d));
    }
    const gpu::Buffer frequencies = upload(*cuda, inverse_frequency);
    for (const int T : {1, 70}) {
      for (const int heads : {1, 3, 40}) {
        if (T > 1 && heads > 3) continue;
        for (const std::int64_t position : {std::int64_t{0}, (std::int64_t{1} << 22) + 1}) {
          const auto input = normal(static_cast<std::size_t>(T * heads * d), 11);
          const gpu::Buffer x = upload(*cuda, input);
          cuda->rope(x.as<float>(), T, heads, d, position, {frequencies.as<float>()}, stream());
          const auto y = download<float>(*cuda, x);
          for (int i = 0; i < T * heads * d / 2; ++i) {
            const int pair = i % (d / 2), row = i / (d / 2), t = row / heads;
            const auto a = static_cast<std::size_t>(row * d + pair);
            const auto b = a + static_cast<std::size_t>(d / 2);
            const double angle = static_cast<double>(position + t) * inverse_frequency[static_cast<std::size_t>(pair)];
            // The angle's remainder of a turn is rounded to f32: up to pi eps / 4. Sine and cosine are good to 2 units
            // in the last place; two products and a sum.
            const double tolerance = (0.8 + 1 + 1.5) * elementwise_eps * (std::fabs(input[a]) + std::fabs(input[b]));
            ASSERT_NEAR(y[a], input[a] * std::cos(angle) - input[b] * std::sin(angle), tolerance);
            ASSERT_NEAR(y[b], input[b] * std::cos(angle) + input[a] * std::sin(angle), tolerance);
          }
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, RopeTurnsTheFirstComponentsAloneAndScalesThem) {
  const int d = 32, pairs = 6, heads = 3, T = 5;
  std::vector<float> inverse_frequency = normal(pairs, 3, 0.2f);
  const gpu::Buffer frequencies = upload(*cuda, inverse_frequency);
  const auto input = normal(static_cast<std::size_t>(T * heads * d), 12);
  const gpu::Buffer x = upload(*cuda, input);
  cuda->rope(x.as<float>(), T, heads, d, 1000, {frequencies.as<float>(), pairs, 1.25f}, stream());
  const auto y = download<float>(*cuda, x);
  std::vector<float> expected = input;
  cpu->rope(expected.data(), T, heads, d, 1000, {inverse_frequency.data(), pairs, 1.25f}, {});
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (static_cast<int>(i) % d >= 2 * pairs) {
      ASSERT_EQ(y[i], input[i]);
    } else {
      ASSERT_NEAR(y[i], expected[i], 1e-6 * 1.25 * 8);
    }
  }
}

TEST_F(ElementwiseTest, TopValuesAreTheCpuBackendsTiesAndNaNIncluded) {
  for (const int n : {1, 31, 256, 257, 5120, 40000}) {
    std::vector<float> x = normal(static_cast<std::size_t>(n), 21, 3);
    for (float& value : x) value = std::round(4 * value) / 4;  // with ties, zeros of both signs among them
    if (n > 100) {
      x[77] = std::numeric_limits<float>::quiet_NaN();
      x[80] = infinity;
      x[90] = -infinity;
    }
    const gpu::Buffer on_device = upload(*cuda, x);
    for (const int k : {1, 2, 40, 1000, n}) {
      if (k > n) continue;
      const auto size = static_cast<std::size_t>(k);
      std::vector<std::int32_t> ids(size), expected_ids(size);
      std::vector<float> values(size), expected(size);
      cuda->top_values(on_device.as<float>(), n, k, ids.data(), values.data(), stream());
      cpu->top_values(x.data(), n, k, expected_ids.data(), expected.data(), {});
      ASSERT_EQ(ids, expected_ids) << k << " of " << n;
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), size * sizeof(float)), 0) << k << " of " << n;
    }
  }
}

TEST_F(ElementwiseTest, RowsAreGatheredAndSummedInTheirOrderAsOnTheCpu) {
  for (const std::size_t ways : {6, 40000}) {
    const int cols = ways == 6 ? 100 : 3;
    const std::vector<float> x = normal(static_cast<std::size_t>(4 * cols), 31);
    std::vector<std::int32_t> rows(ways);
    for (std::size_t i = 0; i < ways; ++i) rows[i] = static_cast<std::int32_t>((3 * i + i / 5) % 4);
    const std::vector<float> weights = normal(ways, 32);
    const gpu::Buffer on_device = upload(*cuda, x);
    const std::size_t size = ways * static_cast<std::size_t>(cols);
    const gpu::Buffer gathered = cuda->allocate(size * sizeof(float), stream());
    cuda->gather_rows(on_device.as<float>(), rows, cols, gathered.as<float>(), stream());
    std::vector<float> expected(size);
    cpu->gather_rows(x.data(), rows, cols, expected.data(), {});
    EXPECT_EQ(download<float>(*cuda, gathered), expected);
    const gpu::Buffer sums = cuda->allocate(x.size() * sizeof(float), stream());
    cuda->sum_rows(gathered.as<float>(), rows, weights, 4, cols, sums.as<float>(), stream());
    std::vector<float> of_cpu(x.size());
    cpu->sum_rows(expected.data(), rows, weights, 4, cols, of_cpu.data(), {});
    EXPECT_EQ(download<float>(*cuda, sums), of_cpu);
  }
}

TEST_F(ElementwiseTest, NoTokensAndNoElementsAreNoWork) {
  const gpu::Buffer x = upload(*cuda, std::vector<float>{3});
  cuda->embed({x.as<float>(), gpu::DType::f32, 1, 1}, nullptr, 0, x.as<float>(), stream());
  cuda->rms_norm(x.as<float>(), 0, 1, x.as<float>(), 1e-5f, x.as<float>(), stream());
  cuda->add(x.as<float>(), x.as<float>(), 0, stream());
  cuda->silu_mul(x.as<float>(), x.as<float>(), 0, stream());
  cuda->sigmoid_mul(x.as<float>(), x.as<float>(), 0, stream());
  cuda->matmul(x.as<float>(), 0, {x.as<float>(), gpu::DType::f32, 1, 1}, nullptr, x.as<float>(), stream());
  EXPECT_EQ(download<float>(*cuda, x)[0], 3);
}

}  // namespace
}  // namespace hayloft::testing
