#include "offload/host/read_memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/host/read_memory.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <atomic>

HWY_BEFORE_NAMESPACE();
namespace hayloft::offload {
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
  // Not SumOfLanes: g++ 12 reduces 512-bit vectors in signed arithmetic, whose overflow is undefined.
  HWY_ALIGN std::uint64_t parts[HWY_MAX_BYTES / sizeof(std::uint64_t)];
  hn::Store(hn::Add(hn::Add(a, b), hn::Add(c, e)), d, parts);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < lanes; ++i) total += parts[i];
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace hayloft::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::offload {

HWY_EXPORT(sum_words);

std::uint64_t read_memory(std::span<const std::byte> buffer, const Threads& threads) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  std::atomic<std::uint64_t> total = 0;
  threads.parallel_for(static_cast<std::int64_t>(buffer.size() / piece), 1, [&](std::int64_t begin, std::int64_t end) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(buffer.data() + static_cast<std::size_t>(begin) * piece);
    total += HWY_DYNAMIC_DISPATCH(sum_words)(words, static_cast<std::size_t>(end - begin) * piece);
  });
  return total;
}

}  // namespace hayloft::offload
#endif
