#include <cstring>

#include "offload/error.h"
#include "offload/host/arena.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/simt/sizes.h"
#include "tests/support/refusal.h"

// A system that refuses to pin much at a time, or in all.
namespace hayloft::testing {
namespace {

using test::refuses;

class RegistrationTest : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
  void TearDown() override { simt::reset(); }

  offload::ArenaOptions pinned_by(gpu::Backend& backend, std::uint64_t chunk_bytes) const {
    offload::ArenaOptions options;
    options.budget_bytes = 2 * chunk_bytes;
    options.chunk_bytes = chunk_bytes;
    options.listener = backend.pinning();
    return options;
  }
  std::unique_ptr<gpu::Backend> make(gpu::KvHost kv_host = gpu::KvHost::automatic) {
    return make_cuda({.kv_host = kv_host, .on_warning = [this](const std::string& what) { said.push_back(what); }});
  }

  const offload::Topology topology;
  std::vector<std::string> said;
};

TEST_F(RegistrationTest, RefusedAbove256MiBIsGrantedInHalves) {
  simt::device().registration_bytes = 256 * MiB;
  const auto cuda = make();
  offload::Arena arena(topology, pinned_by(*cuda, 320 * MiB));
  const std::uint64_t before = simt::pinned_bytes();
  const offload::Extent first = arena.allocate(40 * MiB), second = arena.allocate(110 * MiB);
  EXPECT_EQ(simt::pinned_bytes() - before, 320 * MiB);
  EXPECT_EQ(simt::calls("cudaHostRegister"), 3);
  EXPECT_TRUE(said.empty());

  // Bytes across the border of the halves are copied as any others.
  const offload::Extent across = arena.allocate(20 * MiB);
  std::vector<std::uint32_t> numbers(20 * MiB / sizeof(std::uint32_t));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint32_t>(i);
  std::memcpy(across.data(), numbers.data(), across.bytes());
  const gpu::Buffer copied = cuda->allocate(across.bytes(), cuda->stream());
  cuda->queue_to_device(copied.as<void>(), across.data(), across.bytes(), cuda->stream());
  cuda->synchronize(cuda->stream());
  std::memset(across.data(), 0, across.bytes());
  cuda->queue_to_host(across.data(), copied.as<void>(), across.bytes(), cuda->stream());
  cuda->synchronize(cuda->stream());
  EXPECT_EQ(std::memcmp(across.data(), numbers.data(), across.bytes()), 0);
}

TEST_F(RegistrationTest, NothingAsLargeIsTriedAgain) {
  simt::device().registration_bytes = 100 * MiB;
  const auto cuda = make();
  const auto chunks = [&] {
    offload::Arena arena(topology, pinned_by(*cuda, 128 * MiB));
    const offload::Extent one = arena.allocate(128 * MiB);
    const std::int64_t calls = simt::calls("cudaHostRegister");
    const offload::Extent two = arena.allocate(128 * MiB);
    EXPECT_EQ(simt::calls("cudaHostRegister") - calls, 2) << "only its halves";
  };
  chunks();
  EXPECT_TRUE(said.empty());
}

TEST_F(RegistrationTest, WhatExceedsTheLimitOfAllIsStagedAndSaidOnce) {
  const auto cuda = make();
  const std::uint64_t before = simt::pinned_bytes();
  simt::device().registrable_bytes = before + 200 * MiB;
  offload::Arena arena(topology, pinned_by(*cuda, 320 * MiB));
  const offload::Extent first = arena.allocate(MiB);
  EXPECT_EQ(simt::pinned_bytes() - before, 160 * MiB) << "the rest is less than a smallest piece";
  ASSERT_EQ(said.size(), 1u);
  for (const char* part : {"refuses to pin", "with 160.0 MiB pinned", "slower"}) {
    EXPECT_NE(said[0].find(part), std::string::npos) << said[0];
  }
  const std::int64_t calls = simt::calls("cudaHostRegister");
  const offload::Extent second = arena.allocate(319 * MiB);
  const offload::Extent third = arena.allocate(MiB);
  EXPECT_EQ(simt::calls("cudaHostRegister"), calls);
  EXPECT_EQ(said.size(), 1u);
}

TEST_F(RegistrationTest, OnceSomeIsGivenUpOthersArePinnedAgain) {
  const auto cuda = make();
  const std::uint64_t before = simt::pinned_bytes();
  simt::device().registrable_bytes = before + 4 * MiB;
  auto first = std::make_unique<offload::Arena>(topology, pinned_by(*cuda, 4 * MiB));
  first->allocate(MiB);
  offload::Arena second(topology, pinned_by(*cuda, 4 * MiB));
  const offload::Extent staged = second.allocate(4 * MiB);
  EXPECT_EQ(simt::pinned_bytes() - before, 4 * MiB);
  first.reset();
  EXPECT_EQ(simt::pinned_bytes(), before);
  const offload::Extent pinned = second.allocate(4 * MiB);
  EXPECT_EQ(simt::pinned_bytes() - before, 4 * MiB);
}

TEST_F(RegistrationTest, WhatWasPinnedBeforeARefusalThatIsAnErrorIsGivenUp) {
  const auto cuda = make(gpu::KvHost::pinned);
  const std::uint64_t before = simt::pinned_bytes();
  simt::device().registrable_bytes = before + 100 * MiB;
  offload::Arena arena(topology, pinned_by(*cuda, 192 * MiB));
  EXPECT_TRUE(
      refuses([&] { arena.allocate(MiB); }, {"--kv-host pinned", "refuses to pin 96.0 MiB", "--kv-host staged"}));
  EXPECT_EQ(simt::pinned_bytes(), before);
}

// Pins the beginning of a chunk.
class Beginning : public offload::ChunkListener {
 public:
  Beginning(std::shared_ptr<offload::ChunkListener> pins, std::uint64_t bytes)
      : pins_(std::move(pins)), bytes_(bytes) {}
  void committed(std::byte* data, std::uint64_t) override {
    if (bytes_ > 0) pins_->committed(data, bytes_);
  }
  void releasing(std::byte* data, std::uint64_t bytes) noexcept override { pins_->releasing(data, bytes); }

