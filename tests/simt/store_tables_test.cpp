#include "gpu/cuda/store_tables.cuh"

#include "gpu/cuda/device_arena.cuh"
#include "gpu/cuda/host_pins.cuh"
#include "tests/cuda/backends.h"
#include "tests/simt/control.h"

// The block tables that kernels read.
namespace hayloft::testing {
namespace {

using namespace gpu::cuda;

class StoreTablesTest : public ::testing::Test {
 protected:
  StoreTablesTest() {
    simt::reset();
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking), cudaSuccess);
    context.compute = stream;
    context.arena = &device_memory;
    context.pins = pins.get();
    context.crossing = &crossing;
    shape.kv_heads = 2;
    shape.head_dim = 8;
    shape.block_tokens = 16;
  }
  ~StoreTablesTest() override {
    cudaStreamSynchronize(other_stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(other_stream);
    cudaStreamDestroy(stream);
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
    EXPECT_EQ(store.tokens, view.tokens);
    EXPECT_EQ(store.block_tokens(), view.layout->block_tokens);
  }

  CacheShape shape;
  cudaStream_t stream = nullptr, other_stream = nullptr;
  DeviceArena device_memory{0, std::uint64_t{64} << 20};
  std::shared_ptr<HostPins> pins = std::make_shared<HostPins>(gpu::KvHost::automatic, 0, threads(), nullptr);
  Crossing crossing;
  Context context;
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
  EXPECT_THROW(tables.find(pageable.view().store, stream), std::logic_error);

  // Some of both.
  std::vector<const std::byte*> blocks(pinned.view().store.blocks.begin(), pinned.view().store.blocks.end());
  blocks.push_back(pageable.view().store.blocks[0]);
  offload::LayerView mixed = pinned.view().store;
  mixed.blocks = blocks;
  EXPECT_FALSE(tables.pinned(mixed));
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
