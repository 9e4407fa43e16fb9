#include "tests/simt/ptx/launch.h"

#include <fstream>

#include "gpu/cuda/kernels/launch.h"
#include "tests/simt/stream_fixture.h"

namespace hayloft::simt::probe {

// The PTX below does what the tests that launch it need: it copies a word.
__global__ void copy_word(const unsigned* from, unsigned* to) {
  *to = *from;
}

}  // namespace hayloft::simt::probe

namespace hayloft::simt::ptx {
namespace {

// Adds 1, so that a copy tells whether the PTX has made it.
constexpr const char* copy_word_ptx = R"(.version 9.0
.target sm_89
.address_size 64
.visible .entry _ZN7hayloft4simt5probe9copy_wordEPKjPj(.param .u64 from, .param .u64 to) {
.reg .b32 %r<2>;
.reg .b64 %rd<4>;
.shared .align 4 .b8 unused[40960];
ld.param.u64 %rd0, [from];
ld.param.u64 %rd1, [to];
cvta.to.global.u64 %rd2, %rd0;
cvta.to.global.u64 %rd3, %rd1;
ld.global.u32 %r0, [%rd2];
add.s32 %r0, %r0, 1;
st.global.u32 [%rd3], %r0;
ret;
}
)";

class PtxLaunchTest : public StreamTest {
 protected:
  void SetUp() override {
    StreamTest::SetUp();
    std::string name = ::testing::TempDir() + "/ptx_launch_XXXXXX";
    folder_ = mkdtemp(name.data());
    use_ptx(copy_word_ptx);
  }
  void TearDown() override {
    use(options_from_environment());
    std::filesystem::remove_all(folder_);
    StreamTest::TearDown();
  }
  void use_ptx(const std::string& text) {
    std::ofstream(folder_ / "probe.ptx") << text;
    use({.folders = {folder_}});
  }
  std::string copy(const unsigned* from, unsigned* to, unsigned shared_bytes = 0) {
    gpu::cuda::launch("copy_word", probe::copy_word, {1, 1, shared_bytes}, stream, from, to);
    cudaStreamSynchronize(stream);
    return kernel_failure();
  }

  std::filesystem::path folder_;
};

TEST_F(PtxLaunchTest, ThePtxRunsInPlaceOfTheSource) {
  unsigned* words = pinned<unsigned>(2);
  words[0] = 41;
  ASSERT_EQ(copy(words, words + 1), "");
  EXPECT_EQ(words[1], 42u);
  use({});
  ASSERT_EQ(copy(words, words + 1), "");
  EXPECT_EQ(words[1], 41u);
}

TEST_F(PtxLaunchTest, AnUnpinnedPointerIsAFailureUntilItIsPinned) {
  unsigned* to = on_device<unsigned>(1);
  std::vector<unsigned> from(1024, 7);
  ASSERT_EQ(cudaHostRegister(from.data(), 4096, cudaHostRegisterMapped), cudaSuccess);
  EXPECT_EQ(copy(from.data(), to), "");
  ASSERT_EQ(cudaHostUnregister(from.data()), cudaSuccess);
  const std::string failure = copy(from.data(), to);
  EXPECT_NE(failure.find("copy_word(unsigned int const*, unsigned int*): "), std::string::npos) << failure;
  EXPECT_NE(failure.find("is neither device memory nor pinned host memory: ld.global.u32 %r0, [%rd2]; at probe.ptx:12, "
                         "thread (0, 0, 0) of block (0, 0, 0)"),
            std::string::npos)
      << failure;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
}

TEST_F(PtxLaunchTest, FreedDeviceMemoryIsNotReachable) {
  unsigned* from = on_device<unsigned>(1);
  unsigned* freed = nullptr;
  ASSERT_EQ(cudaMallocAsync(&freed, 4, stream), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(freed, stream), cudaSuccess);
  EXPECT_NE(copy(from, freed).find("neither device memory nor pinned"), std::string::npos);
}

TEST_F(PtxLaunchTest, StaticSharedMemoryCountsAgainstTheLimit) {
  unsigned* words = pinned<unsigned>(2);
  EXPECT_EQ(copy(words, words + 1, 8192), "");
  EXPECT_NE(copy(words, words + 1, 8208).find("40960 bytes of static and 8208 of dynamic shared memory, 49152 at most"),
            std::string::npos);
}

TEST_F(PtxLaunchTest, AKernelWithoutPtxOrWithOtherParametersIsAFailure) {
  unsigned* words = pinned<unsigned>(2);
  use_ptx(".version 9.0\n.entry other() { ret; }\n");
  EXPECT_NE(copy(words, words + 1).find("PTX: no PTX file has this kernel"), std::string::npos);
  reset();
  use_ptx(".version 9.0\n.entry _ZN7hayloft4simt5probe9copy_wordEPKjPj(.param .u64 from) { ret; }\n");
  EXPECT_NE(copy(words, words + 1).find("PTX: 2 arguments, the PTX has 1 parameters"), std::string::npos);
  reset();
  use_ptx(".version 9.0\n.entry _ZN7hayloft4simt5probe9copy_wordEPKjPj(.param .u64 a, .param .u32 b) { ret; }\n");
  EXPECT_NE(copy(words, words + 1).find("PTX: argument 1 has 8 bytes, the PTX's parameter 4"), std::string::npos);
}

TEST_F(PtxLaunchTest, CostsTellPinnedMemoryFromTheDevices) {
  const auto file = folder_ / "costs";
  use({.folders = {folder_}, .costs_file = file.string()});
  unsigned* from = pinned<unsigned>(1);
  ASSERT_EQ(copy(from, on_device<unsigned>(1)), "");
  use({});  // the others are written
  std::ifstream written(file);
  std::string line;
  ASSERT_TRUE(std::getline(written, line));
  EXPECT_EQ(line.substr(0, line.find("unsigned")), R"({"kernel": "hayloft::simt::probe::copy_word()");
  for (const char* part :
       {R"("file": "probe.ptx", "launches": 1, "blocks": 1, "warps": 1, "threads": 1, )",
        R"("dynamic_shared": 0, "thread_instructions": 8, )", R"("warp_instructions": 8, )",
        R"("device": {"accesses": 1, "transactions": 1, "read_bytes": 0, "written_bytes": 4}, )",
        R"("pinned": {"accesses": 1, "transactions": 1, "read_bytes": 4, "written_bytes": 0}, "pinned_lines": 1, )",
        R"("lines": {"8": 1, "9": 1, "10": 1, "11": 1, "12": 1, "13": 1, "14": 1, "15": 1})"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
}

TEST_F(PtxLaunchTest, AFolderWithoutPtxIsRefused) {
  std::filesystem::remove(folder_ / "probe.ptx");
  EXPECT_THROW(use({.folders = {folder_}}), std::runtime_error);
}

}  // namespace
}  // namespace hayloft::simt::ptx
