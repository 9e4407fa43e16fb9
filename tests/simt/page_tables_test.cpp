#include <algorithm>

#include "gpu/link.h"
#include "offload/host/arena.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Tests what pinned memory takes of the device.
namespace hayloft::testing {
namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

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
  EXPECT_NE(said[0].find("refuses to pin 16.0 MiB"), std::string::npos) << said[0];
  EXPECT_EQ(cuda->memory().used_bytes, memory.budget_bytes);
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
