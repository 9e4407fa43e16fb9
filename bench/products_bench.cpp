#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/common.h"
#include "gpu/backend.h"
#include "gpu/make_backend.h"

// Products of T tokens with weights of every type, and a prompt's attention, beside what the machine could: the share
// of the read ceiling, and of the multiplications with additions in f32 that the instruction set does at most, which
// products of bytes may exceed. Weights are 256 MiB, of which each product reads another matrix.
namespace hayloft::bench {
namespace {

constexpr int rows = 2048, cols = 2048;

struct NamedType {
  const char* name;
  gpu::DType type;
  gpu::Packing packing;
};
const NamedType weight_types[] = {
    {"f16", gpu::DType::f16, {}},
    {"q4_0", gpu::DType::packed, {.bits = 4, .zero = 8}},
    {"q4_1", gpu::DType::packed, {.bits = 4, .minimum = true}},
    {"q4_k", gpu::DType::packed, {.bits = 4, .minimum = true, .products = true}},
    {"q5_0", gpu::DType::packed, {.bits = 5, .zero = 16}},
    {"q6_k", gpu::DType::packed, {.bits = 6, .zero = 32, .products = true}},
    {"q8_0", gpu::DType::packed, {.bits = 8, .zero = 128}},
};

gpu::Backend& backend_by(gpu::Products products) {
  static const std::unique_ptr<gpu::Backend> backends[] = {gpu::make_cpu_backend(threads(), gpu::Products::exact),
                                                           gpu::make_cpu_backend(threads(), gpu::Products::int8)};
  return *backends[products == gpu::Products::int8 ? 1 : 0];
}

void report_share_of_peak(benchmark::State& state, double operations, double seconds) {
  const double rate = operations * static_cast<double>(state.iterations()) / seconds;
  state.counters["GFMA/s"] = rate / 1e9;
  state.counters["peak_fraction"] = rate / multiply_add_peak();
}

void products(benchmark::State& state, const NamedType& of, gpu::Products by) {
  const int T = static_cast<int>(state.range(0));
  gpu::Matrix matrix{nullptr, of.type, rows, cols, of.packing};
  const std::uint64_t bytes = gpu::bytes_of(matrix);
  const std::size_t matrices = std::max<std::uint64_t>(1, (std::uint64_t{256} << 20) / bytes);
  static const gpu::Buffer weights = [] {
    gpu::Buffer memory = backend_by(gpu::Products::exact).allocate(std::size_t{256} << 20, {});
    std::memset(memory.as<std::byte>(), 0x1a, std::size_t{256} << 20);  // small numbers of any type
    return memory;
  }();
  std::vector<float> x(static_cast<std::size_t>(T) * cols), y(static_cast<std::size_t>(T) * rows);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& each : x) each = normal(random);
  std::size_t turn = 0;
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    matrix.data = weights.as<const std::byte>() + turn++ % matrices * bytes;
    backend_by(by).matmul(x.data(), T, matrix, nullptr, y.data(), {});
    benchmark::DoNotOptimize(y.data());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  report_bytes(state, static_cast<double>(bytes), seconds.count());
  report_share_of_peak(state, static_cast<double>(T) * rows * cols, seconds.count());
}

// T queries of 8 heads of d over 2 KV heads, the first T tokens of a sequence, or T behind 3 T others.
void prefill_attention(benchmark::State& state) {
  constexpr int heads = 8, kv_heads = 2;
  const int T = static_cast<int>(state.range(0)), d = static_cast<int>(state.range(2));
  const std::int64_t tokens = T + state.range(1);
  std::vector<f16> tail(static_cast<std::size_t>(kv_heads * tokens * 2 * d));
  std::vector<float> q(static_cast<std::size_t>(T) * heads * d), out(q.size());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (f16& each : tail) each = to_f16(normal(random));
  for (float& each : q) each = normal(random);
  gpu::CacheView cache;
  cache.kv_heads = kv_heads;
  cache.head_dim = d;
  cache.tail = {tail.data(), tokens, 0, tokens, 0};
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    backend_by(gpu::Products::exact).attend_causal(cache, q.data(), T, heads, {}, out.data(), {});
    benchmark::DoNotOptimize(out.data());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double pairs = static_cast<double>(T) * static_cast<double>(tokens - T) + 0.5 * T * (T + 1.0);
  report_share_of_peak(state, pairs * heads * 2 * d, seconds.count());
}
BENCHMARK(prefill_attention)
    ->ArgNames({"T", "before", "d"})
    ->ArgsProduct({{512}, {0, 1536}, {64, 128, 256}})
    ->Args({2048, 0, 128})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

const bool registered = [] {
  for (const NamedType& of : weight_types) {
    for (const gpu::Products by : {gpu::Products::exact, gpu::Products::int8}) {
      if (of.type != gpu::DType::packed && by == gpu::Products::int8) continue;
      const std::string name = std::string("products/") + of.name + "/" + gpu::name(by);
      auto* const made =
          benchmark::RegisterBenchmark(name.c_str(), [&of, by](benchmark::State& state) { products(state, of, by); });
      made->ArgName("T")->Arg(1)->Arg(4)->Arg(16)->Arg(512)->Unit(benchmark::kMicrosecond)->UseRealTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace hayloft::bench
