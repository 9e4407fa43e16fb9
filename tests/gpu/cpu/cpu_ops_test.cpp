#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "gpu/backend.h"
#include "gpu/cpu/elementwise.h"
#include "offload/error.h"
#include "tests/gpu/cpu/ops_fixture.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/each_target.h"

namespace hayloft {
namespace {

using test::for_each_target;
using testing::CpuOps;
using testing::eps;
using testing::normal;
using testing::RandomCache;

TEST(TopValues, AreTheLargestByIdWithTiesToTheSmallerIdAndNaNLast) {
  const offload::Threads threads(1);
  const auto backend = gpu::make_cpu_backend(threads);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{2, nan, 5, -1, 5, 3, 5};
  const auto top = [&](int k) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(k));
    std::vector<float> values(ids.size());
    backend->top_values(x.data(), static_cast<std::int64_t>(x.size()), k, ids.data(), values.data(), {});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(std::memcmp(&values[i], &x[static_cast<std::size_t>(ids[i])], sizeof(float)), 0);
    }
    return ids;
  };
  EXPECT_EQ(top(1), (std::vector<std::int32_t>{2}));
  EXPECT_EQ(top(2), (std::vector<std::int32_t>{2, 4}));
  EXPECT_EQ(top(4), (std::vector<std::int32_t>{2, 4, 5, 6}));
  EXPECT_EQ(top(6), (std::vector<std::int32_t>{0, 2, 3, 4, 5, 6}));
  EXPECT_EQ(top(7), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_THROW(top(8), Error);
}

TEST(TopValues, AreThoseOfASortHoweverManyAreEqualOrNaN) {
  const offload::Threads threads(1);
  const auto backend = gpu::make_cpu_backend(threads);
  const int n = 5000;
  for (const int levels : {1, 3, 100, 1 << 20}) {
    for (const int numbers : {n, n / 2, 20, 0}) {  // the others are NaN
      std::vector<float> x(n, std::numeric_limits<float>::quiet_NaN());
      for (int i = 0; i < numbers; ++i) {
        const int place = static_cast<int>((static_cast<std::int64_t>(i) * 7919 + 13) % n);
        x[static_cast<std::size_t>(place)] =
            static_cast<float>((static_cast<unsigned>(i) * 2654435761u >> 8) % static_cast<unsigned>(levels));
      }
      std::vector<std::int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        const float left = x[static_cast<std::size_t>(a)], right = x[static_cast<std::size_t>(b)];
        return std::isnan(right) ? !std::isnan(left) : left > right;
      });
      for (const int k : {1, 2, 40, 200, n - 1, n}) {
        SCOPED_TRACE(::testing::Message() << levels << " levels, " << numbers << " numbers, k " << k);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(k)), expected(order.begin(), order.begin() + k);
        std::vector<float> values(ids.size());
        backend->top_values(x.data(), n, k, ids.data(), values.data(), {});
        std::sort(expected.begin(), expected.end());
        ASSERT_EQ(ids, expected);
      }
    }
  }
}

TEST_F(CpuOps, ConversionsToF32AreExactForEveryBitPattern) {
  std::vector<f16> halves(65536);
  std::vector<bf16> brains(65536);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    halves[bits].bits = static_cast<std::uint16_t>(bits);
    brains[bits].bits = static_cast<std::uint16_t>(bits);
  }
  for_each_target([&] {
    std::vector<float> wide(65536);
    gpu::widen(halves.data(), gpu::DType::f16, 65536, wide.data());
    for (unsigned bits = 0; bits < 65536; ++bits) {
      const float expected = to_float(halves[bits]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[bits])) << bits;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[bits]), std::bit_cast<std::uint32_t>(expected)) << bits;
      }
    }
    gpu::widen(brains.data(), gpu::DType::bf16, 65536, wide.data());
    for (unsigned bits = 0; bits < 65536; ++bits) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[bits]), bits << 16);
    }
  });
}

