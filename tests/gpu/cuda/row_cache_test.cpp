#include <random>

#include "tests/gpu/cuda/backends.h"

// Rows that the device keeps change the bytes that cross the link, and no answer.
namespace hayloft::testing {
namespace {

using offload::RowFormat;

class CudaRowCache : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) keep(gpu::row_cache_rest);
  }
  void keep(std::uint64_t bytes) {
    cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30, .row_cache_bytes = bytes});
  }

  static CacheShape shape(RowFormat rows, int head_dim = 64, std::uint32_t seed = 3) {
    return {
        .kv_heads = 2, .head_dim = head_dim, .block_tokens = 64, .stored = 400, .tail = 9, .seed = seed, .rows = rows};
  }

  // Ascending positions below 400, [lists][k].
  static std::vector<std::int32_t> positions(int lists, int k, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> all;
    for (int list = 0; list < lists; ++list) {
      std::vector<std::int32_t> some(400);
      std::iota(some.begin(), some.end(), 0);
      std::shuffle(some.begin(), some.end(), random);
      some.resize(static_cast<std::size_t>(k));
      std::sort(some.begin(), some.end());
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  std::vector<float> output(const gpu::CacheView& view, const gpu::Buffer& q, const gpu::Buffer& list, int lists, int k,
                            unsigned long long* held = nullptr) {
    const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
    const int query_heads = static_cast<int>(q.bytes() / sizeof(float)) / view.head_dim;
    gpu::Attended what;
    what.positions = list.as<std::int32_t>();
    what.lists = lists;
    what.k = k;
    what.ranges[0] = {view.store.tokens, view.tokens()};
    what.held_bytes = held;
    cuda->attend(view, q.as<float>(), query_heads, what, out.as<float>(), cuda->stream());
    return download<float>(*cuda, out);
  }

  // Attends with what is kept, as without, and returns how many rows the device had.
  std::uint64_t attend(SharedCache& cache, int group, int lists, int k, std::uint32_t seed) {
    const gpu::CacheView view = cache.on_cuda();
    const int query_heads = group * view.kv_heads;
    const gpu::Buffer q = upload(*cuda, random_query(query_heads, view.head_dim, seed));
    const gpu::Buffer list = upload(*cuda, positions(lists, k, seed));
    const gpu::Buffer held = upload(*cuda, std::vector<unsigned long long>(1, 0));
    EXPECT_EQ(output(view, q, list, lists, k, held.as<unsigned long long>()),
              output(without_cache(view), q, list, lists, k));
    return download<unsigned long long>(*cuda, held)[0] / view.store.layout->row_bytes;
  }
};

TEST_F(CudaRowCache, RowsThatAreNamedAgainAreOnTheDevice) {
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8, RowFormat::int4}) {
    for (const int d : {64, 128, 256}) {
      keep(gpu::row_cache_rest);
      for (const int group : {1, 4, 17}) {
        for (const int per : {1, group}) {
          SCOPED_TRACE(::testing::Message()
                       << offload::name(rows) << " d " << d << " group " << group << " lists " << per);
          SharedCache cache(*cuda, shape(rows, d));
          const int lists = 2 * per;
          EXPECT_EQ(attend(cache, group, lists, 40, 1), 0u);
          // If several lists name a row, more may have wanted a slot of a set than there are.
          EXPECT_GE(attend(cache, group, lists, 40, 1), static_cast<unsigned>(lists * 40 - (per > 1 ? 8 : 0)));
        }
      }
    }
  }
}

// The host's bytes of what is held are never looked at.
TEST_F(CudaRowCache, WhatIsHeldIsNotReadFromTheHost) {
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8, RowFormat::int4}) {
    SCOPED_TRACE(offload::name(rows));
    keep(gpu::row_cache_rest);
    SharedCache cache(*cuda, shape(rows));
    const gpu::CacheView view = cache.on_cuda();
    const gpu::Buffer q = upload(*cuda, random_query(4, view.head_dim, 1));
    const gpu::Buffer list = upload(*cuda, positions(2, 40, 1));
    const std::vector<float> expected = output(view, q, list, 2, 40);
    const offload::BlockLayout& layout = *view.store.layout;
    for (const std::byte* block : view.store.blocks) {
      for (int head = 0; head < layout.kv_heads; ++head) {
        std::fill_n(const_cast<std::byte*>(layout.row_data(block, head)), layout.columns_offset, std::byte{0x3c});
      }
    }
    EXPECT_EQ(output(view, q, list, 2, 40), expected);
    EXPECT_NE(output(without_cache(view), q, list, 2, 40), expected);
  }
}

TEST_F(CudaRowCache, WithFewSlotsThoseReadLastStay) {
  keep(std::uint64_t{40} << 10);  // 64 rows of a head
  SharedCache cache(*cuda, shape(RowFormat::f16));
  EXPECT_EQ(attend(cache, 2, 2, 30, 1), 0u);
  EXPECT_GT(attend(cache, 2, 2, 30, 1), 40u) << "of 60";
  for (std::uint32_t seed = 2; seed < 9; ++seed) attend(cache, 2, 2, 60, seed);
  EXPECT_LT(attend(cache, 2, 2, 30, 1), 30u);
  EXPECT_GT(attend(cache, 2, 2, 30, 1), 40u);
}

TEST_F(CudaRowCache, SequencesOfTheSameNumbersAreToldApart) {
  keep(std::uint64_t{100} << 10);
  SharedCache one(*cuda, shape(RowFormat::int8, 64, 3)), other(*cuda, shape(RowFormat::int8, 64, 4));
  for (std::uint32_t step = 0; step < 30; ++step) {
    attend(step % 2 == 0 ? one : other, 2, 2, 50, step / 3);
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
}

TEST_F(CudaRowCache, MemoryThatIsNeededElsewhereIsGivenBack) {
  SharedCache cache(*cuda, shape(RowFormat::f16));
  attend(cache, 2, 2, 30, 1);
  EXPECT_EQ(attend(cache, 2, 2, 30, 1), 60u);
  const gpu::DeviceMemory memory = cuda->memory();
  const gpu::Buffer all =
      cuda->allocate(memory.budget_bytes - memory.used_bytes - (std::uint64_t{1} << 18), cuda->stream());
  EXPECT_EQ(attend(cache, 2, 2, 30, 1), 0u);
  EXPECT_EQ(attend(cache, 2, 2, 30, 1), 0u);
}

}  // namespace
}  // namespace hayloft::testing
