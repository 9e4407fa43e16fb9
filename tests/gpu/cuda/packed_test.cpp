// Packed weights on the device: products, panels of a prompt and rows of an embedding, beside the CPU backend.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/cuda_memory.h"
#include "gpu/table_row.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/support/random_packed.h"

namespace hayloft::testing {
namespace {

using test::all_packings;
using test::RandomPacked;

constexpr int in_panels = gpu::cuda_tokens_in_registers + 1;  // on devices with wide products
constexpr double packed_eps = std::numeric_limits<float>::epsilon();

class PackedTest : public CudaTest {
 protected:
  gpu::Matrix on_device(const RandomPacked& w) {
    memory_.push_back(upload(*cuda, w.bytes));
    gpu::Matrix matrix = w.matrix;
    matrix.data = memory_.back().as<void>();
    return matrix;
  }

  // y = W x + bias of both backends beside double, x `offset` elements behind an aligned address.
  void expect_product(const RandomPacked& w, int T, bool biased, int offset = 0) {
    const int rows = w.matrix.rows, cols = w.matrix.cols;
    const auto x = normal(static_cast<std::size_t>(offset + T * cols), 100);
    const auto bias = normal(static_cast<std::size_t>(rows), 101);
    const gpu::Buffer inputs = upload(*cuda, x), added = upload(*cuda, bias);
    const gpu::Buffer outputs = cuda->allocate(static_cast<std::uint64_t>(T * rows) * sizeof(float), cuda->stream());
    cuda->matmul(inputs.as<float>() + offset, T, on_device(w), biased ? added.as<float>() : nullptr,
                 outputs.as<float>(), cuda->stream());
    const auto y = download<float>(*cuda, outputs);
    std::vector<float> on_cpu(y.size());
    cpu->matmul(x.data() + offset, T, w.matrix, biased ? bias.data() : nullptr, on_cpu.data(), {});
    // Many tokens meet weights as numbers of f16, and are such numbers themselves: each half a unit off.
    const double rounding = T > gpu::cuda_tokens_as_alone ? 2 * 0x1p-11 : 0;
    for (int t = 0; t < T; ++t) {
      // A few tokens are whole numbers on the device: each off by 2^-15 of the largest of 32 at most.
      const auto largest = [&](int i) {
        const auto* const from = x.data() + offset + t * cols + i / 32 * 32;
        return std::fabs(
            *std::max_element(from, from + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
      };
      for (int row = 0; row < rows; ++row) {
        double whole = 0;
        double sum = biased ? bias[static_cast<std::size_t>(row)] : 0, magnitude = std::fabs(sum);
        for (int i = 0; i < cols; ++i) {
          const auto at = static_cast<std::size_t>(row * cols + i);
          const double input = x[static_cast<std::size_t>(offset + t * cols + i)];
          sum += input * w.weights[at];
          magnitude += std::fabs(input) * w.magnitudes[at];
          if (rounding == 0) whole += 0x1p-15 * largest(i) * w.magnitudes[at];
        }
        const auto at = static_cast<std::size_t>(t * rows + row);
        const double sums = (cols + 4) * packed_eps / 2;
        ASSERT_NEAR(y[at], sum, (sums + rounding) * magnitude + whole) << "T " << T << " row " << row;
        ASSERT_NEAR(y[at], on_cpu[at], (2 * sums + rounding) * magnitude + whole) << "T " << T << " row " << row;
      }
    }
  }

 private:
  std::vector<gpu::Buffer> memory_;
};

TEST_F(PackedTest, ProductsAreTheCpusForEveryPackingAndNumberOfTokens) {
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    const RandomPacked w(packing, 37, packing.products ? 256 : 96, 1);
    for (const int T : {1, 5, 18, 71, 400, in_panels}) expect_product(w, T, T % 2 == 1);
  }
}

TEST_F(PackedTest, ProductsAreTheCpusForShapesThatFillNoBlock) {
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    for (const int rows : {1, 16}) {
      for (const int heads : {1, 3}) {
        const RandomPacked w(packing, rows, packing.products ? 256 * heads : 32 * heads, 2);
        for (const int T : {1, 3, 17, 65}) expect_product(w, T, false);
      }
    }
  }
}

TEST_F(PackedTest, ProductsAreTheCpusForRowsLongerThanABlockTakesAtOnce) {
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    expect_product(RandomPacked(packing, 17, 4096 + 256 * 5, 12), 1, true);
  }
}

// A block is wide or narrow by the number of blocks: of the rows of one tile and of twenty, one of both on every
// device. The double of the tests is slow with twenty, so that one packing has to do.
TEST_F(PackedTest, WhatComesOfATokenDoesNotDependOnTheWidthOfBlocks) {
  constexpr int cols = 2048 + 256 * 3, most = gpu::cuda_tokens_as_alone;
  const std::vector<float> x = normal(most * cols, 14);
  const gpu::Buffer inputs = upload(*cuda, x);
  for (const auto& [name, packing] : all_packings()) {
    for (const std::size_t rows : {16, 320}) {
      if (rows == 320 && std::string(name) != "Q4_K") continue;
      SCOPED_TRACE(name);
      const gpu::Matrix w = on_device(RandomPacked(packing, static_cast<int>(rows), cols, 13));
      const gpu::Buffer alone = cuda->allocate(rows * sizeof(float), cuda->stream());
      const gpu::Buffer all = cuda->allocate(most * rows * sizeof(float), cuda->stream());
      cuda->matmul(inputs.as<float>(), 1, w, nullptr, alone.as<float>(), cuda->stream());
      cuda->matmul(inputs.as<float>(), most, w, nullptr, all.as<float>(), cuda->stream());
      std::vector<float> first = download<float>(*cuda, all);
      first.resize(rows);
      EXPECT_EQ(first, download<float>(*cuda, alone));
    }
  }
}

// The largest of a block of inputs is a whole number of sixteen bits even if it is rounded up.
TEST_F(PackedTest, InputsBelowAPowerOfTwoKeepTheirSigns) {
  constexpr int cols = 256;
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    const RandomPacked w(packing, 16, cols, 16);
    const gpu::Buffer y = cuda->allocate(16 * sizeof(float), cuda->stream());
    for (const float value : {std::nextafter(2.0f, 0.0f), -std::nextafter(2.0f, 0.0f), -2.0f}) {
      const gpu::Buffer inputs = upload(*cuda, std::vector<float>(cols, value));
      cuda->matmul(inputs.as<float>(), 1, on_device(w), nullptr, y.as<float>(), cuda->stream());
      const auto sums = download<float>(*cuda, y);
      for (std::size_t row = 0; row < 16; ++row) {
        double sum = 0, magnitude = 0;
        for (std::size_t i = 0; i < cols; ++i) {
          sum += static_cast<double>(value) * w.weights[row * cols + i];
          magnitude += std::fabs(static_cast<double>(value)) * w.magnitudes[row * cols + i];
        }
        ASSERT_NEAR(sums[row], sum, (0x1p-15 + (cols + 4) * packed_eps / 2) * magnitude) << value;
      }
    }
  }
}

