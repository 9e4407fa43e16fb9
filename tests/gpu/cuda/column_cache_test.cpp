#include <random>
#include <tuple>

#include "gpu/cuda/memory/cached_block.h"
#include "gpu/cuda_memory.h"
#include "runtime/attention/counters.h"
#include "tests/gpu/cuda/select_fixture.h"

// Columns that the device keeps change the bytes that cross the link, and no answer.
namespace hayloft::testing {
namespace {

using runtime::Counters;
using runtime::Kind;
using runtime::Place;

struct Held {
  std::uint64_t columns = 0;
  std::uint64_t scales = 0;
};

class CudaColumnCache : public CudaSelect {
 protected:
  void SetUp() override {
    CudaSelect::SetUp();
    if (!IsSkipped()) keep(gpu::column_cache_rest);
  }
  void keep(std::uint64_t bytes, std::int64_t short_list_keys = gpu::CudaOptions().short_list_keys) {
    cuda = make_cuda(
        {.memory_bytes = std::uint64_t{1} << 30, .column_cache_bytes = bytes, .short_list_keys = short_list_keys});
  }

  // A selection with what is kept, and what of its bytes the device had. It is the one without.
  Held select_twice(const gpu::CacheView& view, const std::vector<float>& q, gpu::SparqSelect args) {
    const Selection expected = select(*cuda, without_cache(view), q, args);
    const gpu::Buffer held = upload(*cuda, std::vector<unsigned long long>(2, 0));
    args.held_bytes = held.as<unsigned long long>();
    expect_same(select(*cuda, view, q, args), expected);
    const auto bytes = download<unsigned long long>(*cuda, held);
    return {bytes[0], bytes[1]};
  }

