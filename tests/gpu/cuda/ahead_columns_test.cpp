#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/attention/counters.h"
#include "tests/gpu/cuda/select_fixture.h"

// Columns that are fetched before a step asks for them change when bytes cross the link, and no answer.
namespace hayloft::testing {
namespace {

using runtime::Counters;
using runtime::Kind;
using runtime::Place;

struct ReadAhead {
  std::uint64_t used = 0;
  std::uint64_t fetched = 0;
  std::uint64_t held = 0;  // by the column cache
};

constexpr ColumnFormat whole_formats[] = {ColumnFormat::f16, ColumnFormat::int8, ColumnFormat::int4};

class CudaAheadColumns : public CudaSelect {
 protected:
  void SetUp() override {
    CudaSelect::SetUp();
    if (!IsSkipped()) keep(1);  // no column at all
  }
  void keep(std::uint64_t bytes) {
    cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30, .column_cache_bytes = bytes});
  }

  // A selection behind a fetch, and what it read. It is the one of a device that keeps and fetches nothing.
  ReadAhead select_fetched(const gpu::CacheView& view, const std::vector<float>& q, gpu::SparqSelect args,
                           bool fetch = true) {
    const Selection expected = select(*cuda, without_cache(view), q, args);
    if (fetch) fetch_whole(view);
    const gpu::Buffer held = upload(*cuda, std::vector<unsigned long long>(4, 0));
    args.held_bytes = held.as<unsigned long long>();
    args.ahead_bytes = args.held_bytes + 2;
    expect_same(select(*cuda, view, q, args), expected);
    const auto bytes = download<unsigned long long>(*cuda, held);
    return {bytes[2], bytes[3], bytes[0] + bytes[1]};
  }

  // One that the step does not stop.
  void fetch_whole(const gpu::CacheView& view) {
    cuda->fetch_ahead(view, cuda->stream());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  static std::uint64_t counted(const gpu::CacheView& view, const gpu::SparqSelect& args) {
    Counters counters;
    count_columns(counters, view, args.rank, Place::link);
    return counters.at(Place::link, Kind::columns) + counters.at(Place::link, Kind::scales);
  }
};

TEST_F(CudaAheadColumns, AQueryThatComesAgainFindsAllOfItThere) {
  for (const ColumnFormat format : whole_formats) {
    for (const auto& [stored, block_tokens] : {std::pair(1024, 256), std::pair(1301, 256), std::pair(5000, 1024)}) {
      SCOPED_TRACE(::testing::Message() << offload::name(format) << " " << stored << " tokens");
      const SelectCase c = of(format, 4, stored, block_tokens);
      SharedCache cache(*cuda, c.cache);
      const std::vector<float> q = random_query(8, 32, 1);
      EXPECT_EQ(select_fetched(cache.on_cuda(), q, c.args()).fetched, 0u) << "nothing has been chosen yet";
      const std::uint64_t all = counted(cache.on_cuda(), c.args());
      for (int step = 0; step < 2; ++step) {
        const ReadAhead again = select_fetched(cache.on_cuda(), q, c.args());
        EXPECT_EQ(again.used, all);
        EXPECT_EQ(again.fetched, all);
      }
      EXPECT_EQ(select_fetched(cache.on_cuda(), q, c.args(), false).fetched, 0u) << "of one fetch";
    }
  }
}

TEST_F(CudaAheadColumns, EveryGroupSelectsAsWithoutItWhereSomeIsWrong) {
  for (const ColumnFormat format : whole_formats) {
    for (const int group : {1, 2, 4, 7, 16, 17}) {
      SCOPED_TRACE(::testing::Message() << offload::name(format) << " group " << group);
      const SelectCase c = of(format, group, 1300);
      SharedCache cache(*cuda, c.cache);
      const std::uint64_t all = counted(cache.on_cuda(), c.args());
      ReadAhead sum;
      for (std::uint32_t step = 0; step < 4; ++step) {
        const ReadAhead read = select_fetched(cache.on_cuda(), random_query(2 * group, 32, step), c.args());
        EXPECT_EQ(read.fetched, step == 0 ? 0 : all);
        sum.used += read.used;
      }
      EXPECT_GT(sum.used, 0u);
      EXPECT_LT(sum.used, 3 * all);
    }
  }
}

// The host's bytes of what was fetched are never looked at again.
TEST_F(CudaAheadColumns, WhatWasFetchedIsNotReadFromTheHost) {
  for (const ColumnFormat format : whole_formats) {
    SCOPED_TRACE(offload::name(format));
    const SelectCase c = of(format, 4, 1300);
    SharedCache cache(*cuda, c.cache);
    const gpu::CacheView view = cache.on_cuda();
    const std::vector<float> q = random_query(8, 32, 1);
    const Selection expected = select(*cuda, view, q, c.args());
    fetch_whole(view);
    const offload::BlockLayout& layout = *view.store.layout;
    for (const std::byte* block : view.store.blocks) {
      for (int head = 0; head < layout.kv_heads; ++head) {
        std::byte* const columns = const_cast<std::byte*>(layout.column(block, head, 0));
        std::fill_n(columns, layout.value_sum_offset - layout.columns_offset, std::byte{0x7e});
      }
    }
    expect_same(select(*cuda, view, q, c.args()), expected);
    EXPECT_NE(select(*cuda, without_cache(view), q, c.args()).positions, expected.positions);
  }
}

TEST_F(CudaAheadColumns, WhatIsKeptIsNotFetchedAndWhatIsFetchedIsKept) {
  for (const ColumnFormat format : whole_formats) {
    SCOPED_TRACE(offload::name(format));
    const unsigned part = format == ColumnFormat::f16 ? 20 : format == ColumnFormat::int8 ? 12 : 8;
    keep(std::uint64_t{part} << 10);
    SelectCase c = of(format, 4, 1024);
    SharedCache cache(*cuda, c.cache);
    const std::uint64_t all = counted(cache.on_cuda(), c.args());
    ReadAhead sum;
    for (std::uint32_t step = 0; step < 12; ++step) {
      const std::vector<float> q = random_query(8, 32, step / 3 % 3);
      const ReadAhead read = select_fetched(cache.on_cuda(), q, c.args());
      EXPECT_LE(read.used + read.held, all);
      if (step % 3 > 0) {
        EXPECT_EQ(read.used + read.held, all) << "the same query once more";
      }
      sum.used += read.used;
      sum.held += read.held;
    }
    EXPECT_GT(sum.used, 0u);
    EXPECT_GT(sum.held, 0u);
  }
}

TEST_F(CudaAheadColumns, WhereAllIsKeptNothingIsFetched) {
  keep(gpu::column_cache_rest);
  const SelectCase c = of(ColumnFormat::int4, 4, 1024);
  SharedCache cache(*cuda, c.cache);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(select_fetched(cache.on_cuda(), random_query(8, 32, 1), c.args()).fetched, 0u);
  }
}

