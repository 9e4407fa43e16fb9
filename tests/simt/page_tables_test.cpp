#include <algorithm>

#include "gpu/cuda/api/stream.h"
#include "gpu/cuda/memory/device_arena.h"
#include "gpu/cuda/memory/host_pins.h"
#include "gpu/link.h"
#include "offload/host/arena.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/simt/sizes.h"

// Tests what pinned memory takes of the device.
namespace hayloft::testing {
namespace {

class PageTablesTest : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
  void TearDown() override { simt::reset(); }

  std::unique_ptr<offload::Arena> pinned_by(gpu::Backend& backend) const {
    offload::ArenaOptions options;
    options.budget_bytes = 32 * MiB;
    options.chunk_bytes = 16 * MiB;
    options.listener = backend.pinning();
    return std::make_unique<offload::Arena>(topology, options);
  }

  const offload::Topology topology;
};

TEST_F(PageTablesTest, CountAsUsedWhileTheMemoryIsPinned) {
  const auto cuda = make_cuda();
  const std::uint64_t before = cuda->memory().used_bytes;
  auto arena = pinned_by(*cuda);
  arena->allocate(MiB);
  EXPECT_EQ(cuda->memory().used_bytes, before + 16 * MiB / 512);
  arena.reset();
  EXPECT_EQ(cuda->memory().used_bytes, before);
}

TEST_F(PageTablesTest, MemoryWhoseTablesTheDeviceHasNoRoomForIsStaged) {
  std::vector<std::string> said;
  const auto cuda = make_cuda({.on_warning = [&](const std::string& what) { said.push_back(what); }});
  const gpu::DeviceMemory memory = cuda->memory();
  gpu::Buffer taken = cuda->allocate(memory.budget_bytes - memory.used_bytes - 16 * MiB / 512, cuda->stream());
  const std::uint64_t pinned = simt::pinned_bytes();
  const auto first = pinned_by(*cuda), second = pinned_by(*cuda);
  const offload::Extent one = first->allocate(MiB), two = second->allocate(MiB);
  EXPECT_EQ(simt::pinned_bytes(), pinned + 16 * MiB);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("no room for the page tables of 16.0 MiB"), std::string::npos) << said[0];
  EXPECT_EQ(cuda->memory().used_bytes, memory.budget_bytes);
}

// Pins chunks of 16 MiB, whose tables take 32 KiB of an arena of 64 MiB.
class ChargedPinsTest : public PageTablesTest {
 protected:
  ChargedPinsTest() {
    pins->charge_to(&device_memory);
    options.budget_bytes = 64 * MiB;
    options.chunk_bytes = 16 * MiB;
    options.listener = pins;
  }

  const gpu::cuda::OwnedStream stream;
  std::vector<std::string> said;
  gpu::cuda::DeviceArena device_memory{0, 64 * MiB};
  const std::shared_ptr<gpu::cuda::HostPins> pins = std::make_shared<gpu::cuda::HostPins>(
      gpu::KvHost::automatic, 0, threads(), [this](const std::string& what) { said.push_back(what); });
  offload::ArenaOptions options;
};

TEST_F(ChargedPinsTest, MemoryThatIsMerelyKeptMakesRoomForTables) {
  void* kept = device_memory.allocate(64 * MiB, stream);
  device_memory.when_short([&](std::uint64_t bytes) {
    EXPECT_EQ(bytes, 16 * MiB / 512);
    if (kept) device_memory.free(kept, 64 * MiB, stream);
    kept = nullptr;
  });
  offload::Arena arena(topology, options);
  const offload::Extent extent = arena.allocate(MiB);
  EXPECT_EQ(simt::pinned_bytes(), 16 * MiB);
  EXPECT_TRUE(said.empty()) << said[0];
  EXPECT_EQ(device_memory.used_bytes(), 16 * MiB / 512);
  if (kept) device_memory.free(kept, 64 * MiB, stream);
}

TEST_F(ChargedPinsTest, MemoryIsPinnedAgainWhenTheDeviceHasRoomForItsTables) {
  void* const taken = device_memory.allocate(64 * MiB, stream);
  offload::Arena arena(topology, options);
  const offload::Extent staged = arena.allocate(16 * MiB);
  EXPECT_EQ(simt::pinned_bytes(), 0u);
  ASSERT_EQ(said.size(), 1u);
  for (const char* part : {"the device has no room", "16.0 MiB of host memory", "32.0 KiB", "--gpu-memory"}) {
    EXPECT_NE(said[0].find(part), std::string::npos) << said[0];
  }
  device_memory.free(taken, 64 * MiB, stream);
  const offload::Extent pinned = arena.allocate(16 * MiB);
  EXPECT_EQ(simt::pinned_bytes(), 16 * MiB);
}

TEST_F(PageTablesTest, AreMeasuredWithTheLink) {
  simt::device().pinned_per_entry_byte = 512;
  gpu::LinkOptions options;
  options.footprints = {4 * MiB};
  const gpu::LinkReport report = gpu::measure_link(topology, threads(), options);
  const auto figure = std::find_if(report.figures.begin(), report.figures.end(),
                                   [](const gpu::LinkFigure& f) { return f.test == "device_memory_of_pinned"; });
  ASSERT_NE(figure, report.figures.end());
  EXPECT_EQ(figure->value, 2048);
  EXPECT_EQ(figure->unit, "B/MiB");
}

}  // namespace
}  // namespace hayloft::testing
