#include <cublas_v2.h>

#include <random>

#include "offload/half.h"
#include "tests/simt/stream_fixture.h"

// Matrix products of the cuBLAS double, against sums written out.
namespace hayloft::simt {
namespace {

class CublasTest : public StreamTest {
 protected:
  void SetUp() override {
    StreamTest::SetUp();
    ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasSetWorkspace(handle, on_device<std::byte>(workspace_bytes), workspace_bytes),
              CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    cublasDestroy(handle);
    StreamTest::TearDown();
  }

  // Small integers: sums are exact in every type.
  static std::vector<float> integers(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<float> values(n);
    for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
    return values;
  }
  template <class T>
  T* uploaded(const std::vector<T>& values) {
    T* data = on_device<T>(values.size());
    cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
    return data;
  }

  static constexpr std::size_t workspace_bytes = 1024;
  cublasHandle_t handle = nullptr;
};

constexpr int m = 3, n = 4, k = 5;

TEST_F(CublasTest, MultipliesColumnMajorMatricesInEitherOrientation) {
  const float alpha = 2, beta = -1;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const int lda = (ta ? k : m) + 1, ldb = (tb ? n : k) + 2, ldc = m + 3;
      const auto a = integers(static_cast<std::size_t>(lda * (ta ? m : k)), 1);
      const auto b = integers(static_cast<std::size_t>(ldb * (tb ? k : n)), 2);
      const auto c = integers(static_cast<std::size_t>(ldc * n), 3);
      auto expected = c;
      for (int j = 0; j < n; ++j) {
        for (int i = 0; i < m; ++i) {
          float sum = 0;
          for (int l = 0; l < k; ++l) {
            sum += a[static_cast<std::size_t>(ta ? l + i * lda : i + l * lda)] *
                   b[static_cast<std::size_t>(tb ? j + l * ldb : l + j * ldb)];
          }
          auto& element = expected[static_cast<std::size_t>(i + j * ldc)];
          element = alpha * sum + beta * element;
        }
      }
      float* out = uploaded(c);
      EXPECT_EQ(cublasGemmEx(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha,
                             uploaded(a), CUDA_R_32F, lda, uploaded(b), CUDA_R_32F, ldb, &beta, out, CUDA_R_32F, ldc,
                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                CUBLAS_STATUS_SUCCESS);
      EXPECT_EQ(to_host(out, c.size()), expected) << ta << tb;
    }
  }
}

TEST_F(CublasTest, SumsAreCutOffAsTensorCoresMayCutThemOff) {
  constexpr float alpha = 1, beta = 0;
  constexpr int terms = 64;
  const std::vector<f16> ones(terms, to_f16(1.0f));
  std::vector<f16> values(terms, to_f16(0x1p-15f));
  values[0] = to_f16(2048.0f);  // whose last place in f32 is 2^-12: eight of the others
  auto* out = on_device<float>(1);
  EXPECT_EQ(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, terms, &alpha, uploaded(ones), CUDA_R_16F, terms,
                         uploaded(values), CUDA_R_16F, terms, &beta, out, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(to_host(out, 1)[0], 2048.0f);  // each by itself is lost; rounded at the end it would be 8 places more
}

TEST_F(CublasTest, SixteenBitInputsAddUpInF32) {
  const float alpha = 1, beta = 0;
  const std::vector<bf16> a(m * k, {0x3f80}), b(k * n, {0x4049});  // 1 and 3.140625
  auto* out = on_device<float>(m * n);                             // NaN, which beta = 0 must not read
  EXPECT_EQ(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &alpha, uploaded(a), CUDA_R_16BF, m, uploaded(b),
                         CUDA_R_16BF, k, &beta, out, CUDA_R_32F, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(to_host(out, m * n).back(), 5 * 3.140625f);
}

TEST_F(CublasTest, ArgumentsThatCannotBeAreRefused) {
  const float one = 1, zero = 0;
  auto* data = on_device<float>(100);
  const auto product = [&](int lda, cudaDataType type_b, cublasComputeType_t compute) {
    return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, data, CUDA_R_32F, lda, data, type_b, k, &zero,
                        data, CUDA_R_32F, m, compute, CUBLAS_GEMM_DEFAULT);
  };
  EXPECT_EQ(product(m - 1, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(product(m, CUDA_R_16F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(product(m, CUDA_R_32F, CUBLAS_COMPUTE_16F), CUBLAS_STATUS_NOT_SUPPORTED);
  fail_call("cublasGemmEx", 1, CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(product(m, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_INTERNAL_ERROR);
}

TEST_F(CublasTest, AStreamIsSetBeforeTheWorkspaceWhichItResets) {
  const float one = 1, zero = 0;
  auto* data = on_device<float>(100);
  const auto product = [&] {
    return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, data, CUDA_R_32F, m, data, CUDA_R_32F, k,
                        &zero, data + 50, CUDA_R_32F, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  };
  EXPECT_EQ(product(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasSetStream(handle, other), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product(), CUBLAS_STATUS_ALLOC_FAILED);
  auto* workspace = on_device<std::byte>(2 * workspace_bytes);
  EXPECT_EQ(cublasSetWorkspace(handle, workspace + 128, workspace_bytes), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasSetWorkspace(handle, workspace + 256, workspace_bytes), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product(), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace hayloft::simt
