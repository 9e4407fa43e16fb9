#include <algorithm>
#include <cmath>

#include "gpu/cuda_memory.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/gpu/cuda/matrices.h"
#include "tests/simt/device/control.h"
#include "tests/support/random_packed.h"

// Prompts multiply packed weights in ways that go by the device and make no difference.
namespace hayloft::simt {
namespace {

class PromptProducts : public ::testing::Test {
 protected:
  struct Made {
    std::vector<float> y;
    std::int64_t in_registers = 0, of_many_tokens = 0;  // kernels
  };
  Made multiply(int major, int minor, int multiprocessors, int T) {
    reset();
    device().major = major, device().minor = minor;
    device().multiprocessors = multiprocessors;
    const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
    const gpu::Buffer weights = testing::upload(*cuda, w_.bytes);
    gpu::Matrix matrix = w_.matrix;
    matrix.data = weights.as<void>();
    const gpu::Buffer x = testing::upload(*cuda, testing::normal(static_cast<std::size_t>(T * cols), 1));
    const gpu::Buffer y = cuda->allocate(static_cast<std::uint64_t>(T * rows) * sizeof(float), cuda->stream());
    cuda->matmul(x.as<float>(), T, matrix, nullptr, y.as<float>(), cuda->stream());
    return {testing::download<float>(*cuda, y), launches("packed_prompt_kernel"),
            launches("packed_prompt_kernel<hayloft::gpu::cuda::(anonymous namespace)::ManyTokens")};
  }
  // Sums in another order, or cut off by other steps, part by 2^-22 of the products' sizes for each 16 columns.
  static void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    float largest = 0, off = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::fabs(a[i]));
      off = std::max(off, std::fabs(a[i] - b[i]));
    }
    EXPECT_LE(off, largest * (cols / 16) * 0x1p-22f);
  }

  static constexpr int rows = 150, cols = 256;
  const test::RandomPacked w_{{.bits = 4, .minimum = true, .products = true}, rows, cols, 2};
};

TEST_F(PromptProducts, AreUnpackedInRegistersUpToALengthOrAlways) {
  constexpr int most = gpu::cuda_tokens_in_registers, longer = most + 88;
  const Made in_panels = multiply(9, 0, 4, longer), in_registers = multiply(8, 6, 4, longer);
  EXPECT_EQ(in_panels.in_registers, 0);
  EXPECT_EQ(in_registers.in_registers, 1);
  expect_near(in_panels.y, in_registers.y);
  EXPECT_EQ(multiply(8, 0, 4, longer).in_registers, 0);
  EXPECT_EQ(multiply(12, 0, 4, longer).in_registers, 1);
  EXPECT_EQ(multiply(9, 0, 4, most).in_registers, 1);
}

TEST_F(PromptProducts, HaveBlocksOfManyTokensWhereTheseFillTheDevice) {
  constexpr int T = 130;  // two blocks of rows, and two of tokens
  const Made many = multiply(8, 6, 4, T), few = multiply(8, 6, 5, T);
  EXPECT_EQ(many.of_many_tokens, 1);
  EXPECT_EQ(few.in_registers, 1);
  EXPECT_EQ(few.of_many_tokens, 0);
  expect_near(many.y, few.y);
}

}  // namespace
}  // namespace hayloft::simt