// A step that comes right behind the fetch stops it.
TEST_F(CudaAheadColumns, AStepDoesNotWaitForAllOfAFetch) {
  const SelectCase c = of(ColumnFormat::int4, 4, 5000);
  SharedCache cache(*cuda, c.cache);
  const gpu::CacheView view = cache.on_cuda();
  const std::vector<float> q = random_query(8, 32, 1);
  const std::uint64_t all = counted(view, c.args());
  const Selection expected = select(*cuda, without_cache(view), q, c.args());
  const gpu::Buffer ahead = upload(*cuda, std::vector<unsigned long long>(2, 0));
  gpu::SparqSelect args = c.args();
  args.ahead_bytes = ahead.as<unsigned long long>();
  constexpr int steps = 8;
  for (int step = 0; step <= steps; ++step) {
    expect_same(select(*cuda, view, q, args), expected);
    cuda->fetch_ahead(view, cuda->stream());
  }
  EXPECT_LT(download<unsigned long long>(*cuda, ahead)[1], steps * all);
}

// A fetch that no step has read is not made again.
TEST_F(CudaAheadColumns, AFetchIsMadeOnceForAStep) {
  const SelectCase c = of(ColumnFormat::int8, 4, 1024);
  SharedCache cache(*cuda, c.cache);
  const gpu::CacheView view = cache.on_cuda();
  const std::vector<float> q = random_query(8, 32, 1);
  select_fetched(view, q, c.args(), false);
  for (int i = 0; i < 3; ++i) fetch_whole(view);
  const offload::BlockLayout& layout = *view.store.layout;
  std::byte* const columns = const_cast<std::byte*>(layout.column(view.store.blocks[0], 0, 0));
  const std::vector<std::byte> kept(columns, columns + (layout.value_sum_offset - layout.columns_offset));
  std::fill_n(columns, kept.size(), std::byte{0x7e});
  fetch_whole(view);
  std::copy(kept.begin(), kept.end(), columns);
  EXPECT_EQ(select_fetched(view, q, c.args(), false).used, counted(view, c.args()));
}

