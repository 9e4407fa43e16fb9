#include "bench/bandwidth.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/bandwidth.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <benchmark/benchmark.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <chrono>

HWY_BEFORE_NAMESPACE();
namespace hayloft::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Four sums, so that the reads and not the additions are what takes time. bytes is a multiple of 4096.
std::uint64_t sum_words(const std::uint64_t* words, std::size_t bytes) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  auto c = hn::Zero(d);
  auto e = hn::Zero(d);
  const std::size_t count = bytes / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < count; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, words + i));
    b = hn::Add(b, hn::LoadU(d, words + i + lanes));
    c = hn::Add(c, hn::LoadU(d, words + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::bench {

HWY_EXPORT(sum_words);

double measure_read_bandwidth(std::span<const std::byte> buffer, const offload::Threads& threads, int passes) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  const std::size_t pieces = buffer.size() / piece;
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    threads.parallel_for(static_cast<std::int64_t>(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
      const auto* words =
          reinterpret_cast<const std::uint64_t*>(buffer.data() + static_cast<std::size_t>(begin) * piece);
      auto sum = HWY_DYNAMIC_DISPATCH(sum_words)(words, static_cast<std::size_t>(end - begin) * piece);
      benchmark::DoNotOptimize(sum);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(pieces * piece) / seconds.count());
  }
  return best;
}

}  // namespace hayloft::bench
#endif
