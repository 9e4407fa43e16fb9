#include <string>
#include <thread>

#include "gpu/cuda/api/step_graphs.h"
#include "gpu/cuda/kernels/launch.h"
#include "offload/error.h"
#include "tests/simt/stream_fixture.h"

// Tests how kernels of a step are held back and launched as graphs.
namespace hayloft::simt {
namespace {

using gpu::cuda::in_order;
using gpu::cuda::launch;
using gpu::cuda::StepGraphs;

// Kernels of their own make a sequence that nothing else has.
__global__ void multiply_by(int* x, int factor) {
  *x *= factor;
}
__global__ void add_to(int* x, int summand) {
  x[blockIdx.x] += summand;
}

class StepGraphsTest : public StreamTest {
 protected:
  void SetUp() override {
    StreamTest::SetUp();
    graphs.emplace(0, stream, true);
    x = on_device<int>(2);
  }
  void TearDown() override {
    graphs.reset();
    StreamTest::TearDown();
  }

  // x = (first * factor + summand) * factor, by four kernels, none of which may come before another.
  void queue(int first, int factor, int summand, unsigned blocks = 1) const {
    launch("write_value", write_value, {1, 1}, stream, x, first);
    launch("multiply_by", multiply_by, {1, 1}, stream, x, factor);
    launch("add_to", add_to, {blocks, 1}, stream, x, summand);
    launch("multiply_by", multiply_by, {1, 1}, stream, x, factor);
  }
  int value() const {
    int host = 0;
    EXPECT_EQ(cudaMemcpyAsync(&host, x, sizeof host, cudaMemcpyDeviceToHost, in_order(stream)), cudaSuccess);
    return host;
  }
  int step(int first, int factor, int summand) {
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    queue(first, factor, summand);
    return value();
  }

  std::optional<StepGraphs> graphs;
  int* x = nullptr;
};

TEST_F(StepGraphsTest, TheSecondTimeKernelsAreAGraphAndLaterItIsToldWhatChanges) {
  EXPECT_EQ(step(2, 3, 4), 30);
  EXPECT_EQ(calls("cudaGraphLaunch"), 0);
  EXPECT_EQ(step(2, 3, 4), 30);
  EXPECT_EQ(step(2, 3, 5), 33);
  EXPECT_EQ(step(7, 2, 5), 38);
  EXPECT_EQ(step(7, 2, 5), 38);
  EXPECT_EQ(calls("cudaGraphInstantiate"), 1);
  EXPECT_EQ(calls("cudaGraphLaunch"), 4);
  EXPECT_EQ(calls("cudaGraphExecKernelNodeSetParams"), 1 + 3);
  EXPECT_EQ(calls("cudaLaunchKernelEx"), 4) << "of the first time";
}

TEST_F(StepGraphsTest, ALargerGridIsToldToo) {
  for (const unsigned blocks : {1u, 1u, 2u, 1u}) {
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    launch("write_value", write_value, {1, 1}, stream, x + 1, 5);
    queue(1, 1, 1, blocks);
    in_order(stream);
    EXPECT_EQ(to_host(x, 2)[1], blocks == 2 ? 6 : 5);
  }
  EXPECT_EQ(calls("cudaGraphInstantiate"), 1);
}

TEST_F(StepGraphsTest, OtherKernelsInThePlaceOfTheseAreAGraphOfTheirOwn) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(step(2, 3, 4), 30);
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    for (int k = 0; k < 3; ++k) launch("add_to", add_to, {1, 1}, stream, x, 1);
    EXPECT_EQ(value(), 33);
  }
  EXPECT_EQ(calls("cudaGraphInstantiate"), 2);
}

TEST_F(StepGraphsTest, NothingIsLaunchedBeforeAPartHasEnoughOrTheStepEnds) {
  {
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    queue(1, 1, 1);
    held->part_ends();
    EXPECT_EQ(launches(), 0) << "four are few";
    EXPECT_EQ(graphs->begin(), nullptr) << "a step in a step";
    queue(2, 3, 4);
    held->part_ends();
    EXPECT_EQ(launches(), 8);
    queue(3, 3, 4);
  }
  EXPECT_EQ(launches(), 12);
  EXPECT_EQ(value(), 39);
}

