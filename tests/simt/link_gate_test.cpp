#include "gpu/cuda/link_gate.cuh"

#include "gpu/cuda/launch.cuh"
#include "gpu/link.h"
#include "offload/error.h"
#include "tests/cuda/backends.h"
#include "tests/simt/stream_fixture.h"

// The gate of the link benchmark, and what the benchmark does about a driver that fails behind it.
namespace hayloft::simt {
namespace {

using gpu::cuda::Gate;
using gpu::cuda::launch;

__global__ void write_value(int* out, int value) {
  *out = value;
}

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

TEST_F(LinkGate, ACallThatFailsWhileTheStreamIsHeldEndsTheBenchmarkWithItsError) {
  for (const int turn : {1, 2, 5}) {
    reset();
    fail_call("cudaMemcpyAsync", turn, cudaErrorInvalidValue);
    EXPECT_THROW(measured(), Error);
  }
}

}  // namespace
}  // namespace hayloft::simt
