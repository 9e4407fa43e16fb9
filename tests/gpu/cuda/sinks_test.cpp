#include <optional>

#include "tests/gpu/cuda/decode_fixture.h"
#include "tests/gpu/cuda/select_fixture.h"

// Attention whose softmax has a logit that no value follows, on CUDA against the CPU backend.
namespace hayloft::testing {
namespace {

constexpr int heads = 6;
const std::vector<float> logits_of_sinks = {-90, 1, 3, 5, 7, 60};

class Sinks : public CudaSelect {
 protected:
  void SetUp() override {
    CudaSelect::SetUp();
    if (IsSkipped()) return;
    cache.emplace(*cuda,
                  CacheShape{.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 512, .tail = 40, .seed = 3});
    sinks = upload(*cuda, logits_of_sinks);
    on_cpu = cache->on_cpu(), on_cuda = cache->on_cuda();
    on_cpu.sinks = logits_of_sinks.data();
    on_cuda.sinks = sinks.as<float>();
  }
  void TearDown() override {  // before the backend goes
    sinks = {};
    cache.reset();
  }

  // A score, of products whose magnitudes come to some ten, is off by (64 + 4) eps / 2 of that, 4e-5, and so is a
  // weight of itself, on either side; values are below 5. A prompt's weights are rounded to f16 besides (causal.cu).
  static constexpr double of_decode = 4e-4, of_causal = 5 * 2 * (1.0 / 2048 + 1e-4);

  std::optional<SharedCache> cache;
  gpu::Buffer sinks;
  gpu::CacheView on_cpu, on_cuda;
};

TEST_F(Sinks, TakeTheirShareOfADecodedToken) {
  const std::vector<float> q = random_query(heads, 64, 4);
  const gpu::Buffer device_q = upload(*cuda, q);
  const gpu::Buffer out = cuda->allocate(q.size() * sizeof(float), cuda->stream());
  gpu::Attended what;
  what.ranges[0] = {0, 200};
  what.ranges[1] = {230, 552};
  std::vector<float> expected(q.size());
  cpu->attend(on_cpu, q.data(), heads, what, expected.data(), {});
  cuda->attend(on_cuda, device_q.as<float>(), heads, what, out.as<float>(), cuda->stream());
  EXPECT_TRUE(near(download<float>(*cuda, out), expected, of_decode));

  std::vector<float> max(heads), sum(heads);
  const gpu::Buffer device_max = upload(*cuda, max), device_sum = upload(*cuda, sum);
  what.partial = {max.data(), sum.data()};
  cpu->attend(on_cpu, q.data(), heads, what, expected.data(), {});
  what.partial = {device_max.as<float>(), device_sum.as<float>()};
  cuda->attend(on_cuda, device_q.as<float>(), heads, what, out.as<float>(), cuda->stream());
  EXPECT_TRUE(near(download<float>(*cuda, device_max), max, of_decode));
  EXPECT_TRUE(near(download<float>(*cuda, device_sum), sum, 0, of_decode));
}

TEST_F(Sinks, TakeTheirShareOfEveryTokenOfAPrompt) {
  for (const std::int64_t window : {0, 24}) {
    for (const int T : {1, 5, 40}) {
      const std::vector<float> q = normal(static_cast<std::size_t>(T * heads * 64), 6);
      const gpu::Buffer device_q = upload(*cuda, q);
      const gpu::Buffer out = cuda->allocate(q.size() * sizeof(float), cuda->stream());
      std::vector<float> expected(q.size());
      cpu->attend_causal(on_cpu, q.data(), T, heads, window, expected.data(), {});
      cuda->attend_causal(on_cuda, device_q.as<float>(), T, heads, window, out.as<float>(), cuda->stream());
      EXPECT_TRUE(near(download<float>(*cuda, out), expected, of_causal)) << T << " tokens, window " << window;
    }
  }
}

TEST_F(Sinks, CountInAlphaAndInWhatGroupsAreRankedBy) {
  const std::vector<float> q = random_query(heads, 64, 9);
  gpu::SparqSelect args;
  args.rank = 16;
  args.k = 24;
  args.limit = 512;
  const Selection expected = select(*cpu, on_cpu, q, args), actual = select(*cuda, on_cuda, q, args);
  EXPECT_EQ(actual.positions, expected.positions);
  EXPECT_TRUE(near(actual.alpha, expected.alpha, of_decode));
  EXPECT_NE(select(*cpu, cache->on_cpu(), q, args).positions, expected.positions) << "the sinks of a group differ";
}

}  // namespace
}  // namespace hayloft::testing
