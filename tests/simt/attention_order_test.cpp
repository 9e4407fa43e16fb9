#include <fmt/format.h>

#include "gpu/make_backend.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Attention on streams whose order is drawn from a seed, and without the host: what only the fake runtime can tell.
namespace hayloft::testing {
namespace {

// All but 256 KiB of the device's budget is taken, so that rows of the store pass through the smallest buffers that
// there are, of some MiB or 4,096 rows a head, which are used again and again.
class AttentionOrder : public CudaTest {
 protected:
  void SetUp() override {
    simt::reset();
    cpu = gpu::make_cpu_backend(threads());
    cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
    const gpu::DeviceMemory memory = cuda->memory();
    taken_ = cuda->allocate(memory.budget_bytes - memory.used_bytes - (256 << 10), cuda->stream());
  }
  void TearDown() override {
    taken_ = {};
    cuda.reset();
    simt::reset();
  }

  static constexpr int heads = 1, query_heads = 1, d = 256, T = 4;

  static CacheShape shape() {
    return {.kv_heads = heads, .head_dim = d, .block_tokens = 16, .stored = 10000, .tail = 9, .seed = 21};
  }

  gpu::Buffer taken_;
};

TEST_F(AttentionOrder, NeitherSeedNorMemoryChangesABit) {
  const std::vector<float> q = random_query(query_heads, d, 22);
  const std::vector<float> prefill_q = normal(T * query_heads * d, 23);
  std::vector<std::int32_t> lists;
  for (int head = 0; head < heads; ++head) {
    for (int i = 0; i < 90; ++i) lists.push_back(head + i * 4);
  }
  for (const SharedCache::Host host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
    SharedCache cache(*cuda, shape(), host);
    std::vector<float> first, first_prefill;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", host == SharedCache::Host::pinned ? "pinned" : "pageable", seed));
      simt::reset(seed);
      const gpu::Buffer device_q = upload(*cuda, q);
      const gpu::Buffer device_prefill_q = upload(*cuda, prefill_q);
      const gpu::Buffer device_lists = upload(*cuda, lists);
      const gpu::Buffer alpha = upload(*cuda, std::vector<float>(query_heads, 0.5f));
      const gpu::Buffer y = cuda->allocate(q.size() * sizeof(float), cuda->stream());
      const gpu::Buffer prefill_y = cuda->allocate(prefill_q.size() * sizeof(float), cuda->stream());
      gpu::Attended what;
      what.positions = device_lists.as<std::int32_t>();
      what.lists = heads;
      what.k = 90;
      what.ranges[0] = {9970, 10009};
      what.ranges[1] = {0, 9965};  // a second time what the lists name: no matter here
      what.alpha = alpha.as<float>();
      cuda->attend(cache.on_cuda(), device_q.as<float>(), query_heads, what, y.as<float>(), cuda->stream());
      cuda->attend_causal(cache.on_cuda(), device_prefill_q.as<float>(), T, query_heads, {}, prefill_y.as<float>(),
                          cuda->stream());
      const std::vector<float> step = download<float>(*cuda, y);
      const std::vector<float> prefill = download<float>(*cuda, prefill_y);
      if (seed == 1) {
        first = step;
        first_prefill = prefill;
        continue;
      }
      ASSERT_EQ(step, first);
      ASSERT_EQ(prefill, first_prefill);
    }
    for (const float value : first) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(AttentionOrder, OnAPinnedStoreTheHostWaitsForNothing) {
  SharedCache cache(*cuda, shape());
  const gpu::Buffer q = upload(*cuda, normal(T * query_heads * d, 24));
  const gpu::Buffer lists = upload(*cuda, std::vector<std::int32_t>{1, 5, 300});
  const gpu::Buffer alpha = upload(*cuda, std::vector<float>(query_heads, 0.5f));
  const gpu::Buffer y = cuda->allocate(q.bytes(), cuda->stream());
  gpu::Attended what;
  what.positions = lists.as<std::int32_t>();
  what.lists = heads;
  what.k = 3;
  what.ranges[0] = {9998, 10009};
  what.ranges[1] = {10, 9890};
  what.alpha = alpha.as<float>();
  const std::int64_t before = simt::host_waits();
  cuda->attend(cache.on_cuda(), q.as<float>(), query_heads, what, y.as<float>(), cuda->stream());
  EXPECT_EQ(simt::host_waits(), before);
  cuda->attend_causal(cache.on_cuda(), q.as<float>(), T, query_heads, {}, y.as<float>(), cuda->stream());
  EXPECT_EQ(simt::host_waits(), before);
  EXPECT_GT(simt::launches("attend_rows"), 2) << "the long range comes in several chunks";
  cuda->synchronize(cuda->stream());  // before the cache goes
}

}  // namespace
}  // namespace hayloft::testing
