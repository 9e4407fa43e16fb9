#include <thread>

#include "offload/error.h"
#include "offload/host/arena.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/simt/sizes.h"
#include "tests/support/refusal.h"

// A machine with two devices.
namespace hayloft::testing {
namespace {

using test::refuses;

class SecondDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    simt::reset();
    simt::device().count = 2;
  }
  void TearDown() override { simt::reset(); }

  // A decode step's attention, with the memory that it takes; as a thread does it that has never called CUDA.
  static std::vector<float> attended(gpu::Backend& cuda) {
    std::vector<float> result;
    std::thread worker([&] {
      SharedCache cache(cuda, {.kv_heads = 2, .head_dim = 32, .stored = 500, .tail = 20});
      const gpu::Buffer q = upload(cuda, random_query(8, 32, 1));
      const gpu::Buffer out = cuda.allocate(q.bytes(), cuda.stream());
      const gpu::Buffer positions = cuda.allocate(2 * 50 * sizeof(std::int32_t), cuda.stream());
      const gpu::Buffer alpha = cuda.allocate(8 * sizeof(float), cuda.stream());
      gpu::SparqSelect args;
      args.rank = 8;
      args.k = 50;
      args.limit = 500;
      cuda.select_sparq(cache.on_cuda(), q.as<float>(), 8, args, positions.as<std::int32_t>(), alpha.as<float>(),
                        cuda.stream());
      gpu::Attended what;
      what.positions = positions.as<std::int32_t>();
      what.lists = 2;
      what.k = 50;
      what.ranges[0] = {500, 520};
      what.alpha = alpha.as<float>();
      cuda.attend(cache.on_cuda(), q.as<float>(), 8, what, out.as<float>(), cuda.stream());
      result = download<float>(cuda, out);
    });
    worker.join();
    return result;
  }

  const offload::Topology topology;
};

TEST_F(SecondDevice, HasTheMemoryAndTheStreamsOfEveryThreadThatCalls) {
  const std::uint64_t first = simt::device_bytes(0);
  auto cuda = make_cuda({.device = 1});
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);  // as somebody else in this process may
  attended(*cuda);
  std::unique_ptr<offload::Arena> arena;
  std::thread pins([&] {
    offload::ArenaOptions options;
    options.budget_bytes = 8 * MiB;
    options.chunk_bytes = 4 * MiB;
    options.listener = cuda->pinning();
    arena = std::make_unique<offload::Arena>(topology, options);
    arena->allocate(MiB);
  });
  pins.join();
  EXPECT_EQ(simt::calls("cudaHostRegister"), 2) << "the cache's, and this one";
  gpu::Buffer buffer = cuda->allocate(MiB, cuda->stream());
  std::thread frees([&] {
    cuda->synchronize(cuda->stream());
    buffer = {};
  });
  frees.join();
  std::thread releases([&] { arena.reset(); });
  releases.join();
  std::thread closes([&] { cuda.reset(); });
  closes.join();
  EXPECT_EQ(simt::uses(0), 0);
  EXPECT_GT(simt::uses(1), 0);
  EXPECT_EQ(simt::device_bytes(0), first);
}

TEST_F(SecondDevice, AnswersAsTheFirstAndBesideIt) {
  const auto zero = make_cuda();
  const auto one = make_cuda({.device = 1});
  const std::vector<float> expected = attended(*zero);
  EXPECT_EQ(attended(*one), expected);
  const gpu::Buffer here = upload(*zero, expected), there = upload(*one, expected);
  EXPECT_EQ(download<float>(*zero, here), expected);
  EXPECT_EQ(download<float>(*one, there), expected);
  EXPECT_NE(zero->description(), one->description()) << "they have addresses of their own on the bus";
}

TEST_F(SecondDevice, AThirdIsRefusedWithWhatThereIs) {
  EXPECT_TRUE(refuses([] { make_cuda({.device = 2}); }, {"--device cuda:2", "2 devices, cuda:0 to cuda:1"}));
  EXPECT_EQ(gpu::cuda_devices(), 2);
  simt::device().count = 1;
  EXPECT_TRUE(refuses([] { make_cuda({.device = 1}); }, {"--device cuda:1", "1 device, cuda:0 ("}));
}

}  // namespace
}  // namespace hayloft::testing
