#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "bench/common.h"
#include "gpu/backend.h"
#include "gpu/make_backend.h"

// A layer of gated delta rules at the shape of Qwen3.5's, beside the matrix products before and behind it, whose time
// it is to stay below: each iteration runs products, operation and product, as a model does.
namespace hayloft::bench {
namespace {

constexpr gpu::DeltaShape shape{16, 32, 128, 128, 4};

std::vector<float> normal(std::int64_t n, float scale) {
  std::mt19937 random(1);
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> noise(std::size_t{1} << 16), values(static_cast<std::size_t>(n));
  for (float& x : noise) x = distribution(random);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = noise[i * 7919 % (noise.size() - 1)];
  return values;
}

// f16, or packed in 4 bits, of codes and scales that are as good as any others for the time that they take.
class Weights {
 public:
  Weights(std::int64_t rows, int cols, bool packed) {
    matrix.rows = static_cast<int>(rows);
    matrix.cols = cols;
    if (packed) {
      matrix.type = gpu::DType::packed;
      matrix.packing = {.bits = 4, .zero = 8};
      bytes_.resize(matrix.packing.matrix_bytes(rows, cols), std::byte{0x1a});
    } else {
      matrix.type = gpu::DType::f16;
      const std::vector<float> values = normal(rows * cols, 0.02f);
      std::vector<f16> halves(values.size());
      std::transform(values.begin(), values.end(), halves.begin(), to_f16);
      bytes_.resize(halves.size() * sizeof(f16));
      std::memcpy(bytes_.data(), halves.data(), bytes_.size());
    }
    matrix.data = bytes_.data();
  }
  gpu::Matrix matrix;

 private:
  std::vector<std::byte> bytes_;
};

// Arguments: hidden size, whether weights are packed, T. Its time is that of the operation; ratio is what share of its
// products' that is.
void gated_delta(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  const int hidden = static_cast<int>(state.range(0)), T = static_cast<int>(state.range(2));
  const bool packed = state.range(1) != 0;
  const std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads());
  const std::int64_t channels = shape.channels(), values = shape.values(), heads = shape.value_heads;
  const Weights in(channels, hidden, packed), z(values, hidden, packed), a(heads, hidden, packed),
      b(heads, hidden, packed), back(hidden, static_cast<int>(values), packed);
  const std::vector<float> convolution = normal(channels * shape.kernel, 0.5f),
                           decay(static_cast<std::size_t>(heads), 1),
                           norm(static_cast<std::size_t>(shape.value_dim), 1);
  const std::vector<float> x = normal(std::int64_t{T} * hidden, 1);
  std::vector<float> inputs(static_cast<std::size_t>(T * channels)), gate(static_cast<std::size_t>(T * values)),
      as(static_cast<std::size_t>(T * heads)), bs(as.size()), out(gate.size()), y(x.size()),
      kept(static_cast<std::size_t>(shape.kept_floats()));
  gpu::DeltaLayer layer;
  layer.shape = shape;
  layer.convolution = convolution.data();
  layer.decay = decay.data();
  layer.step_bias = decay.data();
  layer.norm = norm.data();
  double products = 0, own = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    backend->matmul(x.data(), T, in.matrix, nullptr, inputs.data(), {});
    backend->matmul(x.data(), T, z.matrix, nullptr, gate.data(), {});
    backend->matmul(x.data(), T, a.matrix, nullptr, as.data(), {});
    backend->matmul(x.data(), T, b.matrix, nullptr, bs.data(), {});
    const auto before = Clock::now();
    backend->gated_delta(layer, {kept.data(), kept.data()}, inputs.data(), as.data(), bs.data(), gate.data(), T,
                         out.data(), {});
    const auto behind = Clock::now();
    backend->matmul(out.data(), T, back.matrix, nullptr, y.data(), {});
    const auto end = Clock::now();
    benchmark::DoNotOptimize(y.data());
    const std::chrono::duration<double> operation = behind - before, all = end - start;
    state.SetIterationTime(operation.count());
    own += operation.count();
    products += all.count() - operation.count();
  }
  state.counters["products_ms"] = 1e3 * products / static_cast<double>(state.iterations());
  state.counters["ratio"] = own / products;
}
BENCHMARK(gated_delta)
    ->ArgNames({"hidden", "packed", "T"})
    ->ArgsProduct({{2560, 4096}, {0, 1}, {1, 64, 512, 2048}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hayloft::bench