  static Held counted(const gpu::CacheView& view, const gpu::SparqSelect& args) {
    Counters counters;
    if (args.bits > 0) {
      count_planes(counters, view, args.bits, Place::link);
    } else {
      count_columns(counters, view, args.rank, Place::link);
    }
    return {counters.at(Place::link, Kind::columns), counters.at(Place::link, Kind::scales)};
  }
};

TEST_F(CudaColumnCache, EveryFormatAndGroupSelectsAsWithoutIt) {
  for (const ColumnFormat format : all_formats) {
    for (const int group : {1, 2, 4, 7, 16, 17}) {
      SCOPED_TRACE(::testing::Message() << offload::name(format) << " group " << group);
      if (group == 7) keep(gpu::column_cache_rest, 0);  // by several kernels
      if (group == 1) keep(gpu::column_cache_rest);
      const SelectCase c = of(format, group, 1300);
      SharedCache cache(*cuda, c.cache);
      for (std::uint32_t step = 0; step < 3; ++step) {
        select_twice(cache.on_cuda(), random_query(2 * group, 32, step), c.args());
      }
    }
  }
}

TEST_F(CudaColumnCache, ManyOf512ComponentsAreKeptAndFoundAgain) {
  for (const ColumnFormat format : {ColumnFormat::int8, ColumnFormat::planes}) {
    SCOPED_TRACE(offload::name(format));
    SelectCase c = of(format, 2, 600);
    c.cache.kv_heads = 1;
    c.cache.head_dim = 512;
    c.rank = 440;  // whose tables fit a block of every card
    if (in_planes(format)) c.bits = 2048;
    SharedCache cache(*cuda, c.cache);
    const std::vector<float> q = random_query(2, 512, 1);
    select_twice(cache.on_cuda(), q, c.args());
    EXPECT_EQ(select_twice(cache.on_cuda(), q, c.args()).columns, counted(cache.on_cuda(), c.args()).columns);
  }
}

TEST_F(CudaColumnCache, AQueryThatComesAgainFindsAllOnTheDevice) {
  for (const ColumnFormat format : all_formats) {
    for (const auto& [stored, block_tokens] : {std::pair(1024, 256), std::pair(1301, 256), std::pair(5000, 1024)}) {
      SCOPED_TRACE(::testing::Message() << offload::name(format) << " " << stored << " tokens");
      SelectCase c = of(format, 4, stored, block_tokens);
      SharedCache cache(*cuda, c.cache);
      const std::vector<float> q = random_query(8, 32, 1);
      const Held first = select_twice(cache.on_cuda(), q, c.args());
      EXPECT_EQ(first.columns + first.scales, 0u);
      const Held again = select_twice(cache.on_cuda(), q, c.args());
      const Held all = counted(cache.on_cuda(), c.args());
      EXPECT_EQ(again.columns, all.columns);
      if (in_planes(format)) {  // of which at most so many ranges are read
        EXPECT_LE(again.scales, all.scales);
        EXPECT_GT(again.scales, 0u);
      } else {
        EXPECT_EQ(again.scales, all.scales);
      }
    }
  }
}

// The host's bytes of what is held are never looked at.
TEST_F(CudaColumnCache, WhatIsHeldIsNotReadFromTheHost) {
  for (const ColumnFormat format : all_formats) {
    SCOPED_TRACE(offload::name(format));
    const SelectCase c = of(format, 4, 1300);
    SharedCache cache(*cuda, c.cache);
    const std::vector<float> q = random_query(8, 32, 1);
    const Selection expected = select(*cuda, cache.on_cuda(), q, c.args());
    const offload::BlockLayout& layout = *cache.on_cuda().store.layout;
    for (const std::byte* block : cache.on_cuda().store.blocks) {
      for (int head = 0; head < layout.kv_heads; ++head) {
        std::byte* const columns = const_cast<std::byte*>(layout.column(block, head, 0));
        std::fill_n(columns, layout.value_sum_offset - layout.columns_offset, std::byte{0x7e});
      }
    }
    expect_same(select(*cuda, cache.on_cuda(), q, c.args()), expected);
    EXPECT_NE(select(*cuda, without_cache(cache.on_cuda()), q, c.args()).positions, expected.positions);
  }
}

TEST_F(CudaColumnCache, APlanCountsWhatACachedBlockTakes) {
  for (const ColumnFormat format : all_formats) {
    const offload::BlockLayout layout(
        {.layers = 1, .kv_heads = 3, .head_dim = 40, .block_tokens = 256, .columns = format});
    const gpu::cuda::RunLayout runs(layout);
    EXPECT_EQ(gpu::cuda_runs(layout), runs.runs);
    for (const int slots : {0, 1, 7, 40}) {
      EXPECT_EQ(gpu::cuda_cached_block_bytes(layout, slots), runs.bytes(slots)) << offload::name(format);
    }
    EXPECT_EQ(gpu::cuda_cached_slots(layout, runs.bytes(7)), 7);
    EXPECT_EQ(gpu::cuda_cached_slots(layout, runs.bytes(7) - 1), 6);
    EXPECT_EQ(gpu::cuda_cached_slots(layout, runs.bytes(0)), 0);
    EXPECT_EQ(gpu::cuda_cached_slots(layout, std::uint64_t{1} << 40), runs.runs);
  }
}

TEST_F(CudaColumnCache, WithLittleRoomItKeepsWhatIsReadMost) {
  SelectCase c = of(ColumnFormat::int4, 4, 1024);
  c.rank = 8;
  keep(std::uint64_t{25} << 10);  // about a third of the columns
  SharedCache cache(*cuda, c.cache);
  const std::vector<float> often = random_query(8, 32, 1);
  for (int step = 0; step < 4; ++step) select_twice(cache.on_cuda(), often, c.args());
  const Held all = counted(cache.on_cuda(), c.args());
  EXPECT_EQ(select_twice(cache.on_cuda(), often, c.args()).columns, all.columns);
  for (std::uint32_t step = 0; step < 3; ++step) {  // each once, which pushes nothing out that was read five times
    const Held held = select_twice(cache.on_cuda(), random_query(8, 32, 50 + step), c.args());
    EXPECT_LT(held.columns, all.columns);
  }
  EXPECT_EQ(select_twice(cache.on_cuda(), often, c.args()).columns, all.columns);
}

TEST_F(CudaColumnCache, MemoryThatIsNeededElsewhereIsGivenBack) {
  const SelectCase c = of(ColumnFormat::int8, 4, 1300);
  SharedCache cache(*cuda, c.cache);
  const std::vector<float> q = random_query(8, 32, 1);
  const std::uint64_t before = cuda->memory().used_bytes;
  select_twice(cache.on_cuda(), q, c.args());
  EXPECT_GT(select_twice(cache.on_cuda(), q, c.args()).columns, 0u);
  const gpu::DeviceMemory memory = cuda->memory();
  EXPECT_LT(memory.used_bytes, before + 8192) << "what is kept counts as free";
  {
    const std::vector<gpu::Buffer> all = take_all_but(*cuda, 8192);
    EXPECT_EQ(select_twice(cache.on_cuda(), q, c.args()).columns, 0u);
    EXPECT_EQ(select_twice(cache.on_cuda(), q, c.args()).columns, 0u);
  }
}

TEST_F(CudaColumnCache, MemoryThatIsFreeAgainIsUsedAfterSomeSteps) {
  const SelectCase c = of(ColumnFormat::int8, 4, 1300);
  SharedCache cache(*cuda, c.cache);
  const std::vector<float> q = random_query(8, 32, 1);
  const gpu::DeviceMemory memory = cuda->memory();
  gpu::Buffer most = cuda->allocate((memory.budget_bytes - memory.used_bytes) / 8 * 7 - 20000, cuda->stream());
  std::uint64_t held = 0;
  for (int step = 0; step < 3; ++step) held = select_twice(cache.on_cuda(), q, c.args()).columns;
  EXPECT_LT(held, counted(cache.on_cuda(), c.args()).columns);
  most = {};
  for (int step = 0; step < 70; ++step) held = select_twice(cache.on_cuda(), q, c.args()).columns;
  EXPECT_EQ(held, counted(cache.on_cuda(), c.args()).columns);
}

TEST_F(CudaColumnCache, BlocksUnderAChunkAreNotKept) {
  const SelectCase c = of(ColumnFormat::int4, 2, 1000, 128);
  SharedCache cache(*cuda, c.cache);
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(select_twice(cache.on_cuda(), random_query(4, 32, 1), c.args()).columns, 0u);
  }
}

// Sequences that grow, fork, are saved and opened and end, in turn, while memory is taken and given back.
TEST_F(CudaColumnCache, ARandomWalkOverSequencesSelectsAsWithoutIt) {
  const char* wanted = std::getenv("HAYLOFT_WALK_STEPS");
  const int steps = wanted ? std::atoi(wanted) : 100;
  constexpr int layers = 2, kv_heads = 2, d = 16, block = 256, group = 2;
  for (const ColumnFormat format : {ColumnFormat::int4, ColumnFormat::planes}) {
    std::mt19937 random(7);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    keep(std::uint64_t{60} << 10);
    const offload::Topology topology;
    offload::ArenaOptions options;
    options.budget_bytes = std::uint64_t{64} << 20;
    options.chunk_bytes = std::uint64_t{1} << 20;
    options.listener = cuda->pinning();
    offload::Arena arena(topology, options);
    const offload::StoreShape shape{layers, kv_heads, d, block, format};
    std::vector<offload::Store> stores;
    stores.emplace_back(arena, shape);
    const gpu::Buffer tail = upload(*cuda, std::vector<f16>(kv_heads * 2 * d, to_f16(0.5f)));
    std::vector<gpu::Buffer> taken;
    std::uint64_t held = 0, read = 0;
    for (int step = 0; step < steps; ++step) {
      const std::size_t at = below(stores.size());
      const std::size_t what = below(20);
      if (what < 3) {  // grows
        if (stores[at].tokens(0) / block >= 8) continue;
        for (int layer = 0; layer < layers; ++layer) {
          offload::BlockWriter writer = stores[at].start_block();
          const std::vector<float> values = normal(std::size_t{block} * 2 * d, random());
          std::vector<f16> rows(values.size());
          std::transform(values.begin(), values.end(), rows.begin(), to_f16);
          for (int head = 0; head < kv_heads; ++head) {
            offload::fill_block(stores[at].layout(), writer.data(), head, rows.data(), 2 * d, block);
          }
          stores[at].commit(layer, std::move(writer), block);
        }
      } else if (what == 3 && stores.size() < 5) {
        stores.push_back(stores[at].fork());
      } else if (what == 4 && stores.size() > 1) {
        stores.erase(stores.begin() + static_cast<std::ptrdiff_t>(at));
      } else if (what == 5 && stores.size() < 5) {  // saved and opened: the same blocks, told apart from themselves
        std::vector<offload::AdoptedLayer> saved(layers);
        for (int layer = 0; layer < layers; ++layer) {
          const offload::LayerView view = stores[at].layer(layer);
          const auto sums = stores[at].exact_value_sum(layer), spread = stores[at].exact_spread(layer);
          saved[static_cast<std::size_t>(layer)] = {{view.blocks.begin(), view.blocks.end()},
                                                    view.tokens,
                                                    {sums.begin(), sums.end()},
                                                    {spread.begin(), spread.end()}};
        }
        stores.emplace_back(arena, shape, std::make_shared<offload::Store>(stores[at].fork()), std::move(saved));
      } else if (what == 6) {
        taken.clear();
        if (below(2) == 0) taken = take_all_but(*cuda, 8192 + below(30) * 4096);
      } else {
        for (int layer = 0; layer < layers; ++layer) {
          gpu::CacheView view;
          view.layer = layer;
          view.layers = layers;
          view.kv_heads = kv_heads;
          view.head_dim = d;
          view.store = stores[at].layer(layer);
          view.tail = {tail.as<f16>(), 1, 0, 1, view.store.tokens};
          if (view.store.tokens == 0) continue;
          gpu::SparqSelect args;
          args.rank = 4;
          args.bits = format == ColumnFormat::planes ? 10 : 0;
          args.k = 16;
          args.limit = view.store.tokens;
          const std::vector<float> q = random_query(kv_heads * group, d, static_cast<std::uint32_t>(below(6)), 3);
          if (below(2) == 0) cuda->fetch_ahead(view, cuda->stream());
          held += select_twice(view, q, args).columns;
          read += counted(view, args).columns;
          ASSERT_FALSE(HasFailure()) << "step " << step;
        }
      }
    }
    EXPECT_GT(held, read / 10) << "of bytes that were read";
    EXPECT_LT(held, read);
  }
}

}  // namespace
}  // namespace hayloft::testing
