#include "runtime/plan/device_cache.h"

#include <algorithm>
#include <cmath>

#include "gpu/cuda_memory.h"

namespace hayloft::runtime::plan {
namespace {

// By the share of the columns that is read, 1/8, 1/4 and 1/2, and that is kept.
constexpr double kept_shares[] = {0, 0.125, 0.25, 0.375, 0.5, 0.75, 1};
constexpr double held_shares[3][7] = {{0, 0.687, 0.873, 0.939, 0.964, 0.972, 1},
                                      {0, 0.432, 0.678, 0.819, 0.903, 0.974, 1},
                                      {0, 0.238, 0.445, 0.614, 0.751, 0.928, 1}};
// The share of the k positions of a step that the next chooses again: the least of 16 means.
constexpr double rows_again = 0.51;

double held_of(const double (&held)[7], double kept) {
  std::size_t i = 1;
  while (i < 6 && kept > kept_shares[i]) ++i;
  const double part = (kept - kept_shares[i - 1]) / (kept_shares[i] - kept_shares[i - 1]);
  return held[i - 1] + part * (held[i] - held[i - 1]);
}

}  // namespace

double expected_columns_held(double read, double kept) {
  kept = std::clamp(kept, 0.0, 1.0);
  const double at = std::clamp(std::log2(std::clamp(read, 0.125, 0.5)) + 3, 0.0, 2.0);
  const auto low = std::min<std::size_t>(1, static_cast<std::size_t>(at));
  const double part = at - static_cast<double>(low);
  return (1 - part) * held_of(held_shares[low], kept) + part * held_of(held_shares[low + 1], kept);
}

ExpectedCache expect_cache(const Counters& counters, const offload::StoreShape& shape, std::int64_t blocks,
                           const CacheBudget& asked, std::uint64_t left, std::uint64_t budget) {
  const offload::BlockLayout layout(shape);
  const auto all_blocks = static_cast<std::uint64_t>(blocks) * static_cast<unsigned>(shape.layers);
  ExpectedCache expected;
  const auto from_link = [&](Kind kind) { return counters.at(Place::link, kind); };
  const std::uint64_t columns = from_link(Kind::columns) + from_link(Kind::scales);
  const std::uint64_t row_bytes = std::min(asked.rows == gpu::row_cache_rest ? budget / 32 : asked.rows, left / 2);
  const std::uint64_t spare = budget / 8;  // that the cache leaves free
  const std::uint64_t room = left - std::min(left, spare + row_bytes);
  if (columns > 0 && all_blocks > 0 && shape.block_tokens >= gpu::cuda_least_cached_block) {
    const int runs = gpu::cuda_runs(layout);
    const std::uint64_t most = std::min(asked.columns, room);
    const int slots = gpu::cuda_cached_slots(layout, most / all_blocks);
    expected.column_bytes = slots > 0 ? all_blocks * gpu::cuda_cached_block_bytes(layout, slots) : 0;
    expected.columns_kept = static_cast<double>(slots) / runs;
    const double all_columns = static_cast<double>(all_blocks) * shape.kv_heads * shape.head_dim *
                               static_cast<double>(layout.column_bytes + layout.scale_bytes);
    expected.columns_held = expected_columns_held(static_cast<double>(columns) / all_columns, expected.columns_kept);
  }
  // Rows of two steps at least, for an older one to be found.
  if (from_link(Kind::rows) > 0 && row_bytes >= 2 * from_link(Kind::rows)) expected.rows_held = rows_again;
  expected.link_bytes = counters.total(Place::link) -
                        static_cast<std::uint64_t>(expected.columns_held * static_cast<double>(columns)) -
                        static_cast<std::uint64_t>(expected.rows_held * static_cast<double>(from_link(Kind::rows)));
  return expected;
}

}  // namespace hayloft::runtime::plan
