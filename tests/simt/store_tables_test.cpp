#include "gpu/cuda/memory/store_tables.h"

#include <cstring>
#include <latch>
#include <thread>

#include "gpu/cuda/memory/device_arena.h"
#include "gpu/cuda/memory/host_pins.h"
#include "gpu/cuda_memory.h"
#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// The block tables that kernels read.
namespace hayloft::testing {
namespace {

using namespace gpu::cuda;

class StoreTablesTest : public ::testing::Test {
 protected:
  StoreTablesTest() {
    simt::reset();
    shape.kv_heads = 2;
    shape.head_dim = 8;
    shape.block_tokens = 16;
  }
  ~StoreTablesTest() override {
    cudaStreamSynchronize(other_stream);
    cudaStreamSynchronize(stream);
  }

  template <class T>
  std::vector<T> read(const T* device, std::size_t count, cudaStream_t on) const {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost, on), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(on), cudaSuccess);
    return values;
  }

  // The device's table says of every block where the device sees it, and has the value sums.
  void expect_table_of(const offload::LayerView& view, const DeviceStore& store, cudaStream_t on) const {
    std::vector<const std::byte*> expected;
    for (const std::byte* block : view.blocks) expected.push_back(pins->on_device(block, 1));
    EXPECT_EQ(read(store.blocks, view.blocks.size(), on), expected);
    EXPECT_EQ(read(store.value_sum, view.value_sum.size(), on),
              std::vector<float>(view.value_sum.begin(), view.value_sum.end()));
    EXPECT_EQ(store.spread != nullptr, !view.spread.empty());
    EXPECT_EQ(read(store.spread, view.spread.size(), on), std::vector<float>(view.spread.begin(), view.spread.end()));
    EXPECT_EQ(store.tokens, view.tokens);
    EXPECT_EQ(store.block_tokens(), view.layout->block_tokens);
  }

  CacheShape shape;
  OwnedStream stream, other_stream;
  DeviceArena device_memory{0, std::uint64_t{64} << 20};
  std::shared_ptr<HostPins> pins = std::make_shared<HostPins>(gpu::KvHost::automatic, 0, threads(), nullptr);
  StreamOrder order;
  StepGraphs graphs{0, stream, true};
  const DeviceContext context{0, stream, nullptr, device_memory, *pins, order, graphs};
  StoreTables tables{context};
};

TEST_F(StoreTablesTest, ATableIsUploadedOncePerContentAndNeedsNoWaiting) {
  shape.stored = 700 * 16;  // more addresses than one launch carries
  RandomCache cache(shape, pins);
  const offload::LayerView view = cache.view().store;
  const std::int64_t waits = simt::host_waits();
  const DeviceStore store = tables.find(view, stream);
  EXPECT_EQ(simt::host_waits(), waits);
  expect_table_of(view, store, stream);

  const std::int64_t launches = simt::launches();
  const DeviceStore again = tables.find(cache.view().store, stream);
  EXPECT_EQ(again.blocks, store.blocks);
  EXPECT_EQ(simt::launches(), launches);
}

TEST_F(StoreTablesTest, ColumnsInPlanesBringTheirSpread) {
  shape.stored = 5 * 16;
  shape.columns = offload::ColumnFormat::planes;
  RandomCache cache(shape, pins);
  expect_table_of(cache.view().store, tables.find(cache.view().store, stream), stream);
  offload::LayerView other = cache.view().store;
  std::vector<float> spread(other.spread.begin(), other.spread.end());
  spread.back() += 1;
  other.spread = spread;
  expect_table_of(other, tables.find(other, stream), stream);
}