TEST_F(CudaAheadColumns, ABlockThatCameSinceIsReadFromTheHost) {
  const SelectCase c = of(ColumnFormat::int4, 4, 1280);
  SharedCache cache(*cuda, c.cache);
  const gpu::CacheView view = cache.on_cuda();
  gpu::CacheView shorter = view;
  shorter.store.tokens = 1024;
  shorter.store.blocks = view.store.blocks.first(4);
  shorter.store.serials = view.store.serials.first(4);
  shorter.tail.position = 1024;
  gpu::SparqSelect args = c.args();
  args.limit = 1024;
  const std::vector<float> q = random_query(8, 32, 1);
  select_fetched(shorter, q, args);
  const ReadAhead grown = select_fetched(view, q, c.args());  // between choice and fetch
  EXPECT_EQ(grown.used, counted(view, c.args()));
  fetch_whole(shorter);  // between fetch and step
  const ReadAhead later = select_fetched(view, q, c.args(), false);
  EXPECT_EQ(later.used, counted(shorter, args));
  fetch_whole(view);
  EXPECT_EQ(select_fetched(shorter, q, args, false).used, 0u);
}

TEST_F(CudaAheadColumns, SequencesThatTakeTurnsEachHaveTheirOwn) {
  const SelectCase c = of(ColumnFormat::int8, 2, 1024);
  std::vector<std::unique_ptr<SharedCache>> caches;
  for (int i = 0; i < 18; ++i) caches.push_back(std::make_unique<SharedCache>(*cuda, c.cache));  // more than it holds
  const std::uint64_t all = counted(caches[0]->on_cuda(), c.args());
  std::vector<std::uint64_t> used(18);
  for (int step = 0; step < 2; ++step) {
    for (const auto& cache : caches) fetch_whole(cache->on_cuda());
    for (std::size_t i = 0; i < 18; ++i) {
      const std::vector<float> q = random_query(4, 32, static_cast<std::uint32_t>(i));
      used[i] = select_fetched(caches[i]->on_cuda(), q, c.args(), false).used;
    }
  }
  EXPECT_EQ(std::count(used.begin(), used.end(), all), 16);
  EXPECT_EQ(std::count(used.begin(), used.end(), 0u), 2);
}

TEST_F(CudaAheadColumns, MemoryThatIsNeededElsewhereIsGivenBack) {
  const SelectCase c = of(ColumnFormat::int8, 4, 1300);
  SharedCache cache(*cuda, c.cache);
  const std::vector<float> q = random_query(8, 32, 1);
  const std::uint64_t before = cuda->memory().used_bytes;
  for (int step = 0; step < 2; ++step) select_fetched(cache.on_cuda(), q, c.args());
  EXPECT_LT(cuda->memory().used_bytes, before + 8192) << "what is fetched counts as free";
  {
    const std::vector<gpu::Buffer> all = take_all_but(*cuda, 8192);
    for (int step = 0; step < 2; ++step) EXPECT_EQ(select_fetched(cache.on_cuda(), q, c.args()).fetched, 0u);
  }
  select_fetched(cache.on_cuda(), q, c.args());
  EXPECT_EQ(select_fetched(cache.on_cuda(), q, c.args()).used, counted(cache.on_cuda(), c.args()));
}

TEST_F(CudaAheadColumns, NothingIsFetchedForWhatIsNotReadThisWay) {
  for (const auto& [options, format] :
       {std::pair(gpu::CudaOptions{}, ColumnFormat::int8),
        std::pair(gpu::CudaOptions{.link = gpu::Link::copy, .column_cache_bytes = 1}, ColumnFormat::int8),
        std::pair(gpu::CudaOptions{.column_cache_bytes = 1}, ColumnFormat::planes)}) {
    cuda = make_cuda(options);
    const SelectCase c = of(format, 4, 1300);
    SharedCache cache(*cuda, c.cache);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(select_fetched(cache.on_cuda(), random_query(8, 32, 1), c.args()).fetched, 0u);
    }
  }
}

}  // namespace
}  // namespace hayloft::testing
