#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gpu/gated_delta.h"
#include "tests/support/cpu_cache.h"

// A random layer of gated delta rules with random tokens, and what gpu/gated_delta.h says of them in double.
namespace hayloft::testing {

// A problem in host memory.
struct DeltaProblem {
  std::vector<float> convolution, decay, step_bias, norm, inputs, a, b, gate;
  gpu::DeltaLayer layer;
  int T;

  DeltaProblem(const gpu::DeltaShape& shape, int tokens) : T(tokens) {
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

inline const gpu::DeltaShape delta_shapes[] = {{1, 1, 8, 8, 4},    {2, 4, 16, 24, 4}, {2, 2, 128, 128, 4},
                                               {1, 3, 40, 72, 2},  {2, 6, 64, 5, 3},  {2, 6, 16, 8, 4, true},
                                               {1, 2, 256, 40, 8}, {1, 1, 100, 33, 1}};

// Keys too long, none, heads that do not go together, no heads, and convolutions of nothing and of too much.
inline const gpu::DeltaShape delta_shapes_refused[] = {{1, 1, 257, 8, 4}, {1, 1, 0, 8, 4}, {2, 3, 8, 8, 4},
                                                       {0, 2, 8, 8, 4},   {1, 1, 8, 8, 0}, {1, 1, 8, 8, 9}};

// The results for all tokens: out [T][values], and the state behind them [Hv][dk][dv].
struct DeltaOracle {
  std::vector<double> out, state;
  // The distance that f32 may be off, to first order, doubled for the rest. With eps that of f32, any order of
  // summation: a sum of n products is off by n eps / 2 of the sum of their magnitudes, exp and log1p by 2 eps. The
  // error of a column of the state, as a vector, does not grow by a step, which multiplies it by keep (1 - beta k k^T),
  // whose norm is at most one: each step adds its own roundings, and keep fades what was there.
  std::vector<double> out_tolerance, state_tolerance;

  explicit DeltaOracle(const DeltaProblem& p);
};

inline DeltaOracle::DeltaOracle(const DeltaProblem& p) {
  constexpr double eps = std::numeric_limits<float>::epsilon();
  const gpu::DeltaLayer& layer = p.layer;
  const gpu::DeltaShape& shape = layer.shape;
  const int channels = static_cast<int>(shape.channels()), kernel = shape.kernel, Hk = shape.key_heads,
            Hv = shape.value_heads, dk = shape.key_dim, dv = shape.value_dim;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto squared = [](const double* x, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
  };
  state.resize(at(std::int64_t{Hv} * dk * dv));
  state_tolerance.resize(state.size());
  out.resize(p.gate.size());
  out_tolerance.resize(out.size());
  std::vector<double> x(at(channels)), x_off(x.size());  // of a token, behind the convolution
  std::vector<double> off(at(std::int64_t{Hv} * dv));    // of the columns of the states
  std::vector<double> k(at(dk)), q(at(dk)), y(at(dv)), y_off(at(dv));
  for (int t = 0; t < p.T; ++t) {
    for (int c = 0; c < channels; ++c) {
      double sum = 0, magnitude = 0;
      for (int i = 0; i < kernel; ++i) {
        const int from = t - (kernel - 1) + i;
        if (from < 0) continue;
        const double product =
            double{p.convolution[at(c * kernel + i)]} * p.inputs[at(std::int64_t{from} * channels + c)];
        sum += product;
        magnitude += std::fabs(product);
      }
      x[at(c)] = sum * sigmoid(sum);
      x_off[at(c)] = 1.1 * kernel * eps / 2 * magnitude + 5 * eps * std::fabs(x[at(c)]);  // silu is no steeper than 1.1
    }
    for (int head = 0; head < Hv; ++head) {
      const int key_head = shape.heads_in_turns ? head % Hk : head * Hk / Hv;
      const double* const raw_q = x.data() + key_head * dk;
      const double* const raw_k = x.data() + (Hk + key_head) * dk;
      const double qq = squared(raw_q, dk) + 1e-6, kk = squared(raw_k, dk) + 1e-6;
      for (int i = 0; i < dk; ++i) {
        q[at(i)] = raw_q[i] / std::sqrt(qq * dk);
        k[at(i)] = raw_k[i] / std::sqrt(kk);
      }
      // For vectors of length one: twice what the inputs are off, once for their length, and the roundings of that.
      const double length_off = (dk / 4.0 + 4) * eps;
      const double q_off = 2 * std::sqrt(squared(x_off.data() + key_head * dk, dk) / qq) + length_off;
      const double k_off = 2 * std::sqrt(squared(x_off.data() + (Hk + key_head) * dk, dk) / kk) + length_off;
      const std::size_t of_token = at(std::int64_t{t} * Hv + head);
      const double step = double{p.a[of_token]} + layer.step_bias[head], softplus = std::log1p(std::exp(step));
      const double keep = std::exp(-layer.decay[head] * softplus), beta = sigmoid(p.b[of_token]);
      const double keep_off = eps * (3 + layer.decay[head] * (std::fabs(step) + 5 * softplus));  // relatively
      double* const s = state.data() + std::ptrdiff_t{head} * dk * dv;
      for (int j = 0; j < dv; ++j) {
        double held = 0, size = 0;
        for (int i = 0; i < dk; ++i) {
          double& entry = s[std::ptrdiff_t{i} * dv + j];
          entry *= keep;
          held += entry * k[at(i)];
          size += entry * entry;
        }
        size = std::sqrt(size);
        const std::int64_t value = 2 * std::int64_t{Hk} * dk + head * dv + j;
        const double change = beta * (x[at(value)] - held);
        const double change_off = x_off[at(value)] + size * (keep_off + k_off + (dk / 2.0 + 1) * eps) +
                                  6 * eps * (std::fabs(x[at(value)]) + std::fabs(held));
        double& column_off = off[at(head * dv + j)];
        column_off = keep * column_off + change_off + size * (keep_off + eps) + (k_off + 2 * eps) * std::fabs(change);
        double now = 0;
        y[at(j)] = 0;
        for (int i = 0; i < dk; ++i) {
          double& entry = s[std::ptrdiff_t{i} * dv + j];
          entry += k[at(i)] * change;
          y[at(j)] += entry * q[at(i)];
          now += entry * entry;
          state_tolerance[at((std::int64_t{head} * dk + i) * dv + j)] = 2 * column_off;
        }
        y_off[at(j)] = (column_off + std::sqrt(now) * (q_off + (dk / 2.0 + 1) * eps)) / std::sqrt(double{1} * dk);
      }
      const double root = std::sqrt(squared(y.data(), dv) / dv + layer.eps);
      const double root_off = std::sqrt(squared(y_off.data(), dv) / dv) / root + (dv / 4.0 + 4) * eps;  // relatively
      for (int j = 0; j < dv; ++j) {
        const std::size_t value = at(std::int64_t{t} * shape.values() + head * dv + j);
        const double factor = layer.norm[j] * p.gate[value] * sigmoid(p.gate[value]) / root;
        out[value] = y[at(j)] * factor;
        out_tolerance[value] =
            2 * std::fabs(factor) * (y_off[at(j)] + std::fabs(y[at(j)]) * (root_off + 8 * eps)) + 1e-30;
      }
    }
  }
}

}  // namespace hayloft::testing