// As offload/store/rows.h has them, [Hkv][ranges][d].
TEST_F(StoreTablesTest, RowsOfIntegersBringTheirRanges) {
  for (const int block_tokens : {16, 2048}) {
    shape.block_tokens = block_tokens;
    shape.stored = 3 * block_tokens + 5;
    shape.rows = offload::RowFormat::int4;
    RandomCache cache(shape, pins);
    const offload::LayerView view = cache.view().store;
    const DeviceStore store = tables.find(view, stream);
    expect_table_of(view, store, stream);
    EXPECT_EQ(store.row_bytes, view.layout->row_bytes);
    const std::int64_t of_a_block = block_tokens == 16 ? 1 : 2;
    EXPECT_EQ(store.ranges_per_head, 4 * of_a_block);
    EXPECT_EQ(std::int64_t{1} << store.range_shift, block_tokens / of_a_block);
    EXPECT_EQ(gpu::cuda_range_bytes({1, 2, 8, block_tokens, shape.columns, shape.rows}, 4),
              static_cast<std::uint64_t>(2 * store.ranges_per_head * 8) * sizeof(offload::ChannelRange));
    const auto ranges = read(store.ranges, static_cast<std::size_t>(2 * store.ranges_per_head * 8), stream);
    for (int head = 0; head < 2; ++head) {
      for (std::int64_t i = 0; i < store.ranges_per_head; ++i) {
        const auto slot = static_cast<int>(i % of_a_block * 1024);
        const std::byte* const block = view.blocks[static_cast<std::size_t>(i / of_a_block)];
        const offload::ChannelRange* const expected = channel_ranges(*view.layout, block, head, slot);
        EXPECT_EQ(std::memcmp(ranges.data() + (head * store.ranges_per_head + i) * 8, expected, 8 * sizeof *expected),
                  0)
            << head << " " << i;
      }
    }
  }
}

TEST_F(StoreTablesTest, OtherRangesAtTheSameAddressAreSeen) {
  shape.stored = 40;
  shape.rows = offload::RowFormat::int8;
  RandomCache cache(shape, pins);
  const offload::LayerView view = cache.view().store;
  tables.find(view, stream);
  auto* const ranges = const_cast<offload::ChannelRange*>(channel_ranges(*view.layout, view.blocks.back(), 1, 0));
  ranges[3].centre = f16{0x1234};
  const DeviceStore store = tables.find(view, stream);
  const auto on_device = read(store.ranges, 2 * 3 * 8, stream);
  EXPECT_EQ(on_device[5 * 8 + 3].centre.bits, 0x1234);
}

// Ranges take bytes per token: those of what a layer was before give up their memory, once, and come back when they are
// wanted, as they are by a fork that stays behind.
TEST_F(StoreTablesTest, VersionsOfALayerThatGrowsDoNotPileUp) {
  shape.head_dim = 256;
  shape.stored = 100 * 16;
  shape.rows = offload::RowFormat::int8;
  RandomCache cache(shape, pins);
  const auto version = [&](std::size_t blocks) {
    offload::LayerView view = cache.view().store;
    view.blocks = view.blocks.first(blocks);
    view.tokens = static_cast<std::int64_t>(blocks) * 16;
    return view;
  };
  const std::uint64_t before = device_memory.used_bytes();
  for (std::size_t blocks = 1; blocks <= 100; ++blocks) tables.find(version(blocks), stream);
  const std::uint64_t ranges = 100 * 2 * 256 * sizeof(offload::ChannelRange);
  EXPECT_LT(device_memory.used_bytes() - before, 2 * ranges + (32 << 10)) << "the latest and what was found before it";

  tables.find(version(60), stream);
  const std::int64_t launches = simt::launches();
  tables.find(version(100), stream);
  tables.find(version(60), stream);
  EXPECT_EQ(simt::launches(), launches) << "neither was uploaded again";
  tables.spare(std::uint64_t{1} << 30);
  EXPECT_LT(device_memory.used_bytes() - before, ranges) << "but for the one found last";
}

TEST_F(StoreTablesTest, ALongerStoreGetsATableOfItsOwnAndTheShorterOneKeepsIts) {
  shape.stored = 5 * 16;
  RandomCache cache(shape, pins);
  offload::LayerView shorter = cache.view().store;
  shorter.blocks = shorter.blocks.first(4);
  shorter.tokens = 4 * 16;
  const DeviceStore before = tables.find(shorter, stream);
  const DeviceStore after = tables.find(cache.view().store, stream);
  EXPECT_NE(before.blocks, after.blocks);
  expect_table_of(shorter, before, stream);
  expect_table_of(cache.view().store, after, stream);
}

