#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "offload/error.h"
#include "tests/gpu/cpu/ops_fixture.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/each_target.h"
#include "tests/support/random_packed.h"

// Products with matrices of every type, and rows taken from them.
namespace hayloft {
namespace {

using test::for_each_target;
using testing::eps;
using testing::normal;

bf16 to_bf16(float x) {  // towards zero: any bf16 will do for a weight
  return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)};
}

// A matrix of every dtype with the values that it really holds.
struct TypedMatrix {
  TypedMatrix(gpu::DType type, int rows, int cols, std::uint32_t seed)
      : values(normal(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols), seed)) {
    bytes.resize(values.size() * static_cast<std::size_t>(gpu::bytes_of(type)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (type == gpu::DType::f32) std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      if (type == gpu::DType::f16) {
        const f16 half = to_f16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &half, 2);
        values[i] = to_float(half);
      }
      if (type == gpu::DType::bf16) {
        const bf16 half = to_bf16(values[i]);
        std::memcpy(bytes.data() + 2 * i, &half, 2);
        values[i] = to_float(half);
      }
    }
    matrix = {bytes.data(), type, rows, cols};
  }
  std::vector<float> values;
  std::vector<std::byte> bytes;
  gpu::Matrix matrix;
};

class CpuMatmul : public testing::CpuOps {
 protected:
  // y = x W^T + bias against double; each of the n products and sums rounds once.
  void expect_product(const TypedMatrix& w, int T, bool biased) {
    const int rows = w.matrix.rows;
    const int cols = w.matrix.cols;
    const auto x = normal(static_cast<std::size_t>(T * cols), 100);
    const auto bias = normal(static_cast<std::size_t>(rows), 101);
    std::vector<float> y(static_cast<std::size_t>(T * rows), std::numeric_limits<float>::quiet_NaN());
    backend->matmul(x.data(), T, w.matrix, biased ? bias.data() : nullptr, y.data(), {});
    for (int t = 0; t < T; ++t) {
      for (int row = 0; row < rows; ++row) {
        double sum = biased ? bias[static_cast<std::size_t>(row)] : 0;
        double magnitude = std::fabs(sum);
        for (int i = 0; i < cols; ++i) {
          const double product = static_cast<double>(x[static_cast<std::size_t>(t * cols + i)]) *
                                 w.values[static_cast<std::size_t>(row * cols + i)];
          sum += product;
          magnitude += std::fabs(product);
        }
        ASSERT_NEAR(y[static_cast<std::size_t>(t * rows + row)], sum, (cols + 2) * eps / 2 * magnitude)
            << "T " << T << " row " << row;
      }
    }
  }
};

TEST_F(CpuMatmul, MatmulEqualsTheOracleForEveryDtypeAndNumberOfTokens) {
  for (const auto type : {gpu::DType::f32, gpu::DType::f16, gpu::DType::bf16}) {
    const TypedMatrix w(type, 131, 136, 1);
    for (const int T : {1, 2, 3, 8, 17, 64, 65, 500}) expect_product(w, T, T % 2 == 1);
  }
}

TEST_F(CpuMatmul, MatmulEqualsTheOracleForEveryShape) {
  for (const auto type : {gpu::DType::f32, gpu::DType::f16, gpu::DType::bf16}) {
    for (const int rows : {1, 3, 4, 257}) {
      for (const int cols : {1, 7, 8, 100, 2050}) {
        const TypedMatrix w(type, rows, cols, 2);
        for (const int T : {1, 7, 70}) expect_product(w, T, true);
      }
    }
  }
}

TEST_F(CpuMatmul, MatmulEqualsTheOracleOnEveryInstructionSet) {
  for_each_target([&] {
    for (const auto type : {gpu::DType::f32, gpu::DType::f16, gpu::DType::bf16}) {
      const TypedMatrix w(type, 37, 90, 3);
      for (const int T : {1, 4, 7, 70}) expect_product(w, T, true);
    }
  });
}

TEST_F(CpuMatmul, MatmulIsTheSameBitForBitOnOneThreadAndOnMany) {
  const offload::Threads one(1);
  const offload::Threads many(5);
  const auto single = gpu::make_cpu_backend(one);
  const auto several = gpu::make_cpu_backend(many);
  const TypedMatrix w(gpu::DType::bf16, 1000, 512, 4);
  for (const int T : {1, 6, 700}) {
    const auto x = normal(static_cast<std::size_t>(T) * 512, 5);
    std::vector<float> a(static_cast<std::size_t>(T) * 1000);
    std::vector<float> b(a.size());
    single->matmul(x.data(), T, w.matrix, nullptr, a.data(), {});
    several->matmul(x.data(), T, w.matrix, nullptr, b.data(), {});
    EXPECT_EQ(a, b);
  }
}

