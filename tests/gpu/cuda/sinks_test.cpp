#include "tests/gpu/cuda/decode_fixture.h"
#include "tests/gpu/cuda/select_fixture.h"

// Attention whose softmax has a logit that no value follows, on CUDA against the CPU backend.
namespace hayloft::testing {
namespace {

constexpr int heads = 6;
const std::vector<float> logits_of_sinks = {-90, 1, 3, 5, 7, 60};

class Sinks : public CudaSelect {
 protected:
  Sinks() : cache_shape{.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 512, .tail = 40, .seed = 3} {}

  // Each backend may be off by what Decode and Causal allow, in either direction.
  static constexpr double of_decode = 1e-4, of_causal = 5 * 2 * (1.0 / 2048 + 1e-4);

  CacheShape cache_shape;
};

TEST_F(Sinks, TakeTheirShareOfADecodedToken) {
  SharedCache cache(*cuda, cache_shape);
  const gpu::Buffer sinks = upload(*cuda, logits_of_sinks);
  gpu::CacheView on_cpu = cache.on_cpu(), on_cuda = cache.on_cuda();
  on_cpu.sinks = logits_of_sinks.data();
  on_cuda.sinks = sinks.as<float>();
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
  SharedCache cache(*cuda, cache_shape);
  const gpu::Buffer sinks = upload(*cuda, logits_of_sinks);
  gpu::CacheView on_cpu = cache.on_cpu(), on_cuda = cache.on_cuda();
  on_cpu.sinks = logits_of_sinks.data();
  on_cuda.sinks = sinks.as<float>();
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
  SharedCache cache(*cuda, cache_shape);
  const gpu::Buffer sinks = upload(*cuda, logits_of_sinks);
  gpu::CacheView on_cpu = cache.on_cpu(), on_cuda = cache.on_cuda();
  on_cpu.sinks = logits_of_sinks.data();
  on_cuda.sinks = sinks.as<float>();
  const std::vector<float> q = random_query(heads, 64, 9);
  gpu::SparqSelect args;
  args.rank = 16;
  args.k = 24;
  args.limit = 512;
  const Selection expected = select(*cpu, on_cpu, q, args), actual = select(*cuda, on_cuda, q, args);
  EXPECT_EQ(actual.positions, expected.positions);
  EXPECT_TRUE(near(actual.alpha, expected.alpha, of_decode));
  EXPECT_NE(select(*cpu, cache.on_cpu(), q, args).positions, expected.positions) << "the sinks of a group differ";
}

}  // namespace
}  // namespace hayloft::testing