TEST_F(StoreTablesTest, AnotherStreamSeesTheTableWhole) {
  shape.stored = 600 * 16;
  RandomCache cache(shape, pins);
  for (int seed = 1; seed <= 5; ++seed) {  // of the order in which streams run
    simt::reset(static_cast<std::uint64_t>(seed));
    StoreTables fresh(context);
    fresh.find(cache.view().store, stream);
    const DeviceStore store = fresh.find(cache.view().store, other_stream);
    expect_table_of(cache.view().store, store, other_stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
}

TEST_F(StoreTablesTest, BlocksInPageableMemoryAreNotPinned) {
  shape.stored = 40;
  RandomCache pageable(shape);
  RandomCache pinned(shape, pins);
  EXPECT_FALSE(tables.pinned(pageable.view().store));
  EXPECT_TRUE(tables.pinned(pinned.view().store));

  // Some of both.
  std::vector<const std::byte*> blocks(pinned.view().store.blocks.begin(), pinned.view().store.blocks.end());
  blocks.push_back(pageable.view().store.blocks[0]);
  offload::LayerView mixed = pinned.view().store;
  mixed.blocks = blocks;
  EXPECT_FALSE(tables.pinned(mixed));
  const std::vector<BlockRun> runs = tables.runs(mixed);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_TRUE(runs[0].in_place);
  EXPECT_EQ(runs[0].end, static_cast<std::int64_t>(blocks.size()) - 1);
  EXPECT_FALSE(runs[1].in_place);
  EXPECT_EQ(runs[1].begin, runs[0].end);
  expect_table_of(mixed, tables.find(mixed, stream), stream);  // with the place of the last one empty
}

TEST_F(StoreTablesTest, ATableThatCouldNotBeUploadedWholeIsUploadedAgain) {
  shape.stored = 700 * 16;  // in two launches
  RandomCache cache(shape, pins);
  simt::fail_call("cudaLaunchKernelEx", 2, cudaErrorNotSupported);
  EXPECT_THROW(tables.find(cache.view().store, stream), Error);
  expect_table_of(cache.view().store, tables.find(cache.view().store, stream), stream);
}

TEST_F(StoreTablesTest, MemoryThatIsPinnedLaterIsFoundOut) {
  shape.stored = 16;
  RandomCache cache(shape);
  EXPECT_FALSE(tables.pinned(cache.view().store));
  auto* const block = const_cast<std::byte*>(cache.view().store.blocks[0]);
  const std::uint64_t bytes = (cache.view().store.layout->block_bytes + 4095) / 4096 * 4096;
  const std::vector<std::byte> saved(block, block + bytes);
  pins->committed(block, bytes);
  std::copy(saved.begin(), saved.end(), block);
  EXPECT_TRUE(tables.pinned(cache.view().store));
  pins->releasing(block, bytes);
  EXPECT_FALSE(tables.pinned(cache.view().store));
}

TEST_F(StoreTablesTest, AnEmptyStoreIsPinnedAndHasNoTable) {
  const DeviceStore none = tables.find({}, stream);
  EXPECT_EQ(none.tokens, 0);
  EXPECT_TRUE(tables.pinned({}));
  RandomCache cache(shape, pins);
  const DeviceStore store = tables.find(cache.view().store, stream);
  EXPECT_EQ(store.tokens, 0);
  EXPECT_EQ(store.head_dim, 8);
  EXPECT_EQ(store.blocks, nullptr);
}

class ShortOfMemory : public StoreTablesTest {
 protected:
  // All but a MiB is taken, and 20 tables of 40 KB take the most of that.
  ShortOfMemory() {
    device_memory.when_short([this](std::uint64_t bytes) { tables.spare(bytes); });
    taken = device_memory.allocate(taken_bytes, stream);
    for (int i = 0; i < layers; ++i) {
      views.push_back(cache.view().store);
      sums.emplace_back(views.back().value_sum.begin(), views.back().value_sum.end());
      sums.back()[0] = static_cast<float>(i);
    }
    for (int i = 0; i < layers; ++i) views[index(i)].value_sum = sums[index(i)];
  }
  ~ShortOfMemory() override { device_memory.free(taken, taken_bytes, stream); }

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  static CacheShape long_shape() { return {.kv_heads = 2, .head_dim = 8, .block_tokens = 16, .stored = 2500 * 16}; }
  void expect_room(std::uint64_t bytes) {
    void* const more = device_memory.allocate(bytes, stream);
    device_memory.free(more, bytes, stream);
  }

  static constexpr int layers = 20;
  const std::uint64_t table_bytes = 2500 * (sizeof(std::byte*) + sizeof(std::uint64_t)) + 16 * sizeof(float);
  const std::uint64_t taken_bytes = device_memory.budget_bytes() - (1 << 20);
  void* taken = nullptr;
  RandomCache cache{long_shape(), pins};
  std::vector<offload::LayerView> views;
  std::vector<std::vector<float>> sums;
};

TEST_F(ShortOfMemory, OldTablesGoAsFarAsNeededAndTheLatestStays) {
  for (const auto& view : views) tables.find(view, stream);
  const std::uint64_t all = device_memory.used_bytes();
  expect_room((1 << 20) - 16 * table_bytes);  // four are too many, five with what they are rounded up to
  EXPECT_LE(all - device_memory.used_bytes(), 5 * (table_bytes + DeviceArena::alignment));
  const std::int64_t launches = simt::launches();
  const DeviceStore latest = tables.find(views[layers - 1], stream);
  EXPECT_EQ(simt::launches(), launches) << "it is there yet";
  expect_table_of(views[layers - 1], latest, stream);
  expect_table_of(views[0], tables.find(views[0], stream), stream);
  EXPECT_GT(simt::launches(), launches) << "it came back";
}

TEST_F(ShortOfMemory, TablesMakeRoomForEachOther) {
  expect_room(0);
  void* const rest = device_memory.allocate((1 << 20) - 3 * table_bytes, stream);  // for two
  for (const auto& view : views) expect_table_of(view, tables.find(view, stream), stream);
  device_memory.free(rest, (1 << 20) - 3 * table_bytes, stream);
}

TEST_F(ShortOfMemory, WhatAThreadFoundLastIsNotTakenFromItWhileItLives) {
  const DeviceStore mine = tables.find(views[0], stream);
  DeviceStore its;
  std::latch found(1), looked_at(1);
  std::thread other([&] {
    for (int i = 1; i < layers; ++i) its = tables.find(views[index(i)], stream);
    expect_room((1 << 20) - 3 * table_bytes);
    found.count_down();
    looked_at.wait();
  });
  found.wait();
  expect_table_of(views[0], mine, stream);
  expect_table_of(views[layers - 1], its, stream);
  EXPECT_THROW(expect_room((1 << 20) - 2 * table_bytes), Error);
  looked_at.count_down();
  other.join();
  expect_room((1 << 20) - 2 * table_bytes);  // mine, and what it is rounded up to
  EXPECT_THROW(expect_room((1 << 20) - table_bytes), Error);
  expect_table_of(views[0], mine, stream);
}

TEST_F(StoreTablesTest, TheTablesOfManyLayersStayWithinAFewThousand) {
  shape.stored = 16;
  RandomCache cache(shape, pins);
  offload::LayerView view = cache.view().store;
  std::vector<float> sums(view.value_sum.begin(), view.value_sum.end());
  view.value_sum = sums;
  const std::uint64_t before = device_memory.used_bytes();
  for (int i = 0; i < 2100; ++i) {
    sums[0] = static_cast<float>(i);
    tables.find(view, stream);
  }
  EXPECT_LE(device_memory.used_bytes() - before, 2048 * DeviceArena::alignment);
  expect_table_of(view, tables.find(view, stream), stream);
}

}  // namespace
}  // namespace hayloft::testing