TEST_F(StepGraphsTest, WhatAnotherThreadQueuesComesBehindWhatItKnowsOf) {
  for (int i = 0; i < 3; ++i) {
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    queue(2, 3, 4);
    std::thread([&] { launch("add_to", add_to, {1, 1}, stream, x, 1); }).join();
    launch("multiply_by", multiply_by, {1, 1}, stream, x, 2);
    EXPECT_EQ(value(), 62);
  }
}

TEST_F(StepGraphsTest, TwoThreadsInStepsEachHaveTheirOrder) {
  const auto add_many = [&](int* to) {
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    launch("write_value", write_value, {1, 1}, stream, to, 1);
    for (int i = 0; i < 10; ++i) {
      launch("multiply_by", multiply_by, {1, 1}, stream, to, 2);
      launch("add_to", add_to, {1, 1}, stream, to, 1);
      held->part_ends();
    }
  };
  for (int i = 0; i < 10; ++i) {
    std::thread one([&] { add_many(x); });
    std::thread two([&] { add_many(x + 1); });
    one.join();
    two.join();
    EXPECT_EQ(to_host(x, 2), (std::vector<int>{2047, 2047}));
  }
}

TEST_F(StepGraphsTest, ADriverThatRefusesGraphsGetsTheKernelsOneByOne) {
  for (const char* function : {"cudaGraphCreate", "cudaGraphAddKernelNode", "cudaGraphInstantiate", "cudaGraphLaunch",
                               "cudaGraphExecKernelNodeSetParams"}) {
    reset();
    graphs.reset();
    graphs.emplace(0, stream, true);
    fail_call(function, 1, cudaErrorMemoryAllocation);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(step(i, 3, 4), 3 * (3 * i + 4)) << function;
    EXPECT_GE(calls("cudaLaunchKernelEx"), 3 * 4) << function;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << function;
  }
}

TEST_F(StepGraphsTest, AKernelThatCannotBeLaunchedIsToldToItsStep) {
  fail_call("cudaLaunchKernelEx", 2, cudaErrorLaunchOutOfResources);
  const auto failing = [&] {
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    queue(2, 3, 4);
    std::thread([&] { in_order(stream); }).join();
    try {
      in_order(stream);
      return std::string();
    } catch (const Error& error) {
      EXPECT_THROW(queue(1, 1, 1), Error);
      EXPECT_THROW(held->part_ends(), Error);
      return std::string(error.what());
    }
  };
  EXPECT_NE(failing().find("multiply_by"), std::string::npos);
  EXPECT_EQ(step(2, 3, 4), 30) << "the next step begins anew";
}

TEST_F(StepGraphsTest, AStepDoesNotEndBeforeAllOfItIsLaunched) {
  gpu::cuda::LostLaunches lost(*graphs);
  EXPECT_FALSE(lost.any());
  fail_call("cudaLaunchKernelEx", 4, cudaErrorLaunchOutOfResources);
  const std::unique_ptr<gpu::Step> held = graphs->begin();
  queue(2, 3, 4);
  EXPECT_THROW(held->ends(), Error);
  EXPECT_TRUE(lost.any());
  EXPECT_FALSE(lost.any());
}

TEST_F(StepGraphsTest, AGraphThatMayHaveBeenLaunchedIsNotLaunchedAgain) {
  step(2, 3, 4);
  fail_call("cudaGraphLaunch", 1, cudaErrorUnknown);
  EXPECT_THROW(step(2, 3, 4), Error);
  EXPECT_EQ(calls("cudaLaunchKernelEx"), 4) << "of the first time";
  EXPECT_EQ(step(2, 3, 4), 30);
}

TEST_F(StepGraphsTest, NothingIsHeldBehindTheEndOfAStep) {
  const std::unique_ptr<gpu::Step> held = graphs->begin();
  queue(2, 3, 4);
  held->ends();
  EXPECT_EQ(launches(), 4);
  queue(2, 3, 5);
  EXPECT_EQ(launches(), 8);
}

TEST_F(StepGraphsTest, OfMoreThanAreKeptTheOldestGo) {
  for (int times = 0; times < 3; ++times) {
    const std::unique_ptr<gpu::Step> held = graphs->begin();
    for (int place = 0; place < 600; ++place) {
      queue(2, 3, 4);
      in_order(stream);
    }
    EXPECT_EQ(value(), 30);
  }
  EXPECT_LE(calls("cudaGraphInstantiate") - calls("cudaGraphExecDestroy"), 512);
}

}  // namespace
}  // namespace hayloft::simt
