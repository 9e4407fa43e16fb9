#include "gpu/cuda/link/gate.h"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/link.h"
#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/stream_fixture.h"

// The gate of the link benchmark, and what the benchmark does about a driver that fails behind it.
namespace hayloft::simt {
namespace {

using gpu::cuda::Gate;
using gpu::cuda::launch;

class LinkGate : public StreamTest {
 protected:
  void SetUp() override {
    StreamTest::SetUp();
    out = pinned<int>(1);
    launch("write_value", write_value, {1, 1}, stream, out, 0);
    cudaStreamSynchronize(stream);
  }

  int* out = nullptr;
};

TEST_F(LinkGate, WhatIsQueuedBehindItRunsOnceItIsOpened) {
  Gate gate(stream);
  launch("write_value", write_value, {1, 1}, stream, out, 1);
  EXPECT_EQ(*out, 0);
  gate.open();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*out, 1);
  EXPECT_FALSE(gate.gave_up());
}

TEST_F(LinkGate, OneThatNobodyOpensLetsEverythingThroughBeforeItGoes) {
  {
    const Gate gate(stream);
    launch("write_value", write_value, {1, 1}, stream, out, 1);
  }
  EXPECT_EQ(*out, 1);
}

TEST_F(LinkGate, WhoeverWaitsForTheStreamMeanwhileIsLetThroughAndItIsKnown) {
  const Gate gate(stream, std::chrono::nanoseconds(0));
  launch("write_value", write_value, {1, 1}, stream, out, 1);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*out, 1);
  EXPECT_TRUE(gate.gave_up());
}

gpu::LinkReport measured() {
  gpu::LinkOptions options;
  options.footprints = {std::uint64_t{4} << 20};
  return gpu::measure_link(offload::Topology(), testing::threads(), options);
}

TEST_F(LinkGate, TheBenchmarkLoadsNoKernelWhileAStreamIsHeld) {
  holds_its_stream("hold_stream");
  const gpu::LinkReport report = measured();
  EXPECT_EQ(kernel_failure(), "");
  EXPECT_GT(launches("hold_stream"), 0);
  for (const std::string& skipped : report.skipped) EXPECT_EQ(skipped.find("gates"), std::string::npos) << skipped;
}

TEST_F(LinkGate, OnlyColumnsByTheCopyEngineAndLiveLaunchesAreTakenAsTheHostQueuesThem) {
  std::int64_t gated = 0;
  for (const gpu::LinkFigure& figure : measured().figures) {
    if (figure.test == "device_memory_of_pinned") continue;  // is asked of the driver, not timed
    const bool columns = figure.test.starts_with("column_stream") && figure.engine != "sm";
    gated += !columns && figure.test != "launch_live" && figure.test != "launch_and_wait";
  }
  EXPECT_EQ(launches("hold_stream"), 7 * gated);
}

TEST_F(LinkGate, ACallThatFailsWhileTheStreamIsHeldEndsTheBenchmarkWithItsError) {
  for (const int turn : {1, 2, 5}) {
    reset();
    fail_call("cudaMemcpyAsync", turn, cudaErrorInvalidValue);
    EXPECT_THROW(measured(), Error);
  }
}

// A link, or memory, that changes what it carries.
class LyingLink : public LinkGate {
 protected:
  // Returns what the benchmark says when every copy of this kind with rows of so many bytes arrives changed.
  std::string refusal(cudaMemcpyKind kind, std::size_t least, std::size_t most) {
    reset();
    spoil_copies(kind, least, most);
    try {
      measured();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(LyingLink, IsFoundByWholeCopiesInEitherDirection) {
  constexpr std::size_t whole = std::size_t{4} << 20;
  EXPECT_EQ(refusal(cudaMemcpyHostToDevice, whole, whole),
            "link: 1 words arrived changed in host_to_device_memcpy_ce: do not trust this machine's memory or link");
  EXPECT_NE(refusal(cudaMemcpyHostToDevice, whole / 2, whole / 2).find("changed in host_to_device_both"),
            std::string::npos);
  EXPECT_EQ(refusal(cudaMemcpyDeviceToHost, whole, whole),
            "link: 1 words arrived changed in device_to_host_memcpy_ce: do not trust this machine's memory or link");
}

TEST_F(LyingLink, IsFoundByColumnsAndByTheirScales) {
  EXPECT_NE(refusal(cudaMemcpyHostToDevice, 8192, 8192).find("changed in column_stream_f16"), std::string::npos);
  EXPECT_NE(refusal(cudaMemcpyHostToDevice, 2048, 2048).find("changed in column_stream_int4"), std::string::npos);
  EXPECT_NE(refusal(cudaMemcpyHostToDevice, 128, 128).find("changed in column_stream_int8"), std::string::npos)
      << "a scale for 64 of 4096 tokens is 128 bytes";
}

TEST_F(LinkGate, MemoryThatIsNotPinnedIsSkippedAndSaidSo) {
  device().registrable_bytes = std::uint64_t{1} << 20;
  const gpu::LinkReport report = measured();
  std::vector<std::string> tests;
  for (const gpu::LinkFigure& figure : report.figures) tests.push_back(figure.test);
  EXPECT_EQ(tests, (std::vector<std::string>{"device_local_copy", "launch_queued", "launch_live", "launch_and_wait"}))
      << "which want no host memory";
  ASSERT_FALSE(report.skipped.empty());
  EXPECT_NE(report.skipped.back().find("the system refuses to pin 4.0 MiB"), std::string::npos)
      << report.skipped.back();
  EXPECT_EQ(pinned_bytes(), sizeof(int)) << "what this test has itself";
}

}  // namespace
}  // namespace hayloft::simt
