#pragma once

#include <array>
#include <cstdint>

#include "gpu/backend.h"

namespace hayloft::runtime {

// The place where bytes are read. `link`: from host memory to the compute backend (PCIe on a GPU; on the CPU backend
// the same bytes, over the memory bus). `near`: by a search that runs beside the memory and sends only positions on.
// `device`: the tail, and the columns and rows that a device keeps.
enum class Place : std::uint8_t { link, near, device };
// The kind of bytes that are read: key columns and their scales, chosen rows of [K | V], all rows, rows on their way to
// the store, and what a method keeps besides the cache (`index`: codes, centroids, links, bounds, projections).
enum class Kind : std::uint8_t { columns, scales, rows, dense, spill, index };
inline constexpr int place_count = 3;  // of Place
inline constexpr int kind_count = 6;   // of Kind
const char* name(Place place);         // "link", "near", "device"
const char* name(Kind kind);           // as in Kind

// Counts what decoding reads, on all ranks together where they hold a context together, in two ways. Elements
// are counted as the papers do, wherever they lie; bytes as the layout really costs. Sums over KV heads and global
// layers; not thread-safe.
struct Counters {
  std::uint64_t elements = 0;
  std::uint64_t positions_scored = 0;  // summed over KV heads, a group's queries counted once; ann: over query heads
  std::uint64_t rows_fetched = 0;      // [K | V] rows read, from store or tail, per list
  std::array<std::array<std::uint64_t, kind_count>, place_count> bytes{};
  // Count bytes of the columns and scales read over the link that came before the step asked for them; and all bytes
  // that came so for a step, once, whether or not they were right (Backend::fetch_ahead).
  std::uint64_t ahead_used = 0;
  std::uint64_t ahead_fetched = 0;

  std::uint64_t& at(Place place, Kind kind) {
    return bytes[static_cast<std::size_t>(place)][static_cast<std::size_t>(kind)];
  }
  std::uint64_t at(Place place, Kind kind) const {
    return bytes[static_cast<std::size_t>(place)][static_cast<std::size_t>(kind)];
  }
  std::uint64_t total(Place place) const;

  Counters& operator+=(const Counters& other);
};

// One equation each; per KV head, for one decode step. S tokens of context (the newest included), k attended, d head
// dimension.
inline std::uint64_t dense_elements(std::uint64_t S, std::uint64_t d) {
  return 2 * S * d + 2 * d;
}
inline std::uint64_t sparq_elements(std::uint64_t S, std::uint64_t r, std::uint64_t k, std::uint64_t d) {
  return S * r + 2 * k * d + 4 * d;  // SparQ, section 4: approximate scores, rows, and q, k, v, mean value
}
inline std::uint64_t window_elements(std::uint64_t k, std::uint64_t d) {
  return 2 * k * d + 2 * d;  // no scores beyond those of the rows
}
inline std::uint64_t topk_elements(std::uint64_t S, std::uint64_t k, std::uint64_t d) {
  return S * d + 2 * k * d + 2 * d;  // all of K, then the rows
}
inline std::uint64_t flexgen_elements(std::uint64_t S, std::uint64_t k, std::uint64_t d) {
  return S * d + k * d + 2 * d;  // as SparQ counts it: V of the k positions without their K, which has been read
}
inline std::uint64_t h2o_elements(std::uint64_t S, std::uint64_t k, std::uint64_t d) {
  return 2 * k * d + 2 * d + 2 * S;  // as SparQ counts it: a sum of attention per position, read and written
}
inline std::uint64_t pages_elements(std::uint64_t pages, std::uint64_t k, std::uint64_t d) {
  return 2 * pages * d + 2 * k * d + 2 * d;  // two bounds a page, then the rows
}

// Adds the bytes of reading the rows of `what` from `cache`: lists and ranges in the store over the link, the rest on
// the device. Store rows count as `kind`. Of `cache` only the shape and the number of tokens are looked at, never a
// block, so that a step can be counted before it is made; as in count_columns.
void count_rows(Counters& counters, const gpu::CacheView& cache, const gpu::Attended& what, Kind kind);

// Adds the bytes of reading `columns` columns of every block of every head, with their scales.
void count_columns(Counters& counters, const gpu::CacheView& cache, int columns, Place place);

// Adds the bytes of reading `bits` planes of every block of every head, with ranges of as many components as may have
// one: at most that, and less where a query reads several planes of a component.
void count_planes(Counters& counters, const gpu::CacheView& cache, int bits, Place place);

// Adds the bytes of reading every key in the store exactly, near the memory: all f16 columns, or where the columns are
// integers K's half of every row.
void count_exact_keys(Counters& counters, const gpu::CacheView& cache);

}  // namespace hayloft::runtime
