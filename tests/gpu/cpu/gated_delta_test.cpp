#include <gtest/gtest.h>

#include <vector>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "tests/support/each_target.h"
#include "tests/support/gated_delta.h"

// Layers of gated delta rules beside the recurrence in double, as gpu/backend.h states it.
namespace hayloft {
namespace {

using test::for_each_target;
using testing::delta_shapes;
using testing::DeltaOracle;
using testing::DeltaProblem;

using Shape = gpu::DeltaShape;

// In chunks of so many tokens; behind it what is kept of the sequence.
std::vector<float> run(gpu::Backend& backend, const DeltaProblem& p, int chunk, std::vector<float>& kept) {
  const Shape& shape = p.layer.shape;
  std::vector<float> out(p.gate.size()), inputs = p.inputs, next(static_cast<std::size_t>(shape.kept_floats()));
  for (int t = 0; t < p.T; t += chunk) {
    const int n = std::min(chunk, p.T - t);
    const std::ptrdiff_t heads = std::ptrdiff_t{t} * shape.value_heads, values = t * shape.values();
    backend.gated_delta(p.layer, {kept.empty() ? nullptr : kept.data(), next.data()},
                        inputs.data() + t * shape.channels(), p.a.data() + heads, p.b.data() + heads,
                        p.gate.data() + values, n, out.data() + values, {});
    kept = next;
  }
  return out;
}

TEST(GatedDelta, IsTheRecurrenceInDouble) {
  const offload::Threads threads(2);
  const auto backend = gpu::make_cpu_backend(threads);
  for (const Shape& shape : delta_shapes) {
    const DeltaProblem problem(shape, 70);
    const DeltaOracle expected(problem);
    for_each_target([&] {
      std::vector<float> kept;
      const std::vector<float> out = run(*backend, problem, problem.T, kept);
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected.out[i], expected.out_tolerance[i]) << i << ", dk " << shape.key_dim;
      }
      for (std::size_t i = 0; i < expected.state.size(); ++i) {
        ASSERT_NEAR(kept[i], expected.state[i], expected.state_tolerance[i]) << i << ", dk " << shape.key_dim;
      }
    });
  }
}

// Else a wrong result might pass as a rounded one.
TEST(GatedDelta, WhatTheOracleAllowsIsSmall) {
  for (const Shape& shape : delta_shapes) {
    const DeltaProblem problem(shape, 70);
    const DeltaOracle expected(problem);
    double size = 0, allowed = 0;
    for (std::size_t i = 0; i < expected.out.size(); ++i) {
      size += std::fabs(expected.out[i]);
      allowed += expected.out_tolerance[i];
    }
    EXPECT_LT(allowed / size, 5e-3) << "dk " << shape.key_dim;
  }
}

TEST(GatedDelta, ChunksOfAnySizeGiveTheSameBits) {
  const offload::Threads one(1), two(2);
  const auto backend = gpu::make_cpu_backend(one), other = gpu::make_cpu_backend(two);
  for (const Shape& shape : delta_shapes) {
    const DeltaProblem problem(shape, 70);
    std::vector<float> whole;
    const std::vector<float> expected = run(*backend, problem, problem.T, whole);
    for (const int chunk : {1, 2, 7, 64}) {
      std::vector<float> kept;
      EXPECT_EQ(run(*other, problem, chunk, kept), expected) << chunk;
      EXPECT_EQ(kept, whole) << chunk;
    }
  }
}

TEST(GatedDelta, ShapesThatThereAreNoLayersOfAreRefused) {
  const offload::Threads threads(1);
  const auto backend = gpu::make_cpu_backend(threads);
  for (const Shape& shape : testing::delta_shapes_refused) {
    gpu::DeltaLayer layer;
    layer.shape = shape;
    EXPECT_THROW(backend->gated_delta(layer, {}, nullptr, nullptr, nullptr, nullptr, 1, nullptr, {}), Error);
  }
}

}  // namespace
}  // namespace hayloft