TEST_F(CpuOps, ConversionToF16RoundsLikeItsScalarOracle) {
  std::vector<float> values;
  for (unsigned bits = 0; bits < 0x7c00; ++bits) {  // every finite half, its neighbours and the ties between
    const float value = to_float(f16{static_cast<std::uint16_t>(bits)});
    const float next = to_float(f16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = std::isinf(next) ? 65520.0f : (value + next) / 2;
    for (const float x : {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  for (const float x : {1e-30f, 1e30f, std::numeric_limits<float>::infinity(), std::nanf("")}) values.push_back(x);
  for_each_target([&] {
    std::vector<f16> halves(values.size());
    gpu::narrow(values.data(), static_cast<std::int64_t>(values.size()), halves.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(to_float(halves[i])));
      } else {
        ASSERT_EQ(halves[i], to_f16(values[i])) << values[i];
      }
    }
  });
}

TEST_F(CpuOps, RmsNormEqualsTheOracleAlsoInPlace) {
  for_each_target([&] {
    for (const int n : {1, 8, 80, 1000}) {
      const int rows = 5;
      auto x = normal(static_cast<std::size_t>(rows * n), 7, 3);
      const auto weight = normal(static_cast<std::size_t>(n), 8);
      const auto input = x;
      backend->rms_norm(x.data(), rows, n, weight.data(), 1e-5f, x.data(), {});
      for (int row = 0; row < rows; ++row) {
        double squares = 0;
        for (int i = 0; i < n; ++i)
          squares += std::pow(static_cast<double>(input[static_cast<std::size_t>(row * n + i)]), 2);
        const double scale = 1 / std::sqrt(squares / n + 1e-5);
        for (int i = 0; i < n; ++i) {
          const auto at = static_cast<std::size_t>(row * n + i);
          const double expected = input[at] * scale * weight[static_cast<std::size_t>(i)];
          // The sum of n squares is off by n eps / 2 relatively, its root by half of that; five more roundings.
          ASSERT_NEAR(x[at], expected, (n / 4.0 + 5) * eps * std::fabs(expected) + 1e-30);
        }
      }
    }
  });
}

TEST_F(CpuOps, AddAndSiluMulEqualTheOracleOverTheWholeRange) {
  for_each_target([&] {
    std::vector<float> gate = normal(1003, 9, 30);
    gate[0] = -1000;  // silu vanishes
    gate[1] = 1000;   // silu is the identity
    gate[2] = 0;
    const auto up = normal(1003, 10);
    auto y = gate;
    backend->silu_mul(y.data(), up.data(), 1003, {});
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double x = gate[i];
      const double expected = x / (1 + std::exp(-x)) * up[i];
      // exp: 2e-7 and half an ulp of its argument, then five roundings; below exp(-87) it is zero.
      const double relative = 2e-7 + eps * (std::fabs(x) / 2 + 5);
      ASSERT_NEAR(y[i], expected, relative * std::fabs(expected) + 1e-34) << x;
    }
    y = gate;
    backend->add(y.data(), up.data(), 1003, {});
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], gate[i] + up[i]);
  });
}

TEST_F(CpuOps, ClampedMulEqualsTheOracleOnBothSidesOfItsLimits) {
  for_each_target([&] {
    const auto gate = normal(1003, 29, 4);
    const auto up = normal(1003, 30, 4);
    auto y = gate;
    backend->clamped_mul(y.data(), up.data(), 1003, 2.5f, {});
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double g = std::min(gate[i], 2.5f), u = std::clamp(up[i], -2.5f, 2.5f);
      const double expected = (u + 1) * g / (1 + std::exp(-1.702 * g));
      // As for silu, with the rounding of 1.702 g, and of u + 1, which may all but vanish.
      const double relative = 2e-7 + eps * (1.702 * std::fabs(g) + 6);
      ASSERT_NEAR(y[i], expected, relative * std::fabs(expected) + eps * 2.5) << g << ", " << u;
    }
  });
}

TEST_F(CpuOps, SoftCapEqualsTheOracleAndHidesNoInfinity) {
  for_each_target([&] {
    auto x = normal(1003, 41, 30);
    x[0] = 0;
    x[1] = 1e30f;
    x[2] = -1e30f;
    x[3] = std::numeric_limits<float>::infinity();
    x[4] = std::numeric_limits<float>::quiet_NaN();
    auto y = x;
    backend->soft_cap(y.data(), 1003, 30, {});
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (!std::isfinite(x[i])) {
        ASSERT_FALSE(std::isfinite(y[i])) << x[i];
        continue;
      }
      // exp and three roundings near one.
      ASSERT_NEAR(y[i], 30 * std::tanh(double{x[i]} / 30), 30 * (2e-7 + 4 * eps)) << x[i];
    }
  });
}

