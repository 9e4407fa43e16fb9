#include <cstring>

#include "gpu/cuda/api/cublas.h"
#include "gpu/make_backend.h"
#include "offload/error.h"
#include "offload/host/arena.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/simt/sizes.h"
#include "tests/support/refusal.h"

// Tests what the CUDA backend makes of a machine that fails.
namespace hayloft::testing {
namespace {

using test::refuses;

class FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override { simt::reset(); }
  void TearDown() override { simt::reset(); }

  static offload::ArenaOptions pinned_by(gpu::Backend& backend) {
    offload::ArenaOptions options;
    options.budget_bytes = 64 * MiB;
    options.chunk_bytes = 4 * MiB;
    options.listener = backend.pinning();
    return options;
  }

  offload::Topology topology;
};

TEST_F(FaultsTest, AMachineWithoutADeviceOrADriverIsToldFromOneThatFails) {
  simt::fail_call("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
  EXPECT_TRUE(refuses([] { make_cuda(); }, {"driver is missing or too old", "--device cpu"}));
  simt::fail_call("cudaGetDeviceCount", 1, cudaErrorNoDevice);
  EXPECT_TRUE(refuses([] { make_cuda(); }, {"no NVIDIA GPU", "CUDA_VISIBLE_DEVICES"}));
  simt::device().count = 0;
  EXPECT_THROW(make_cuda(), gpu::NoDevice);
  simt::reset();
  simt::fail_call("cudaSetDevice", 1, cudaErrorDevicesUnavailable);
  try {
    make_cuda();
    FAIL() << "nothing was thrown";
  } catch (const gpu::NoDevice&) {
    FAIL() << "there is a device";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("another process has the device"), std::string::npos);
  }
}

TEST_F(FaultsTest, ADriverThatIsOlderThanTheBuildIsSaidByBothVersions) {
  simt::device().driver_version = 12080;
  simt::fail_call("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
  EXPECT_TRUE(refuses([] { make_cuda(); }, {"speaks CUDA 12.8", "needs 13.0", "driver (580", "--device cpu"}));
}

TEST_F(FaultsTest, CublasIsThatOfTheBuildUnlessItIsNewerThanTheDriver) {
  using gpu::cuda::cublas_names;
  const std::string own = "/usr/local/cuda/lib64/";
  const std::vector<std::string> newest = {"libcublas.so.13", own + "libcublas.so.13", "libcublas.so.12",
                                           own + "libcublas.so.12", "libcublas.so"};
  const std::vector<std::string> older = {"libcublas.so.12", own + "libcublas.so.12", "libcublas.so.13",
                                          own + "libcublas.so.13", "libcublas.so"};
  EXPECT_EQ(cublas_names(13000, 13000), newest);
  EXPECT_EQ(cublas_names(13000, 14000), newest);
  EXPECT_EQ(cublas_names(12040, 13000), older);
  EXPECT_EQ(cublas_names(12040, 12080), older);
}

TEST_F(FaultsTest, ACublasThatDoesNotStartIsFollowedByTheNext) {
  simt::device().cublas = {"libcublas.so.13", "libcublas.so.12"};
  simt::fail_call("cublasCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_NO_THROW(make_cuda());
  EXPECT_EQ(simt::calls("cublasCreate"), 2);
}

TEST_F(FaultsTest, ACublasThatNoneStartsOfIsSaidByItsVersionAndTheDrivers) {
  simt::device().driver_version = 12080;
  simt::fail_call("cublasCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_TRUE(refuses([] { make_cuda(); },
                      {"libcublas.so.13 of CUDA 13.0 (status 1)", "driver speaks CUDA 12.8", "nvidia-cublas-cu12"}));
  simt::reset();
  simt::fail_call("cublasCreate", 1, CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_TRUE(refuses([] { make_cuda(); }, {"libcublas.so.13", "lower --gpu-memory"}));
  simt::device().cublas.clear();
  EXPECT_TRUE(refuses([] { make_cuda(); }, {"needs cuBLAS", "libcublas.so.13: no such file", "libcublas-13-0"}));
}

TEST_F(FaultsTest, ADriverThatCannotServeIsSaidHowToMend) {
  const auto saying = [](cudaError_t error, const char* what) {
    simt::fail_call("cudaGetDeviceCount", 1, error);
    return refuses([] { make_cuda(); }, {what, "--device cpu"});
  };
  EXPECT_TRUE(saying(cudaErrorSystemNotReady, "nvidia-fabricmanager"));
  EXPECT_TRUE(saying(cudaErrorSystemDriverMismatch, "restart"));
  simt::fail_call("cudaGetDeviceCount", 1, cudaErrorStubLibrary);
  EXPECT_THROW(make_cuda(), gpu::NoDevice);
}

TEST_F(FaultsTest, ABackendThatCannotBeMadeGivesBackWhatItTook) {
  const std::uint64_t before = simt::device_bytes(), pinned_before = simt::pinned_bytes();
  for (const char* call : {"cudaMemPoolCreate", "cudaHostAlloc", "cudaEventCreateWithFlags", "cublasCreate",
                           "cudaStreamCreateWithFlags", "cudaMallocFromPoolAsync"}) {
    SCOPED_TRACE(call);
    simt::reset();
    if (std::string(call) == "cublasCreate") {
      simt::fail_call(call, 1, CUBLAS_STATUS_NOT_INITIALIZED);
    } else {
      simt::fail_call(call, 1, cudaErrorNotSupported);
    }
    EXPECT_THROW(make_cuda(), Error);
    EXPECT_EQ(simt::device_bytes(), before);
    EXPECT_EQ(simt::pinned_bytes(), pinned_before);
  }
}

TEST_F(FaultsTest, ADeviceThatHasLessThanItsBudgetIsAskedUntilNothingIsKeptAndThenRefused) {
  const auto cuda = make_cuda();
  const std::uint64_t used = cuda->memory().used_bytes;
  simt::fail_call("cudaMallocFromPoolAsync", 1, cudaErrorMemoryAllocation);
  EXPECT_NO_THROW(cuda->allocate(MiB, cuda->stream()));  // what lay idle in the pool was given back
  simt::fail_call("cudaMallocFromPoolAsync", 1, cudaErrorMemoryAllocation);
  simt::fail_call("cudaMallocFromPoolAsync", 2, cudaErrorMemoryAllocation);
  simt::fail_call("cudaMallocFromPoolAsync", 3, cudaErrorMemoryAllocation);
  EXPECT_TRUE(
      refuses([&] { cuda->allocate(MiB, cuda->stream()); }, {"no memory left", "lower --gpu-memory", "1.0 MiB"}));
  EXPECT_EQ(cuda->memory().used_bytes, used);
  EXPECT_NO_THROW(cuda->allocate(MiB, cuda->stream()));
}

TEST_F(FaultsTest, ALostDeviceIsSaidToBeLostAndSavedFilesToBeIntact) {
  auto cuda = make_cuda();
  const gpu::Buffer x = upload(*cuda, std::vector<float>(10));
  simt::fail_call("cudaLaunchKernelEx", 1, cudaErrorECCUncorrectable);
  EXPECT_TRUE(
      refuses([&] { cuda->add(x.as<float>(), x.as<float>(), 10, cuda->stream()); },
              {"lost", "saved files are intact", "cudaErrorECCUncorrectable in add", ", gpu/cuda/kernels/launch.h"}));
  EXPECT_TRUE(refuses([&] { cuda->synchronize(cuda->stream()); }, {"lost"}));
  EXPECT_THROW(cuda->synchronize(cuda->stream()), gpu::DeviceLost);
  simt::reset();  // or nothing could be given back
}

TEST_F(FaultsTest, PinningThatIsRefusedIsSaidOnceAndTheRestIsNotPinned) {
  std::vector<std::string> said;
  const auto cuda = make_cuda({.on_warning = [&](const std::string& what) { said.push_back(what); }});
  offload::Arena arena(topology, pinned_by(*cuda));
  const offload::Extent first = arena.allocate(4 * MiB);
  EXPECT_TRUE(said.empty());
  simt::fail_call("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  const offload::Extent second = arena.allocate(4 * MiB);
  ASSERT_EQ(said.size(), 1u);
  for (const char* part : {"refuses to pin 4.0 MiB", "cudaErrorMemoryAllocation", "slower"}) {
    EXPECT_NE(said[0].find(part), std::string::npos) << said[0];
  }
  const std::int64_t calls = simt::calls("cudaHostRegister");
  const offload::Extent third = arena.allocate(4 * MiB);
  EXPECT_EQ(simt::calls("cudaHostRegister"), calls);
  EXPECT_EQ(said.size(), 1u);
}

TEST_F(FaultsTest, MemoryThatIsPinnedButOutOfTheDevicesReachIsStagedAsWell) {
  std::vector<std::string> said;
  const auto cuda = make_cuda({.on_warning = [&](const std::string& what) { said.push_back(what); }});
  const std::uint64_t before = simt::pinned_bytes();
  offload::Arena arena(topology, pinned_by(*cuda));
  simt::fail_call("cudaHostGetDevicePointer", 1, cudaErrorNotSupported);
  const offload::Extent extent = arena.allocate(MiB);
  EXPECT_EQ(simt::pinned_bytes(), before);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("cudaErrorNotSupported"), std::string::npos) << said[0];
}

TEST_F(FaultsTest, PinningThatIsDemandedAndRefusedIsAnError) {
  const auto cuda = make_cuda({.kv_host = gpu::KvHost::pinned});
  offload::Arena arena(topology, pinned_by(*cuda));
  simt::fail_call("cudaHostRegister", 1, cudaErrorNotPermitted);
  EXPECT_TRUE(refuses([&] { arena.allocate(MiB); }, {"--kv-host pinned", "4.0 MiB", "--kv-host staged"}));
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_NO_THROW(arena.allocate(MiB));
}

TEST_F(FaultsTest, NothingIsPinnedWhenNobodyWantsIt) {
  for (const auto kv_host : {gpu::KvHost::staged, gpu::KvHost::mmap}) {
    const auto cuda = make_cuda({.kv_host = kv_host});
    offload::Arena arena(topology, pinned_by(*cuda));
    const offload::Extent extent = arena.allocate(MiB);
    EXPECT_EQ(simt::calls("cudaHostRegister"), 0);
  }
}

TEST_F(FaultsTest, PinnedMemoryIsGivenUpWithItsArenaAlsoAfterTheBackend) {
  auto cuda = make_cuda();
  const std::uint64_t before = simt::pinned_bytes();
  auto arena = std::make_unique<offload::Arena>(topology, pinned_by(*cuda));
  const offload::Extent extent = arena->allocate(MiB);
  EXPECT_EQ(simt::pinned_bytes(), before + 4 * MiB);
  cuda.reset();
  arena.reset();
}

TEST_F(FaultsTest, MemoryIsNotTakenFromWhatIsStillQueued) {
  const auto cuda = make_cuda();
  const gpu::Buffer copied = cuda->allocate(MiB, cuda->stream());
  auto arena = std::make_unique<offload::Arena>(topology, pinned_by(*cuda));
  {
    const offload::Extent extent = arena->allocate(MiB);
    std::memset(extent.data(), 7, MiB);
    ASSERT_EQ(cudaMemcpyAsync(copied.as<void>(), extent.data(), MiB, cudaMemcpyHostToDevice,
                              static_cast<cudaStream_t>(cuda->stream().handle)),
              cudaSuccess);
  }
  arena.reset();
  EXPECT_EQ(download<unsigned char>(*cuda, copied), std::vector<unsigned char>(MiB, 7));
}

}  // namespace
}  // namespace hayloft::testing
