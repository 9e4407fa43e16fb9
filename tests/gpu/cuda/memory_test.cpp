#include <numeric>
#include <random>

#include "gpu/cuda_memory.h"
#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"

// Device memory through the backend interface: the budget, and copies that may be used carelessly.
namespace hayloft::testing {
namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

class MemoryTest : public CudaTest {
 protected:
  // Numbers that tell where they come from, of a size that is no multiple of anything.
  static std::vector<std::uint32_t> numbers(std::uint64_t bytes) {
    std::vector<std::uint32_t> values(bytes / sizeof(std::uint32_t) + 1);
    std::iota(values.begin(), values.end(), 1u);
    return values;
  }
};

TEST_F(MemoryTest, TheBudgetHoldsAndItsErrorSaysWhatToDo) {
  const auto backend = make_cuda({.memory_bytes = 1024 * MiB});
  const gpu::DeviceMemory before = backend->memory();
  EXPECT_LE(before.budget_bytes, 1024 * MiB);
  EXPECT_GE(before.budget_bytes, 256 * MiB);  // a small model fits into the least there may be
  const gpu::Buffer some = backend->allocate(10 * MiB, backend->stream());
  EXPECT_EQ(backend->memory().used_bytes, before.used_bytes + 10 * MiB);
  try {
    backend->allocate(before.budget_bytes - before.used_bytes - 9 * MiB, backend->stream());
    FAIL() << "more than the budget was given";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const char* part : {"asked for", "left", "--gpu-memory"}) EXPECT_NE(message.find(part), std::string::npos);
  }
  EXPECT_EQ(backend->memory().used_bytes, before.used_bytes + 10 * MiB);
  EXPECT_THROW(backend->allocate(UINT64_MAX, backend->stream()), Error);
}

TEST_F(MemoryTest, FreedMemoryIsThereAgainAndThePeakIsKept) {
  const auto backend = make_cuda({.memory_bytes = 1024 * MiB});
  const std::uint64_t before = backend->memory().used_bytes;
  for (int i = 0; i < 10; ++i) backend->allocate(20 * MiB, backend->stream());
  EXPECT_EQ(backend->memory().used_bytes, before);
  EXPECT_EQ(backend->memory().peak_bytes, before + 20 * MiB);
  EXPECT_GE(backend->memory().driver_peak_bytes, gpu::cuda_workspace_bytes + 20 * MiB);  // and nothing set aside
}

TEST_F(MemoryTest, TheDriverHoldsNoMoreThanTheBudgetWhateverIsFreedInWhichOrder) {
  const auto backend = make_cuda({.memory_bytes = 1024 * MiB});
  std::mt19937 random(1);
  std::vector<gpu::Buffer> pieces;
  for (int turn = 0; turn < 60; ++turn) {
    try {
      pieces.push_back(backend->allocate(std::uint64_t{1} << (random() % 27), backend->stream()));
      pieces.push_back(backend->allocate(random() % (60 * MiB), backend->stream()));
    } catch (const Error&) {  // full: every other one goes
      for (std::size_t i = 0; i < pieces.size(); ++i) pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  const gpu::DeviceMemory memory = backend->memory();
  EXPECT_LE(memory.peak_bytes, memory.budget_bytes);
  EXPECT_LE(memory.driver_peak_bytes, memory.budget_bytes);
  EXPECT_GT(memory.driver_peak_bytes, memory.budget_bytes / 2);
}

TEST_F(MemoryTest, SaysWhatAPlannerTakesItToNeed) {
  const auto backend = make_cuda({.memory_bytes = 1024 * MiB});
  EXPECT_EQ(backend->memory().budget_bytes + backend->memory().overhead_bytes, 1024 * MiB);
  const std::uint64_t set_aside = gpu::cuda_step_bytes(backend->memory().budget_bytes);
  EXPECT_EQ(backend->memory().used_bytes, set_aside + gpu::cuda_workspace_bytes);
  const gpu::ScratchShape shape{512, 16, 128, 4096};
  EXPECT_GT(gpu::cuda_scratch_bytes(shape), set_aside);
  EXPECT_EQ(backend->scratch_bytes(shape), gpu::cuda_scratch_bytes(shape) - set_aside);
}

TEST_F(MemoryTest, ABudgetThatCannotWorkIsRefused) {
  EXPECT_THROW(make_cuda({.memory_bytes = 100 * MiB}), Error);
  EXPECT_THROW(make_cuda({.memory_bytes = std::uint64_t{1} << 50}), Error);
}

TEST_F(MemoryTest, TheSourceOfACopyMayChangeAtOnceWhereverItLies) {
  const offload::Topology topology;
  offload::ArenaOptions options;
  options.budget_bytes = 16 * MiB;
  options.listener = cuda->pinning();
  offload::Arena arena(topology, options);
  for (const std::uint64_t bytes : {std::uint64_t{5}, std::uint64_t{5000}, std::uint64_t{60001}, 2 * MiB + 3}) {
    const auto values = numbers(bytes);
    const std::uint64_t size = values.size() * sizeof(std::uint32_t);
    const offload::Extent pinned = arena.allocate(size);
    std::vector<std::byte> pageable(size);
    for (std::byte* source : {pinned.data(), pageable.data()}) {
      std::memcpy(source, values.data(), size);
      const gpu::Buffer buffer = cuda->allocate(size, cuda->stream());
      cuda->to_device(buffer.as<void>(), source, size, cuda->stream());
      std::memset(source, 0xff, size);
      EXPECT_EQ(download<std::uint32_t>(*cuda, buffer), values);
    }
  }
}

TEST_F(MemoryTest, CopiesOnTheDeviceMayOverlapEitherWay) {
  const std::uint64_t bytes = 9 * MiB;
  const auto values = numbers(bytes);
  const std::uint64_t size = values.size() * sizeof(std::uint32_t);
  for (const std::uint64_t shift : {std::uint64_t{4}, std::uint64_t{4096}, 5 * MiB, 20 * MiB}) {
    for (const bool down : {true, false}) {
      const gpu::Buffer buffer = cuda->allocate(size + shift, cuda->stream());
      auto* const low = buffer.as<std::byte>();
      std::byte* const to = down ? low : low + shift;
      std::byte* const from = down ? low + shift : low;
      cuda->to_device(from, values.data(), size, cuda->stream());
      cuda->copy(to, from, size, cuda->stream());
      EXPECT_EQ(download<std::uint32_t>(*cuda, to, static_cast<std::int64_t>(values.size())), values);
    }
  }
}

TEST_F(MemoryTest, NothingIsCopiedWhenThereIsNothing) {
  const gpu::Buffer buffer = cuda->allocate(0, cuda->stream());
  cuda->to_device(buffer.as<void>(), nullptr, 0, cuda->stream());
  cuda->to_host(nullptr, buffer.as<void>(), 0, cuda->stream());
  cuda->copy(buffer.as<void>(), buffer.as<void>(), 0, cuda->stream());
  cuda->synchronize({});
}

TEST_F(MemoryTest, TheDeviceIsDescribedInOneLine) {
  EXPECT_EQ(cuda->name(), "cuda");
  EXPECT_EQ(cuda->description().find('\n'), std::string::npos);
  EXPECT_NE(cuda->description().find("compute capability"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::testing