TEST_F(CpuOps, GeluMulAndScaleEqualTheOracleOverTheWholeRange) {
  for_each_target([&] {
    std::vector<float> gate = normal(1003, 19, 4);
    gate[0] = -1e30f;  // gelu vanishes
    gate[1] = 1e30f;   // gelu is the identity
    gate[2] = 0;
    const auto up = normal(1003, 20);
    auto y = gate;
    backend->gelu_mul(y.data(), up.data(), 1003, {});
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double x = gate[i];
      const double z = 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
      const double expected = x / (1 + std::exp(-z)) * up[i];
      // The argument is good to 4 roundings of itself, which exp turns into as many absolute ones; then as for silu.
      const double relative = 2e-7 + eps * (4.5 * std::min(std::fabs(z), 90.0) + 6);
      ASSERT_NEAR(y[i], expected, relative * std::fabs(expected) + 1e-34) << x;
    }
    y = up;
    backend->scale(y.data(), 1003, 0.3f, {});
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], up[i] * 0.3f);
  });
}

TEST_F(CpuOps, RopeTurnsTheFirstComponentsAloneAndScalesThem) {
  const int d = 32, pairs = 6, heads = 3, T = 150;
  const std::vector<float> inverse_frequency = normal(pairs, 3, 0.2f);
  auto x = normal(static_cast<std::size_t>(T * heads * d), 12);
  const auto input = x;
  backend->rope(x.data(), T, heads, d, 1000, {inverse_frequency.data(), pairs, 1.25f}, {});
  for (int row = 0; row < T * heads; ++row) {
    for (int i = 0; i < d; ++i) {
      const auto at = static_cast<std::size_t>(row * d + i);
      if (i >= 2 * pairs) {
        ASSERT_EQ(x[at], input[at]);
      } else if (i < pairs) {
        const double angle = (1000.0 + row / heads) * inverse_frequency[static_cast<std::size_t>(i)];
        const double a = input[at], b = input[at + pairs];
        const double tolerance = 1.25 * 2 * eps * (std::fabs(a) + std::fabs(b));
        ASSERT_NEAR(x[at], 1.25 * (a * std::cos(angle) - b * std::sin(angle)), tolerance);
        ASSERT_NEAR(x[at + pairs], 1.25 * (b * std::cos(angle) + a * std::sin(angle)), tolerance);
      }
    }
  }
}

TEST_F(CpuOps, RopeTurnsHalfSplitPairsExactlyEvenAtAMillion) {
  for (const int d : {8, 64, 80, 128}) {
    std::vector<float> inverse_frequency(static_cast<std::size_t>(d / 2));
    for (int i = 0; i < d / 2; ++i) {
      inverse_frequency[static_cast<std::size_t>(i)] = static_cast<float>(std::pow(10000.0, -2.0 * i / d));
    }
    const int T = 150;
    const int heads = 3;
    for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1} << 20, (std::int64_t{1} << 22) + 1}) {
      auto x = normal(static_cast<std::size_t>(T * heads * d), 11);
      const auto input = x;
      backend->rope(x.data(), T, heads, d, position, {inverse_frequency.data()}, {});
      for (int t = 0; t < T; ++t) {
        for (int h = 0; h < heads; ++h) {
          for (int i = 0; i < d / 2; ++i) {
            const auto a = static_cast<std::size_t>((t * heads + h) * d + i);
            const auto b = a + static_cast<std::size_t>(d / 2);
            const double angle = static_cast<double>(position + t) * inverse_frequency[static_cast<std::size_t>(i)];
            // Cosine, sine, two products and a sum: one f32 rounding each.
            const double tolerance = 2 * eps * (std::fabs(input[a]) + std::fabs(input[b]));
            ASSERT_NEAR(x[a], input[a] * std::cos(angle) - input[b] * std::sin(angle), tolerance);
            ASSERT_NEAR(x[b], input[b] * std::cos(angle) + input[a] * std::sin(angle), tolerance);
          }
        }
      }
    }
  }
}

