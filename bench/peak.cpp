#include <algorithm>
#include <chrono>
#include <cstdint>

#include "bench/common.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peak.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hayloft::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains of multiplications with additions, more than the processor has under way. Returns how many were done.
double multiply_add(std::int64_t rounds, float* out) {
  constexpr int kChains = 12;
  const hn::CappedTag<float, 16> d;
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  hn::Vec<decltype(d)> sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = hn::Set(d, static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], factor, term);
  }
  for (int i = 1; i < kChains; ++i) sum[0] = hn::Add(sum[0], sum[i]);
  *out = hn::GetLane(sum[0]);
  return static_cast<double>(rounds) * kChains * static_cast<double>(hn::Lanes(d));
}

}  // namespace hayloft::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::bench {

HWY_EXPORT(multiply_add);

double multiply_add_peak() {
  static double best = 0;
  constexpr std::int64_t rounds = 400000;
  // Passes of a millisecond or two, many of them: in most, where others keep the processors busy, a thread wakes late
  // and another has done its part, too.
  for (int passes = best == 0 ? 200 : 20; passes > 0; --passes) {
    const auto start = std::chrono::steady_clock::now();
    threads().parallel_for(threads().count(), 1, [&](std::int64_t, std::int64_t) {
      float out = 0;
      HWY_DYNAMIC_DISPATCH(multiply_add)(rounds, &out);
      benchmark::DoNotOptimize(out);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    float out = 0;
    const double each = HWY_DYNAMIC_DISPATCH(multiply_add)(1, &out) * static_cast<double>(rounds);
    best = std::max(best, each * threads().count() / seconds.count());
  }
  return best;
}

}  // namespace hayloft::bench
#endif