TEST_F(PackedTest, WhatIsNotFiniteStaysSoAndZerosStayZeros) {
  constexpr int cols = 512;
  const gpu::Matrix w = on_device(RandomPacked({.bits = 4, .minimum = true, .products = true}, 16, cols, 15));
  const gpu::Buffer y = cuda->allocate(16 * sizeof(float), cuda->stream());
  const auto product = [&](float value) {
    std::vector<float> x(cols);
    x[300] = value;
    const gpu::Buffer inputs = upload(*cuda, x);
    cuda->matmul(inputs.as<float>(), 1, w, nullptr, y.as<float>(), cuda->stream());
    return download<float>(*cuda, y);
  };
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {nan, infinity, -infinity}) {
    for (const float sum : product(value)) EXPECT_FALSE(std::isfinite(sum)) << value << " became " << sum;
  }
  EXPECT_EQ(product(0), std::vector<float>(16));
  for (const float sum : product(1e30f)) EXPECT_TRUE(std::isfinite(sum));
}

TEST_F(PackedTest, AFewTokensAreEachMultipliedAsAlone) {
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    const RandomPacked w(packing, 37, 256, 6);
    const gpu::Matrix matrix = on_device(w);
    constexpr int T = gpu::cuda_tokens_as_alone;
    const gpu::Buffer inputs = upload(*cuda, normal(T * 256, 7));
    const auto times = [&](int first, int count) {
      const gpu::Buffer y = cuda->allocate(static_cast<std::uint64_t>(count * 37) * sizeof(float), cuda->stream());
      cuda->matmul(inputs.as<float>() + first * 256, count, matrix, nullptr, y.as<float>(), cuda->stream());
      return download<float>(*cuda, y);
    };
    std::vector<float> alone;
    for (int t = 0; t < T; ++t) {
      const std::vector<float> one = times(t, 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    EXPECT_EQ(times(0, T), alone);
  }
}

TEST_F(PackedTest, ProductsThatGoTogetherAreEachThatOfOne) {
  constexpr int cols = 256;
  const auto packings = all_packings();
  std::vector<gpu::Matrix> matrices;
  for (const int of : {0, 1, 0, 0, 1, 0}) {  // more of the first than one kernel takes
    const auto& packing = packings[static_cast<std::size_t>(of)].packing;
    matrices.push_back(on_device(RandomPacked(packing, 17 + 16 * static_cast<int>(matrices.size()), cols, 8)));
  }
  const gpu::Buffer plain = upload(*cuda, normal(5 * cols, 9)), bias = upload(*cuda, normal(200, 10));
  matrices.push_back({plain.as<void>(), gpu::DType::f32, 5, cols});
  constexpr int most = gpu::cuda_tokens_as_alone;
  const gpu::Buffer inputs = upload(*cuda, normal(2 * 400 * cols, 11));
  for (const int T : {1, 3, most + 1, 65, 400}) {
    std::vector<gpu::MatrixProduct> products;
    std::vector<gpu::Buffer> together;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const auto bytes = static_cast<std::uint64_t>(T * matrices[i].rows) * sizeof(float);
      together.push_back(cuda->allocate(bytes, cuda->stream()));
      const float* const x = inputs.as<float>() + (i == 3 ? T * cols : 0);  // one has inputs of its own
      products.push_back({x, T, &matrices[i], together[i].as<float>(), i % 2 == 0 ? bias.as<float>() : nullptr});
    }
    cuda->multiply_each(products, cuda->stream());
    for (std::size_t i = 0; i < products.size(); ++i) {
      const gpu::MatrixProduct& each = products[i];
      const gpu::Buffer alone = cuda->allocate(together[i].bytes(), cuda->stream());
      cuda->matmul(each.x, T, *each.w, each.bias, alone.as<float>(), cuda->stream());
      EXPECT_EQ(download<float>(*cuda, together[i]), download<float>(*cuda, alone)) << "T " << T << " product " << i;
    }
  }
}