TEST_F(CpuOps, ATokensRotationIsTheSameInAnyChunk) {
  const int d = 64;
  std::vector<float> inverse_frequency(32, 0.37f);
  auto together = normal(100 * d, 12);
  auto apart = together;
  backend->rope(together.data(), 100, 1, d, 5000, {inverse_frequency.data()}, {});
  for (int t = 0; t < 100; ++t) backend->rope(apart.data() + t * d, 1, 1, d, 5000 + t, {inverse_frequency.data()}, {});
  for (std::size_t i = 0; i < apart.size(); ++i) ASSERT_NEAR(apart[i], together[i], 2 * eps * 8);
}

TEST_F(CpuOps, OneNonFiniteNumberLowersTheFlagToTheTagAndNeverRaisesIt) {
  for_each_target([&] {
    for (const float bad :
         {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      auto x = normal(100003, 13, 1e30f);
      std::int32_t flag = 40;
      backend->flag_nonfinite(x.data(), 100003, 7, &flag, {});
      EXPECT_EQ(flag, 40);
      x[100002] = bad;
      backend->flag_nonfinite(x.data(), 100003, 7, &flag, {});
      EXPECT_EQ(flag, 7);
      backend->flag_nonfinite(x.data(), 100003, 9, &flag, {});
      EXPECT_EQ(flag, 7);
    }
  });
}

TEST_F(CpuOps, AppendRoundsToF16BehindTheLiveSlotsAndTouchesNothingElse) {
  const int heads = 2;
  const int d = 24;
  const std::int64_t capacity = 40;
  const f16 untouched{0x1234};
  std::vector<f16> rows(static_cast<std::size_t>(heads * capacity * 2 * d), untouched);
  gpu::CacheView cache;
  cache.kv_heads = heads;
  cache.head_dim = d;
  cache.tail = {rows.data(), capacity, 5, 10, 100};
  const int T = 20;
  const auto k = normal(static_cast<std::size_t>(T * heads * d), 14);
  const auto v = normal(static_cast<std::size_t>(T * heads * d), 15);
  backend->append(cache, k.data(), v.data(), T, {});
  for (int head = 0; head < heads; ++head) {
    for (std::int64_t slot = 0; slot < capacity; ++slot) {
      const std::int64_t t = slot - 15;
      for (int i = 0; i < d; ++i) {
        const auto at = static_cast<std::size_t>((head * capacity + slot) * 2 * d + i);
        const auto from = static_cast<std::size_t>((t * heads + head) * d + i);
        const bool live = t >= 0 && t < T;
        ASSERT_EQ(rows[at], live ? to_f16(k[from]) : untouched);
        ASSERT_EQ(rows[at + static_cast<std::size_t>(d)], live ? to_f16(v[from]) : untouched);
      }
    }
  }
}

TEST_F(CpuOps, SpillMakesABlockOfTheOldestTokensOfEveryHead) {
  RandomCache cache({.kv_heads = 3, .head_dim = 16, .block_tokens = 32, .tail = 50});
  const offload::BlockLayout layout({1, 3, 16, 32, offload::ColumnFormat::f16});
  std::vector<std::uint64_t> memory(layout.block_bytes / 8 + 8);
  auto* block = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  backend->spill(cache.view(), 32, layout, block, {});
  for (int head = 0; head < 3; ++head) {
    for (int t = 0; t < 32; ++t) {
      for (int i = 0; i < 16; ++i) {
        EXPECT_EQ(to_float(f16_row(layout, block, head, 0)[t * 32 + i]), cache.key(head, t, i));
        EXPECT_EQ(to_float(f16_row(layout, block, head, 0)[t * 32 + 16 + i]), cache.value(head, t, i));
        EXPECT_EQ(to_float(reinterpret_cast<const f16*>(layout.column(block, head, i))[t]), cache.key(head, t, i));
      }
    }
    for (int i = 0; i < 16; ++i) {
      double sum = 0;
      for (int t = 0; t < 32; ++t) sum += cache.value(head, t, i);
      EXPECT_EQ(layout.value_sum(block, head)[i], static_cast<float>(sum));
    }
  }
}

}  // namespace
}  // namespace hayloft
