#include <cmath>
#include <limits>

#include "gpu/cuda_memory.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/gpu/cuda/matrices.h"

namespace hayloft::testing {
namespace {

constexpr double matmul_eps = std::numeric_limits<float>::epsilon();

class MatmulTest : public CudaTest {
 protected:
  // y = x W^T + bias against double. `offset` elements before x leave it misaligned.
  void expect_product(const TypedMatrix& w, int T, bool biased, int offset = 0) {
    expect_product(w, T, normal(static_cast<std::size_t>(offset + T * w.shape.cols), 100), offset, biased);
  }
  void expect_product(const TypedMatrix& w, int T, const std::vector<float>& x, int offset, bool biased) {
    const int rows = w.shape.rows, cols = w.shape.cols;
    const auto bias = normal(static_cast<std::size_t>(rows), 101);
    const gpu::Buffer weights = upload(*cuda, w.bytes);
    const gpu::Buffer inputs = upload(*cuda, x);
    const gpu::Buffer added = upload(*cuda, bias);
    const gpu::Buffer outputs = cuda->allocate(static_cast<std::uint64_t>(T * rows) * sizeof(float), cuda->stream());
    cuda->matmul(inputs.as<float>() + offset, T, w.at(weights), biased ? added.as<float>() : nullptr,
                 outputs.as<float>(), cuda->stream());
    const auto y = download<float>(*cuda, outputs);
    // Many tokens meet 16-bit weights as numbers of that type, each off by half a unit of its last place.
    double rounding = 0;
    if (T > gpu::cuda_tokens_as_alone && w.shape.type == gpu::DType::f16) rounding = 0x1p-11;
    if (T > gpu::cuda_tokens_as_alone && w.shape.type == gpu::DType::bf16) rounding = 0x1p-8;
    for (int t = 0; t < T; ++t) {
      for (int row = 0; row < rows; ++row) {
        double sum = biased ? bias[static_cast<std::size_t>(row)] : 0;
        double magnitude = std::fabs(sum);
        for (int i = 0; i < cols; ++i) {
          const double product = double{x[static_cast<std::size_t>(offset + t * cols + i)]} *
                                 w.values[static_cast<std::size_t>(row * cols + i)];
          sum += product;
          magnitude += std::fabs(product);
        }
        // Each of the products and sums rounds once, in whatever order.
        const double tolerance = ((cols + 2) * matmul_eps / 2 + rounding) * magnitude;
        ASSERT_NEAR(y[static_cast<std::size_t>(t * rows + row)], sum, tolerance) << "T " << T << " row " << row;
      }
    }
  }
};

constexpr gpu::DType all_types[] = {gpu::DType::f32, gpu::DType::f16, gpu::DType::bf16};

TEST_F(MatmulTest, EqualsTheOracleForEveryDtypeAndNumberOfTokens) {
  for (const auto type : all_types) {
    const TypedMatrix w(type, 37, 136, 1);
    for (const int T : {1, 2, 9, 17}) expect_product(w, T, T % 2 == 1);
  }
}

TEST_F(MatmulTest, EqualsTheOracleForEveryShape) {
  for (const auto type : all_types) {
    for (const int rows : {1, 9}) {
      for (const int cols : {1, 7, 8, 100, 2056}) {
        const TypedMatrix w(type, rows, cols, 2);
        for (const int T : {1, 3, 18}) expect_product(w, T, true);
      }
    }
  }
}

TEST_F(MatmulTest, AFewTokensAreEachMultipliedAsAlone) {
  for (const auto type : all_types) {
    for (const int cols : {7, 100, 136, 2056}) {
      const TypedMatrix w(type, 37, cols, 8);
      const gpu::Buffer weights = upload(*cuda, w.bytes), added = upload(*cuda, normal(37, 9));
      for (const int T : {2, 5, gpu::cuda_tokens_as_alone}) {
        const gpu::Buffer inputs = upload(*cuda, normal(static_cast<std::size_t>(T * cols), 10));
        const auto times = [&](int first, int count) {
          const gpu::Buffer y = cuda->allocate(static_cast<std::uint64_t>(count * 37) * sizeof(float), cuda->stream());
          cuda->matmul(inputs.as<float>() + first * cols, count, w.at(weights), added.as<float>(), y.as<float>(),
                       cuda->stream());
          return download<float>(*cuda, y);
        };
        std::vector<float> alone;
        for (int t = 0; t < T; ++t) {
          const std::vector<float> one = times(t, 1);
          alone.insert(alone.end(), one.begin(), one.end());
        }
        EXPECT_EQ(times(0, T), alone) << cols << " inputs, T " << T;
      }
    }
  }
}

TEST_F(MatmulTest, InputsMayLieAtAnyAddress) {
  for (const auto type : all_types) {
    const TypedMatrix w(type, 9, 64, 3);
    for (const int T : {1, 3, 18}) expect_product(w, T, false, 1);
  }
}

TEST_F(MatmulTest, InputsBeyondTheRangeOfF16MeetEveryDtype) {
  std::vector<float> magnitudes{1, 65504, 65520, 1e5f, 1e30f, 0};  // of the tokens
  magnitudes.resize(gpu::cuda_tokens_as_alone + 1, 1);
  const int cols = 40;
  for (const auto type : all_types) {
    const TypedMatrix w(type, 9, cols, 6);
    for (const bool biased : {false, true}) {
      std::vector<float> x = normal(magnitudes.size() * cols, 7);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = i % cols == 5 ? magnitudes[i / cols] : x[i] * magnitudes[i / cols] / 8;
      }
      expect_product(w, static_cast<int>(magnitudes.size()), x, 0, biased);
    }
  }
}

TEST_F(MatmulTest, InfinityAndNaNReachTheOutput) {
  for (const auto type : all_types) {
    const TypedMatrix w(type, 3, 16, 4);
    const gpu::Buffer weights = upload(*cuda, w.bytes);
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (const int T : {1, 2, 17}) {
        auto x = normal(static_cast<std::size_t>(T) * 16, 5);
        x[3] = bad;
        const gpu::Buffer inputs = upload(*cuda, x);
        const gpu::Buffer outputs = cuda->allocate(static_cast<std::uint64_t>(T) * 3 * sizeof(float), cuda->stream());
        cuda->matmul(inputs.as<float>(), T, w.at(weights), nullptr, outputs.as<float>(), cuda->stream());
        for (const float y : download<float>(*cuda, outputs.as<void>(), 3)) EXPECT_FALSE(std::isfinite(y));
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::testing