// Experts of a mixture have tokens of their own, each behind those of the others: here more experts than one kernel
// takes, one of them with a token too few for tensor cores.
TEST_F(PackedTest, ProductsOfExpertsAreEachThatOfOne) {
  constexpr int cols = 256, rows = 37;
  constexpr int tokens[] = {17, 40, 65, 130, 16, 64, 18};
  const auto packings = all_packings();
  std::vector<gpu::Matrix> matrices;
  for (std::uint32_t i = 0; i < 14; ++i) {
    matrices.push_back(on_device(RandomPacked(packings[i % 7 == 0 ? 1 : 0].packing, rows, cols, 20 + i)));
  }
  std::vector<gpu::MatrixProduct> products;
  int all = 0;
  for (std::size_t i = 0; i < 2 * matrices.size(); ++i) {
    products.push_back({nullptr, tokens[i / 2 % std::size(tokens)], &matrices[i / 2]});
    if (i % 2 == 1) all += products.back().T;
  }
  const gpu::Buffer inputs = upload(*cuda, normal(static_cast<std::size_t>(all * cols), 30));
  const gpu::Buffer y = cuda->allocate(std::uint64_t{2} * static_cast<unsigned>(all) * rows * 4, cuda->stream());
  const float* x = inputs.as<float>();
  float* to = y.as<float>();
  for (std::size_t i = 0; i < products.size(); to += products[i].T * rows, ++i) {
    products[i].x = x, products[i].y = to;
    if (i % 2 == 1) x += products[i].T * cols;  // the gate and what it gates have inputs in common
  }
  cuda->multiply_each(products, cuda->stream());
  const std::vector<float> together = download<float>(*cuda, y);
  for (const gpu::MatrixProduct& each : products)
    cuda->matmul(each.x, each.T, *each.w, nullptr, each.y, cuda->stream());
  EXPECT_EQ(together, download<float>(*cuda, y));
}

// On every device, so large a product has blocks of many tokens.
TEST_F(PackedTest, AProductThatFillsTheDeviceIsTheCpus) {
  int multiprocessors = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  const int rows = 128 * ((multiprocessors + 2) / 3) - 5;  // beside three blocks of 128 tokens
  for (const gpu::Packing packing :
       {gpu::Packing{.bits = 4, .minimum = true, .products = true}, gpu::Packing{.bits = 8, .zero = 128}}) {
    expect_product(RandomPacked(packing, rows, 256, 40), 2 * 128 + 30, true);
  }
}

TEST_F(PackedTest, InputsMayLieAtAnyAddress) {
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    const RandomPacked w(packing, 17, 256, 3);
    for (const int T : {1, 2, 17, 65}) expect_product(w, T, true, 1);
  }
}

using PackedSlow = PackedTest;