// Tokens have the same bits wherever a prompt is cut, and among however many threads they are divided.
TEST_F(CpuMatmul, ATokenOfAPromptHasTheSameBitsWhicheverComeWithIt) {
  const offload::Threads many(16);
  const auto several = gpu::make_cpu_backend(many);
  const test::RandomPacked packed({.bits = 4, .minimum = true}, 150, 1056, 9);
  const TypedMatrix f16(gpu::DType::f16, 131, 1030, 4), f32(gpu::DType::f32, 131, 1030, 5);
  for (const gpu::Matrix* const w : {&packed.matrix, &f16.matrix, &f32.matrix}) {
    constexpr int tokens = 701, first = 300, part = 101;
    const auto rows = static_cast<std::size_t>(w->rows);
    const auto x = normal(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(w->cols), 5);
    std::vector<float> whole(tokens * rows), shared(whole.size()), some(part * rows);
    backend->matmul(x.data(), tokens, *w, nullptr, whole.data(), {});
    several->matmul(x.data(), tokens, *w, nullptr, shared.data(), {});
    backend->matmul(x.data() + static_cast<std::ptrdiff_t>(first) * w->cols, part, *w, nullptr, some.data(), {});
    EXPECT_EQ(whole, shared);
    EXPECT_EQ(std::memcmp(&whole[first * rows], some.data(), some.size() * sizeof(float)), 0);
  }
}

TEST_F(CpuMatmul, ProductsTogetherAreThoseAloneToTheBit) {
  const TypedMatrix wide(gpu::DType::bf16, 1000, 512, 4), narrow(gpu::DType::f32, 3, 512, 5),
      one(gpu::DType::f16, 1, 8, 6);
  const gpu::Matrix* const matrices[] = {&wide.matrix, &narrow.matrix, &one.matrix, &wide.matrix, &narrow.matrix};
  const int tokens[] = {3, 1, 9, 700, 0};
  const auto x = normal(std::size_t{700} * 512, 7);
  std::vector<std::vector<float>> together, alone;
  std::vector<gpu::MatrixProduct> products;
  for (std::size_t i = 0; i < std::size(tokens); ++i) {
    together.emplace_back(static_cast<std::size_t>(tokens[i] * matrices[i]->rows));
    alone.push_back(together.back());
    backend->matmul(x.data(), tokens[i], *matrices[i], nullptr, alone[i].data(), {});
  }
  for (std::size_t i = 0; i < std::size(tokens); ++i) {
    products.push_back({x.data(), tokens[i], matrices[i], together[i].data()});
  }
  backend->multiply_each(products, {});
  EXPECT_EQ(together, alone);
  const offload::Threads many(5);
  gpu::make_cpu_backend(many)->multiply_each(products, {});
  EXPECT_EQ(together, alone);
  backend->gpu::Backend::multiply_each(products, {});  // what backends do that have no other way
  EXPECT_EQ(together, alone);
  backend->multiply_each({}, {});
}

TEST_F(CpuMatmul, RowsAreGatheredAndSummedInTheirOrder) {
  for (const int cols : {5, 40, 20000}) {
    const auto x = normal(static_cast<std::size_t>(4 * cols), 8);
    const std::vector<std::int32_t> rows{2, 0, 2, 3, 1, 0};
    const std::vector<float> weights{0.5f, -1.25f, 3, 0.1f, 1, 0};
    std::vector<float> gathered(rows.size() * static_cast<std::size_t>(cols)), other(gathered.size());
    backend->gather_rows(x.data(), rows, cols, gathered.data(), {});
    backend->gpu::Backend::gather_rows(x.data(), rows, cols, other.data(), {});
    EXPECT_EQ(gathered, other);
    const auto n = static_cast<std::size_t>(cols);
    std::vector<float> expected(4 * n), sums(4 * n), by_default(4 * n);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<std::size_t>(rows[i]);
      for (std::size_t c = 0; c < n; ++c) {
        EXPECT_EQ(gathered[i * n + c], x[row * n + c]);
        volatile float product = weights[i] * x[row * n + c];  // rounded
        expected[row * n + c] += product;
      }
    }
    backend->sum_rows(gathered.data(), rows, weights, 4, cols, sums.data(), {});
    backend->gpu::Backend::sum_rows(other.data(), rows, weights, 4, cols, by_default.data(), {});
    EXPECT_EQ(sums, expected);
    EXPECT_EQ(by_default, expected);
  }
}

TEST_F(CpuMatmul, EmbedTakesTheTokensRowsAndRefusesATokenOutsideTheTable) {
  for (const auto type : {gpu::DType::f32, gpu::DType::f16, gpu::DType::bf16}) {
    const TypedMatrix table(type, 50, 24, 6);
    const std::vector<std::int32_t> tokens{0, 49, 7, 7};
    std::vector<float> out(4 * 24);
    backend->embed(table.matrix, tokens.data(), 4, out.data(), {});
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < 24; ++i) {
        EXPECT_EQ(out[static_cast<std::size_t>(t * 24 + i)],
                  table.values[static_cast<std::size_t>(tokens[static_cast<std::size_t>(t)] * 24 + i)]);
      }
    }
    const std::int32_t outside = 50;
    EXPECT_THROW(backend->embed(table.matrix, &outside, 1, out.data(), {}), Error);
  }
}

}  // namespace
}  // namespace hayloft
