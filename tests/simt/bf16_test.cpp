#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gpu/make_backend.h"
#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/gpu/cuda/matrices.h"
#include "tests/simt/device/control.h"

// bf16 weights on a device whose tensor cores don't know bf16.
namespace hayloft::simt {
namespace {

using gpu::DType;
using testing::download;
using testing::upload;

class Bf16Test : public ::testing::Test {
 protected:
  std::unique_ptr<gpu::Backend> of_capability(int major, int minor) {
    device().major = major;
    device().minor = minor;
    return testing::make_cuda();
  }

  static bf16 cut_off(float x) { return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)}; }
  static std::vector<bf16> weights(std::size_t n, float scale) {
    std::vector<bf16> w(n);
    const std::vector<float> values = testing::normal(n, 3, scale);
    std::transform(values.begin(), values.end(), w.begin(), cut_off);
    return w;
  }

  struct Settled {
    DType type = DType::bf16;
    std::vector<bf16> bits;
  };
  static Settled settle(gpu::Backend& backend, const std::vector<bf16>& w) {
    const gpu::Buffer memory = upload(backend, w);
    const DType type =
        backend.convert_weights(memory.as<void>(), DType::bf16, static_cast<std::int64_t>(w.size()), backend.stream());
    return {type, download<bf16>(backend, memory)};
  }
  static bool kept(gpu::Backend& backend, const std::vector<bf16>& w) {
    const Settled settled = settle(backend, w);
    const auto same = [](bf16 a, bf16 b) { return a.bits == b.bits; };
    return settled.type == DType::bf16 && std::equal(w.begin(), w.end(), settled.bits.begin(), same);
  }
};

TEST_F(Bf16Test, WeightsLikeThoseOfModelsBecomeF16AndLoseNextToNothing) {
  const auto turing = of_capability(7, 5);
  const std::vector<bf16> w = weights(20001, 0x1p-6f);
  const Settled settled = settle(*turing, w);
  ASSERT_EQ(settled.type, DType::f16);
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float x = to_float(w[i]), y = to_float(f16{settled.bits[i].bits});
    if (std::fabs(x) >= 0x1p-17f) {
      ASSERT_EQ(y, x) << i;
    } else {
      ASSERT_NEAR(y, x, 0x1p-25) << i;
    }
  }
}

TEST_F(Bf16Test, NumbersThatF16HasNotKeepTheMatrix) {
  const auto turing = of_capability(7, 5);
  for (const float bad : {65536.0f, -65536.0f, 1e30f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<bf16> w = weights(5000, 1);
    w[4321] = cut_off(bad);
    EXPECT_TRUE(kept(*turing, w)) << bad;
    w[4321] = cut_off(65280);  // the largest of both types
    EXPECT_FALSE(kept(*turing, w));
  }
}

TEST_F(Bf16Test, SmallNumbersKeepTheMatrixWhenTheirLossIsMuchOfItsNorm) {
  // Each is off by 2^-25, half a unit of f16's last place there, and so by a third of itself.
  const auto turing = of_capability(7, 5);
  std::vector<bf16> w(3000, cut_off(0x3p-25f));
  EXPECT_TRUE(kept(*turing, w));
  EXPECT_TRUE(kept(*turing, weights(3000, 1e-30f))) << "they would all be zero";
  // With one larger the norm is its own: the loss is sqrt(3000) 2^-25, which is 2^-11 of 0.00334.
  w[7] = cut_off(0.0030f);
  EXPECT_TRUE(kept(*turing, w));
  w[7] = cut_off(0.0037f);
  EXPECT_FALSE(kept(*turing, w));
  EXPECT_FALSE(kept(*turing, std::vector<bf16>(100, bf16{0})));
}

TEST_F(Bf16Test, NothingIsTouchedWhereBf16IsFastOrTheTypeIsAnother) {
  EXPECT_TRUE(kept(*of_capability(8, 0), weights(3000, 1)));
  const auto turing = of_capability(7, 5);
  const std::vector<bf16> w = weights(3000, 1);
  const gpu::Buffer memory = upload(*turing, w);
  for (const DType type : {DType::f16, DType::f32}) {
    EXPECT_EQ(turing->convert_weights(memory.as<void>(), type, 1500, turing->stream()), type);
  }
  EXPECT_EQ(launches("bf16_to_f16"), 0);
}

TEST_F(Bf16Test, AModelOfBf16IsReadWithoutAProductOfIt) {
  for (const char* name : {"qwen2-sliding", "smollm3"}) {
    SCOPED_TRACE(name);
    const auto cpu = gpu::make_cpu_backend(testing::threads());
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    const offload::Topology topology;
    runtime::SessionOptions options;
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    options.chunk_tokens = 20;  // more than the kernel of single tokens takes
    std::vector<std::int32_t> tokens(30);
    std::mt19937 random(3);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 128);
    const auto logits = [&](gpu::Backend& backend) {
      memory.listener = backend.pinning();
      offload::Arena arena(topology, memory);
      const runtime::Model model(testing::golden_models() / name, backend);
      runtime::Session session(model, arena, options);
      session.append(tokens);
      std::vector<float> scores = session.score(tokens);
      const std::vector<float> last = session.step(7);
      scores.insert(scores.end(), last.begin(), last.end());
      return scores;
    };
    const std::vector<float> expected = logits(*cpu);
    const double largest = std::fabs(*std::max_element(expected.begin(), expected.end(),
                                                       [](float a, float b) { return std::fabs(a) < std::fabs(b); }));

    reset();
    const std::vector<float> actual = logits(*of_capability(7, 5));
    EXPECT_EQ(products(CUDA_R_16BF), 0);
    EXPECT_GT(products(CUDA_R_16F), 0);
    // Their weights lose nothing in f16, so this is what tests/gpu/cuda/model_test.cpp says of models of f16.
    EXPECT_TRUE(testing::near(actual, expected, 0x1p-5 * largest));

    reset();
    logits(*of_capability(8, 0));
    EXPECT_GT(products(CUDA_R_16BF), 0) << "what this test counts";
  }
}

}  // namespace
}  // namespace hayloft::simt