// A launch takes 32 MiB of inputs at most, here those of 16 of 18 products, and has inputs of two lengths in common.
TEST_F(PackedSlow, InputsOfManyProductsAreRoundedInTurns) {
  constexpr int cols = 16384, T = 64, products = 18;
  const gpu::Matrix w = on_device(RandomPacked({.bits = 4, .zero = 8}, 5, cols, 50));
  const gpu::Buffer inputs = upload(*cuda, normal(std::size_t{T} * cols * products, 51));
  const gpu::Buffer y = cuda->allocate(std::uint64_t{5} * T * products * sizeof(float), cuda->stream());
  std::vector<gpu::MatrixProduct> all;
  for (int i = 0; i < products; ++i) {
    const int first = i == 1 ? 0 : i;  // of the first one's tokens the second has some
    all.push_back({inputs.as<float>() + std::int64_t{first} * T * cols, i == 1 ? T - 20 : T, &w,
                   y.as<float>() + std::int64_t{i} * T * 5});
  }
  cuda->multiply_each(all, cuda->stream());
  const std::vector<float> together = download<float>(*cuda, y);
  for (const gpu::MatrixProduct& each : all) cuda->matmul(each.x, each.T, *each.w, nullptr, each.y, cuda->stream());
  const std::vector<float> alone = download<float>(*cuda, y);
  for (int i = 0; i < products; ++i) {
    const std::ptrdiff_t first = std::int64_t{i} * T * 5, count = std::int64_t{all[static_cast<std::size_t>(i)].T} * 5;
    EXPECT_TRUE(std::equal(together.begin() + first, together.begin() + first + count, alone.begin() + first)) << i;
  }
}

TEST_F(PackedSlow, ALongPromptMeetsTheMatrixPanelByPanel) {
  // 1024 rows of 16 K inputs are the 32 MiB of a panel.
  const RandomPacked w({.bits = 4, .zero = 8}, 1045, 16384, 4);
  const int rows = w.matrix.rows, cols = w.matrix.cols;
  constexpr int T = in_panels;
  std::vector<float> x(static_cast<std::size_t>(T * cols));  // one weight of each row for each of the first two tokens
  x[5] = 1;
  x[static_cast<std::size_t>(cols + 16000)] = 2;
  const gpu::Buffer inputs = upload(*cuda, x);
  const gpu::Buffer outputs = cuda->allocate(static_cast<std::uint64_t>(T * rows) * sizeof(float), cuda->stream());
  cuda->matmul(inputs.as<float>(), T, on_device(w), nullptr, outputs.as<float>(), cuda->stream());
  const auto y = download<float>(*cuda, outputs);
  for (int row = 0; row < rows; ++row) {
    const auto weight = [&](int col) {
      return to_float(to_f16(w.weights[static_cast<std::size_t>(row * cols + col)]));
    };
    ASSERT_EQ(y[static_cast<std::size_t>(row)], weight(5)) << row;
    ASSERT_EQ(y[static_cast<std::size_t>(rows + row)], 2 * weight(16000)) << row;
  }
}

TEST_F(PackedTest, RowsOfAnEmbeddingAreTheWeightsWhereverItLies) {
  const std::vector<std::int32_t> tokens = {36, 0, 17, 17, 5};
  for (const auto& [name, packing] : all_packings()) {
    SCOPED_TRACE(name);
    constexpr int cols = 512;
    const RandomPacked w(packing, 37, cols, 5);
    gpu::Matrix in_host_memory = w.matrix;
    in_host_memory.on_host = true;
    for (const gpu::Matrix& table : {on_device(w), in_host_memory}) {
      const gpu::Buffer out = cuda->allocate(tokens.size() * cols * sizeof(float), cuda->stream());
      cuda->embed(table, tokens.data(), static_cast<int>(tokens.size()), out.as<float>(), cuda->stream());
      const auto rows = download<float>(*cuda, out);
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        for (std::size_t i = 0; i < cols; ++i) {
          ASSERT_EQ(rows[t * cols + i], w.weights[static_cast<std::size_t>(tokens[t]) * cols + i]) << t << ' ' << i;
        }
      }
    }
  }
}

TEST_F(PackedTest, APlainTableMayLieInHostMemory) {
  const std::vector<f16> values = {to_f16(1), to_f16(2), to_f16(-3), to_f16(0.5f), to_f16(7), to_f16(-9)};
  gpu::Matrix table{values.data(), gpu::DType::f16, 3, 2};
  table.on_host = true;
  const std::int32_t tokens[] = {2, 0};
  const gpu::Buffer out = cuda->allocate(4 * sizeof(float), cuda->stream());
  cuda->embed(table, tokens, 2, out.as<float>(), cuda->stream());
  EXPECT_EQ(download<float>(*cuda, out), (std::vector<float>{7, -9, 1, 2}));
}

}  // namespace
}  // namespace hayloft::testing