 private:
  const std::shared_ptr<offload::ChunkListener> pins_;
  const std::uint64_t bytes_;
};

TEST_F(RegistrationTest, OnlyColumnsOfBlocksThatAreNotPinnedAreCopied) {
  const auto cuda = make();
  constexpr int blocks = 16, block_tokens = 64, rank = 8;
  const CacheShape shape{.kv_heads = 1, .head_dim = 32, .stored = blocks * block_tokens, .tail = 8};
  const offload::BlockLayout layout({1, 1, 32, block_tokens, offload::ColumnFormat::f16});
  const std::uint64_t block_bytes = (layout.block_bytes + 4095) / 4096 * 4096;
  const auto copied_with = [&](std::uint64_t pinned_blocks) {
    SharedCache cache(*cuda, shape, std::make_shared<Beginning>(cuda->pinning(), pinned_blocks * block_bytes));
    const gpu::Buffer q = upload(*cuda, random_query(2, 32, 1));
    const gpu::Buffer positions = cuda->allocate(50 * sizeof(std::int32_t), cuda->stream());
    const gpu::Buffer alpha = cuda->allocate(2 * sizeof(float), cuda->stream());
    gpu::SparqSelect args;
    args.rank = rank;
    args.k = 50;
    args.limit = blocks * block_tokens;
    const std::uint64_t before = simt::copied_to_device();
    cuda->select_sparq(cache.on_cuda(), q.as<float>(), 2, args, positions.as<std::int32_t>(), alpha.as<float>(),
                       cuda->stream());
    cuda->synchronize(cuda->stream());
    return simt::copied_to_device() - before;
  };
  for (const std::uint64_t pinned : {16, 12, 4, 0}) {
    EXPECT_EQ(copied_with(pinned), rank * (blocks - pinned) * block_tokens * sizeof(f16)) << pinned;
  }
}

TEST_F(RegistrationTest, OnlyListedRowsOfBlocksThatAreNotPinnedAreGathered) {
  const auto cuda = make();
  constexpr int blocks = 16, block_tokens = 64, kv_heads = 2, query_heads = 4, d = 32;
  const CacheShape shape{.kv_heads = kv_heads, .head_dim = d, .stored = blocks * block_tokens, .tail = 8};
  const offload::BlockLayout layout({1, kv_heads, d, block_tokens, offload::ColumnFormat::f16});
  const std::uint64_t block_bytes = (layout.block_bytes + 4095) / 4096 * 4096;
  for (const int lists : {kv_heads, query_heads}) {
    constexpr int k = 40;
    std::vector<std::int32_t> positions;  // of a list its own: ascending, with more or less in each block
    for (int list = 0; list < lists; ++list) {
      for (int i = 0; i < k; ++i) positions.push_back(i * i * (blocks * block_tokens - 8) / (k * k) + list);
    }
    std::uint64_t copied = 0;
    // Returns what comes out, with so many blocks of the beginning pinned.
    const auto attended = [&](std::uint64_t pinned_blocks) {
      SharedCache cache(*cuda, shape, std::make_shared<Beginning>(cuda->pinning(), pinned_blocks * block_bytes));
      const gpu::CacheView view = cache.on_cuda();
      const gpu::Buffer q = upload(*cuda, random_query(query_heads, d, 1));
      const gpu::Buffer listed = upload(*cuda, positions);
      const gpu::Buffer out = cuda->allocate(q.bytes(), cuda->stream());
      gpu::Attended what;
      what.positions = listed.as<std::int32_t>();
      what.lists = lists;
      what.k = k;
      what.ranges[0] = {view.store.tokens, view.tokens()};
      const std::uint64_t before = simt::copied_to_device();
      cuda->attend(view, q.as<float>(), query_heads, what, out.as<float>(), cuda->stream());
      cuda->synchronize(cuda->stream());
      copied = simt::copied_to_device() - before;
      return download<float>(*cuda, out);
    };
    const std::vector<float> expected = attended(0);
    EXPECT_EQ(copied, positions.size() * layout.row_bytes);
    for (const std::uint64_t pinned : {15, 9, 1}) {
      EXPECT_EQ(attended(pinned), expected) << pinned << " of " << blocks << " blocks pinned";
      const auto staged = std::count_if(positions.begin(), positions.end(), [&](std::int32_t position) {
        return position >= static_cast<std::int32_t>(pinned) * block_tokens;
      });
      EXPECT_EQ(copied, static_cast<std::uint64_t>(staged) * layout.row_bytes) << pinned;
    }
  }
}

}  // namespace
}  // namespace hayloft::testing
