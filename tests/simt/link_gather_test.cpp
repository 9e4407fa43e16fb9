#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/link/kernels.cuh"
#include "tests/simt/stream_fixture.h"

// Tests what the link benchmark's gather says of a payload that arrived changed.
namespace hayloft::simt {
namespace {

using gpu::cuda::kLinkLoads;
using gpu::cuda::kLinkThreads;
using gpu::cuda::LinkRuns;

class LinkGather : public StreamTest {
 protected:
  static constexpr int blocks = 2, shift = 8;
  // Three rounds of all threads and some of a fourth, so that every load of a thread has its turns.
  static constexpr std::int64_t units = 3 * kLinkLoads * blocks * kLinkThreads + 512;
  static constexpr std::int64_t runs = units >> shift;

  void SetUp() override {
    StreamTest::SetUp();
    words = reinterpret_cast<unsigned*>(pinned<uint4>(units));
    for (std::int64_t i = 0; i < 4 * units; ++i) words[i] = gpu::cuda::link_word(static_cast<std::uint64_t>(i));
    starts = pinned<std::int64_t>(runs);
    for (std::int64_t i = 0; i < runs; ++i) starts[i] = (runs - 1 - i) << shift;
    wrong = pinned<unsigned>(1);
  }

  // Words that are found wrong in the first runs and then in others.
  unsigned found(const LinkRuns& first, const LinkRuns& then) {
    *wrong = 0;
    gpu::cuda::launch("link_gather", gpu::cuda::link_gather, {dim3(blocks), dim3(kLinkThreads)}, stream,
                      reinterpret_cast<const uint4*>(words), first, then, wrong);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return *wrong;
  }

  unsigned* words = nullptr;
  std::int64_t* starts = nullptr;
  unsigned* wrong = nullptr;
};

TEST_F(LinkGather, SeesWhatLiesInARunAndNothingElse) {
  const LinkRuns first{starts, 3, shift}, then{starts + 3, 1, 5};
  EXPECT_EQ(found(first, then), 0u);
  words[(starts[3] + 32) * 4] ^= 1;  // behind the last piece
  EXPECT_EQ(found(first, then), 0u);
  words[starts[3] * 4 + 7] ^= 1;
  words[(starts[2] + 188) * 4] ^= 1;
  EXPECT_EQ(found(first, then), 2u);
}

TEST_F(LinkGather, CountsEveryWrongWordOfEveryLoad) {
  const LinkRuns all{starts, runs, shift};
  for (int word = 0; word < 4; ++word) {
    for (std::int64_t i = 0; i < units; ++i) words[4 * i + word] ^= 1;
    EXPECT_EQ(found(all, {}), (word + 1) * units);
    EXPECT_EQ(found({}, all), (word + 1) * units);
    EXPECT_EQ(found(all, {starts, 1, shift}), (word + 1) * (units + (1 << shift)));
  }
}

}  // namespace
}  // namespace hayloft::simt
