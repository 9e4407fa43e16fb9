#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu/make_backend.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/each_target.h"

// Layers of gated delta rules beside the recurrence in double, as gpu/backend.h states it.
namespace hayloft {
namespace {

using test::for_each_target;
using testing::normal;

using Shape = gpu::DeltaShape;

struct Problem {
  std::vector<float> convolution, decay, step_bias, norm, inputs, a, b, gate;
  gpu::DeltaLayer layer;
  int T;

  Problem(const Shape& shape, int tokens) : T(tokens) {
    layer.shape = shape;
    const int channels = static_cast<int>(shape.channels()), values = static_cast<int>(shape.values());
    const auto count = [](int x, int y) { return static_cast<std::size_t>(x) * static_cast<std::size_t>(y); };
    convolution = normal(count(channels, shape.kernel), 1);
    decay = normal(count(shape.value_heads, 1), 2);
    for (float& x : decay) x = std::exp(x);
    step_bias = normal(decay.size(), 3);
    norm = normal(count(shape.value_dim, 1), 4);
    inputs = normal(count(tokens, channels), 5);
    a = normal(count(tokens, shape.value_heads), 6);
    b = normal(a.size(), 7);
    gate = normal(count(tokens, values), 8);
    layer.convolution = convolution.data();
    layer.decay = decay.data();
    layer.step_bias = step_bias.data();
    layer.norm = norm.data();
  }
};

// In chunks of so many tokens; behind it what is kept of the sequence.
std::vector<float> run(gpu::Backend& backend, const Problem& p, int chunk, std::vector<float>& kept) {
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

std::vector<double> oracle(const Problem& p) {
  const gpu::DeltaLayer& layer = p.layer;
  const Shape& shape = layer.shape;
  const int channels = static_cast<int>(shape.channels()), kernel = shape.kernel, Hk = shape.key_heads,
            Hv = shape.value_heads, dk = shape.key_dim, dv = shape.value_dim;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  std::vector<double> state(at(std::int64_t{Hv} * dk * dv)), out(p.gate.size());
  for (int t = 0; t < p.T; ++t) {
    std::vector<double> x(at(channels));
    for (int c = 0; c < channels; ++c) {
      double sum = 0;
      for (int i = 0; i < kernel; ++i) {
        const int from = t - (kernel - 1) + i;
        if (from >= 0)
          sum += double{p.convolution[at(c * kernel + i)]} * p.inputs[at(std::int64_t{from} * channels + c)];
      }
      x[at(c)] = silu(sum);
    }
    for (int head = 0; head < Hv; ++head) {
      const int key_head = shape.heads_in_turns ? head % Hk : head * Hk / Hv;
      std::vector<double> q(x.begin() + key_head * dk, x.begin() + (key_head + 1) * dk);
      std::vector<double> k(x.begin() + (Hk + key_head) * dk, x.begin() + (Hk + key_head + 1) * dk);
      double qq = 1e-6, kk = 1e-6;
      for (int i = 0; i < dk; ++i) qq += q[at(i)] * q[at(i)], kk += k[at(i)] * k[at(i)];
      const std::size_t of_token = at(t * Hv + head);
      const double keep =
          std::exp(-layer.decay[head] * std::log1p(std::exp(double{p.a[of_token]} + layer.step_bias[head])));
      const double beta = 1 / (1 + std::exp(-double{p.b[of_token]}));
      double* const s = state.data() + std::ptrdiff_t{head} * dk * dv;
      std::vector<double> y(at(dv));
      double squares = 0;
      for (int j = 0; j < dv; ++j) {
        double held = 0;
        for (int i = 0; i < dk; ++i) held += (s[i * dv + j] *= keep) * k[at(i)] / std::sqrt(kk);
        const double change = beta * (x[at(2 * Hk * dk + head * dv + j)] - held);
        for (int i = 0; i < dk; ++i) {
          s[i * dv + j] += k[at(i)] / std::sqrt(kk) * change;
          y[at(j)] += s[i * dv + j] * q[at(i)] / std::sqrt(qq * dk);
        }
        squares += y[at(j)] * y[at(j)];
      }
      for (int j = 0; j < dv; ++j) {
        const std::size_t value = at(std::int64_t{t} * shape.values() + head * dv + j);
        out[value] = y[at(j)] / std::sqrt(squares / dv + layer.eps) * layer.norm[j] * silu(p.gate[value]);
      }
    }
  }
  return out;
}

const Shape shapes[] = {{1, 1, 8, 8, 4},   {2, 4, 16, 24, 4}, {2, 2, 128, 128, 4},
                        {1, 3, 40, 72, 2}, {2, 6, 64, 5, 3},  {2, 6, 16, 8, 4, true}};

TEST(GatedDelta, IsTheRecurrenceInDouble) {
  const offload::Threads threads(2);
  const auto backend = gpu::make_cpu_backend(threads);
  for (const Shape& shape : shapes) {
    const Problem problem(shape, 70);
    const std::vector<double> expected = oracle(problem);
    for_each_target([&] {
      std::vector<float> kept;
      const std::vector<float> out = run(*backend, problem, problem.T, kept);
      // A state's rounding fades with it; outputs are of the size of norm times gate, a few units.
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], 1e-4 * (1 + std::fabs(expected[i]))) << i << ", dk " << shape.key_dim;
      }
    });
  }
}

TEST(GatedDelta, ChunksOfAnySizeGiveTheSameBits) {
  const offload::Threads one(1), two(2);
  const auto backend = gpu::make_cpu_backend(one), other = gpu::make_cpu_backend(two);
  for (const Shape& shape : shapes) {
    const Problem problem(shape, 70);
    std::vector<float> whole;
    const std::vector<float> expected = run(*backend, problem, problem.T, whole);
    for (const int chunk : {1, 2, 7, 64}) {
      std::vector<float> kept;
      EXPECT_EQ(run(*other, problem, chunk, kept), expected) << chunk;
      EXPECT_EQ(kept, whole) << chunk;
    }
  }
}

}  // namespace
}  // namespace hayloft
