#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/host/threads.h"
#include "offload/store/store.h"

// Shared by the benchmarks. Everything is made when first asked for and kept until the program ends.
namespace hayloft::bench {

inline constexpr std::int64_t context_lengths[] = {std::int64_t{1} << 16, std::int64_t{1} << 18, std::int64_t{1} << 20};

const offload::Threads& threads();
offload::Arena& arena();

// The best read bandwidth of this machine's memory seen in this run, bytes per second: all threads add up 1 GiB.
// Measured at the first call and again at every later one, so that neighbours who slow down one moment do not flatter
// the next benchmark.
double read_ceiling();

// The most multiplications with additions of f32 numbers that all threads were seen to do in a second, by the best
// instruction set that kernels may use; measured like that.
double multiply_add_peak();

// Sets the counters of a benchmark that read `bytes` in each iteration and took `seconds` in all: bytes, GBps and
// ceiling_fraction, the share of read_ceiling().
void report_bytes(benchmark::State& state, double bytes, double seconds);

// Runs body(turn) for each iteration of a benchmark that reads `bytes` in each, and sets those counters.
template <class Body>
void read_repeatedly(benchmark::State& state, double bytes, const Body& body) {
  std::int64_t turn = 0;
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) body(turn++);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report_bytes(state, bytes, elapsed.count());
}

// Columns of random keys in one format, 4 KV heads of dimension 128: 1 GiB, more than the caches hold, which is 1M
// tokens of f16. Shorter contexts are cut from it one after the other, so that by the time one comes back it has left
// the caches.
class ColumnStore {
 public:
  static constexpr int kv_heads = 4;
  static constexpr int head_dim = 128;

  static const ColumnStore& instance(offload::ColumnFormat format = offload::ColumnFormat::f16);

  std::span<const std::byte> memory() const { return {memory_.data(), memory_.bytes()}; }
  const offload::BlockLayout& layout() const { return layout_; }

  // `tokens` divides 1M. Views have columns but no rows.
  offload::LayerView view(std::int64_t tokens, std::int64_t turn) const;

 private:
  explicit ColumnStore(offload::ColumnFormat format);
  offload::BlockLayout layout_;
  offload::Extent memory_;
  std::vector<const std::byte*> blocks_;
};

}  // namespace hayloft::bench
