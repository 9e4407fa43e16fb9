#include "tests/support/gated_delta.h"

#include <algorithm>

#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"

// Layers of gated delta rules beside the recurrence in double and the CPU backend.
namespace hayloft::testing {
namespace {

struct Given {
  std::vector<float> out, kept;
};

class GatedDeltaTest : public CudaTest {
 protected:
  // In chunks of so many tokens, the state written over itself or into new memory each time.
  Given run(const DeltaProblem& p, int chunk, bool in_place) {
    const gpu::DeltaShape& shape = p.layer.shape;
    const gpu::Stream stream = cuda->stream();
    const gpu::Buffer convolution = upload(*cuda, p.convolution), decay = upload(*cuda, p.decay),
                      step_bias = upload(*cuda, p.step_bias), norm = upload(*cuda, p.norm),
                      inputs = upload(*cuda, p.inputs), a = upload(*cuda, p.a), b = upload(*cuda, p.b),
                      gate = upload(*cuda, p.gate),
                      out = upload(*cuda, std::vector<float>(p.gate.size(), std::nanf("")));
    gpu::DeltaLayer layer = p.layer;
    layer.convolution = convolution.as<float>();
    layer.decay = decay.as<float>();
    layer.step_bias = step_bias.as<float>();
    layer.norm = norm.as<float>();
    const std::vector<float> nothing(static_cast<std::size_t>(shape.kept_floats()), std::nanf(""));
    gpu::Buffer kept, next = upload(*cuda, nothing);
    for (int t = 0; t < p.T; t += chunk) {
      const int n = std::min(chunk, p.T - t);
      const std::ptrdiff_t heads = std::ptrdiff_t{t} * shape.value_heads, values = t * shape.values();
      const float* const before = t == 0 ? nullptr : in_place ? next.as<float>() : kept.as<float>();
      cuda->gated_delta(layer, {before, next.as<float>()}, inputs.as<float>() + t * shape.channels(),
                        a.as<float>() + heads, b.as<float>() + heads, gate.as<float>() + values, n,
                        out.as<float>() + values, stream);
      if (in_place || t + n == p.T) continue;
      kept = std::move(next);
      next = upload(*cuda, nothing);
    }
    return {download<float>(*cuda, out), download<float>(*cuda, next)};
  }
};

TEST_F(GatedDeltaTest, IsTheRecurrenceInDoubleAndTheCpuBackends) {
  for (const gpu::DeltaShape& shape : delta_shapes) {
    const DeltaProblem problem(shape, 70);
    const DeltaOracle expected(problem);
    const Given given = run(problem, problem.T, false);
    std::vector<float> out(problem.gate.size()), inputs = problem.inputs, kept(given.kept.size());
    cpu->gated_delta(problem.layer, {nullptr, kept.data()}, inputs.data(), problem.a.data(), problem.b.data(),
                     problem.gate.data(), problem.T, out.data(), {});
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(given.out[i], expected.out[i], expected.out_tolerance[i]) << i << ", dk " << shape.key_dim;
      ASSERT_NEAR(given.out[i], out[i], 2 * expected.out_tolerance[i]) << i << ", dk " << shape.key_dim;
    }
    const auto own = static_cast<std::size_t>(shape.state_floats());
    for (std::size_t i = 0; i < own; ++i) {
      ASSERT_NEAR(given.kept[i], expected.state[i], expected.state_tolerance[i]) << i << ", dk " << shape.key_dim;
    }
    // The inputs of the newest tokens are kept as they came.
    for (std::size_t i = own; i < kept.size(); ++i) ASSERT_EQ(given.kept[i], kept[i]) << i - own;
  }
}

TEST_F(GatedDeltaTest, ChunksOfAnySizeGiveTheSameBitsAlsoInPlace) {
  for (const gpu::DeltaShape& shape : delta_shapes) {
    const DeltaProblem problem(shape, 70);
    const Given whole = run(problem, problem.T, false);
    for (const int chunk : {1, 2, 7, 64}) {
      for (const bool in_place : {false, true}) {
        if (chunk == 2 && !in_place) continue;
        const Given given = run(problem, chunk, in_place);
        EXPECT_EQ(given.out, whole.out) << chunk << ", dk " << shape.key_dim;
        EXPECT_EQ(given.kept, whole.kept) << chunk << ", dk " << shape.key_dim;
      }
    }
  }
}

// A chunk of several pieces of the convolution behind a state that it writes over.
TEST_F(GatedDeltaTest, LongChunksInPlaceGiveTheSameBits) {
  const DeltaProblem problem({1, 2, 8, 16, 4}, 300);
  const Given whole = run(problem, problem.T, false);
  for (const int chunk : {130, 1}) {
    const Given given = run(problem, chunk, true);
    EXPECT_EQ(given.out, whole.out) << chunk;
    EXPECT_EQ(given.kept, whole.kept) << chunk;
  }
}

TEST_F(GatedDeltaTest, ShapesThatThereAreNoLayersOfAreRefused) {
  for (const gpu::DeltaShape& shape : delta_shapes_refused) {
    gpu::DeltaLayer layer;
    layer.shape = shape;
    EXPECT_THROW(cuda->gated_delta(layer, {}, nullptr, nullptr, nullptr, nullptr, 1, nullptr, cuda->stream()), Error);
  }
}

TEST_F(GatedDeltaTest, NoTokensAreNoWork) {
  gpu::DeltaLayer layer;
  layer.shape = delta_shapes[0];
  cuda->gated_delta(layer, {}, nullptr, nullptr, nullptr, nullptr, 0, nullptr, cuda->stream());
  cuda->synchronize(cuda->stream());
}

}  // namespace
}  // namespace hayloft::testing
