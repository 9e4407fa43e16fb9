#include <random>

#include "gpu/cuda_sparse.h"
#include "runtime/attention/counters.h"
#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Integer rows cross the link as they are stored: the bytes that copies take are those that are counted.
namespace hayloft::simt {
namespace {

using offload::RowFormat;
using runtime::Counters;
using runtime::Kind;
using runtime::Place;
using testing::CacheShape;
using testing::RandomCache;
using testing::SharedCache;

class IntegerRowsTest : public ::testing::Test, public ::testing::WithParamInterface<RowFormat> {
 protected:
  IntegerRowsTest() { reset(); }

  static constexpr int query_heads = 4;
  static CacheShape shape() {
    return {.kv_heads = 2, .head_dim = 64, .block_tokens = 16, .stored = 400, .tail = 9, .seed = 3, .rows = GetParam()};
  }

  // Counts the copies that a call makes to bring to the device what it needs, when the tables are there.
  template <class Call>
  static std::uint64_t copied(const Call& call) {
    call();
    const std::uint64_t before = copied_to_device();
    call();
    return copied_to_device() - before;
  }

  static std::uint64_t counted(SharedCache& cache, const gpu::Attended& what) {
    Counters counters;
    count_rows(counters, cache.on_cpu(), what, Kind::rows);
    return counters.at(Place::link, Kind::rows);
  }
};

TEST_P(IntegerRowsTest, WhatIsStreamedTakesTheBytesThatAreCounted) {
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
  const gpu::Buffer q = testing::upload(*cuda, testing::random_query(query_heads, 64, 1));
  const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
  for (const auto host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
    SharedCache cache(*cuda, shape(), host);
    const std::uint64_t row_bytes = cache.values().stored().layout->row_bytes;
    EXPECT_EQ(row_bytes, GetParam() == RowFormat::int8 ? 136u : 72u);
    gpu::Attended what;
    what.ranges[0] = {10, 309};
    EXPECT_EQ(counted(cache, what), 2 * 299 * row_bytes);
    const auto attend = [&] {
      cuda->attend(cache.on_cuda(), q.as<float>(), query_heads, what, out.as<float>(), cuda->stream());
      cuda->synchronize(cuda->stream());
    };
    EXPECT_EQ(copied(attend), counted(cache, what));
    if (host == SharedCache::Host::pinned) continue;
    std::vector<std::int32_t> positions;
    for (int list = 0; list < 2; ++list) {
      for (int i = 0; i < 60; ++i) positions.push_back(i * 6 + list);
    }
    const gpu::Buffer lists = testing::upload(*cuda, positions);
    what = {};
    what.positions = lists.as<std::int32_t>();
    what.lists = 2;
    what.k = 60;
    EXPECT_EQ(copied(attend), counted(cache, what));
  }
}

TEST_P(IntegerRowsTest, APromptsAttentionReadsTheStoreAsItIs) {
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
  SharedCache cache(*cuda, shape());
  const gpu::Buffer q = testing::upload(*cuda, testing::normal(8 * query_heads * 64, 1));
  const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
  const std::uint64_t bytes = copied([&] {
    cuda->attend_causal(cache.on_cuda(), q.as<float>(), 8, query_heads, {}, out.as<float>(), cuda->stream());
    cuda->synchronize(cuda->stream());
  });
  EXPECT_EQ(bytes, 2 * 400 * cache.values().stored().layout->row_bytes);
}

// Twice to choose keys and once to attend to them; the lists of keys travel with the launches.
TEST_P(IntegerRowsTest, ASparsePromptReadsTheStoreAsOftenAsIsCounted) {
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda();
  SharedCache cache(*cuda, shape());
  const gpu::Buffer q = testing::upload(*cuda, testing::normal(8 * query_heads * 64, 1));
  const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
  for (const int dense_keys : {64, 1024}) {
    const gpu::SparseCausal how{.mass = 0.9, .density = 0.25, .dense_keys = dense_keys};
    const std::uint64_t bytes = copied([&] {
      gpu::SparseRead read;
      cuda->attend_causal_sparse(cache.on_cuda(), q.as<float>(), 8, query_heads, how, out.as<float>(), read,
                                 cuda->stream());
      cuda->synchronize(cuda->stream());
    });
    const int passes = gpu::cuda_sparse_passes(2, query_heads / 2, 409 - 8, 8, how);
    EXPECT_EQ(passes, dense_keys < 409 ? 3 : 1);
    EXPECT_EQ(bytes, static_cast<unsigned>(2 * passes) * 400 * cache.values().stored().layout->row_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, IntegerRowsTest, ::testing::Values(RowFormat::int8, RowFormat::int4),
                         [](const auto& format) { return std::string(offload::name(format.param)); });

}  // namespace
}  // namespace hayloft::simt
