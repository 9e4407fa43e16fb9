#include "runtime/attention/counters.h"

#include <algorithm>

#include "index/scan/exact_search.h"

namespace hayloft::runtime {

const char* name(Place place) {
  constexpr const char* names[] = {"link", "near", "device"};
  return names[static_cast<int>(place)];
}

const char* name(Kind kind) {
  constexpr const char* names[] = {"columns", "scales", "rows", "dense", "spill", "index"};
  return names[static_cast<int>(kind)];
}

std::uint64_t Counters::total(Place place) const {
  std::uint64_t sum = 0;
  for (const std::uint64_t kind : bytes[static_cast<std::size_t>(place)]) sum += kind;
  return sum;
}

Counters& Counters::operator+=(const Counters& other) {
  elements += other.elements;
  positions_scored += other.positions_scored;
  rows_fetched += other.rows_fetched;
  ahead_used += other.ahead_used;
  ahead_fetched += other.ahead_fetched;
  for (int p = 0; p < place_count; ++p) {
    for (int k = 0; k < kind_count; ++k) bytes[p][k] += other.bytes[p][k];
  }
  return *this;
}

void count_rows(Counters& counters, const gpu::CacheView& cache, const gpu::Attended& what, Kind kind) {
  const std::uint64_t tail_row_bytes = 4 * static_cast<std::uint64_t>(cache.head_dim);
  const std::uint64_t row_bytes = cache.store.layout ? cache.store.layout->row_bytes : tail_row_bytes;
  const std::int64_t boundary = cache.stored_tokens();
  std::int64_t in_store = 0;
  std::int64_t in_tail = 0;
  for (const auto& range : what.ranges) {
    if (range.end <= range.begin) continue;
    in_store += std::max<std::int64_t>(0, std::min(range.end, boundary) - range.begin);
    in_tail += std::max<std::int64_t>(0, range.end - std::max(range.begin, boundary));
  }
  const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
  const std::uint64_t store_rows = heads * static_cast<std::uint64_t>(in_store) +
                                   static_cast<std::uint64_t>(what.lists) * static_cast<std::uint64_t>(what.k);
  const std::uint64_t tail_rows = heads * static_cast<std::uint64_t>(in_tail);
  counters.rows_fetched += store_rows + tail_rows;
  counters.at(Place::link, kind) += store_rows * row_bytes;
  counters.at(Place::device, Kind::rows) += tail_rows * tail_row_bytes;
}

namespace {

// Returns the bytes of one component's scales or ranges over all tokens of the store.
std::uint64_t scale_bytes(const gpu::CacheView& cache) {
  const offload::BlockLayout& layout = *cache.store.layout;
  const auto group = static_cast<std::uint64_t>(offload::tokens_per_scale(layout.columns, layout.block_tokens));
  const std::uint64_t groups = (static_cast<std::uint64_t>(cache.stored_tokens()) + group - 1) / group;
  return groups * (layout.scale_bytes * group / static_cast<std::uint64_t>(layout.block_tokens));
}

}  // namespace

void count_columns(Counters& counters, const gpu::CacheView& cache, int columns, Place place) {
  if (cache.stored_tokens() == 0) return;
  const offload::BlockLayout& layout = *cache.store.layout;
  // Whole blocks are read whole; of a sealed last block only the part that holds tokens, in units of a byte.
  const std::uint64_t share_of_column = layout.column_bytes * static_cast<std::uint64_t>(cache.stored_tokens()) /
                                        static_cast<std::uint64_t>(layout.block_tokens);
  const std::uint64_t runs = static_cast<std::uint64_t>(cache.kv_heads) * static_cast<std::uint64_t>(columns);
  counters.at(place, Kind::columns) += runs * share_of_column;
  counters.at(place, Kind::scales) += runs * scale_bytes(cache);
}

void count_planes(Counters& counters, const gpu::CacheView& cache, int bits, Place place) {
  if (cache.stored_tokens() == 0) return;
  const int d = cache.head_dim;
  const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
  const auto planes = static_cast<std::uint64_t>(std::min(bits, d * offload::plane_count));
  counters.at(place, Kind::columns) += heads * planes * ((static_cast<std::uint64_t>(cache.stored_tokens()) + 7) / 8);
  counters.at(place, Kind::scales) +=
      heads * static_cast<std::uint64_t>(index::plane_rank(d, bits)) * scale_bytes(cache);
}

void count_exact_keys(Counters& counters, const gpu::CacheView& cache) {
  if (cache.stored_tokens() == 0) return;
  const offload::BlockLayout& layout = *cache.store.layout;
  if (index::exact_keys(cache.store) == index::KeySource::columns) {
    return count_columns(counters, cache, layout.head_dim, Place::near);
  }
  counters.at(Place::near, Kind::rows) += static_cast<std::uint64_t>(cache.kv_heads) *
                                          static_cast<std::uint64_t>(cache.stored_tokens()) * (layout.row_bytes / 2);
}

}  // namespace hayloft::runtime
