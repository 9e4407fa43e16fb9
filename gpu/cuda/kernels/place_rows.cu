#include "gpu/cuda/kernels/place_rows.h"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/cuda/memory/cached_block.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kPlaceRowsThreads = 512;
constexpr std::uint32_t kOrderShift = 4;  // of a row that no slot holds: what is known of it so far, above the flags
constexpr std::uint32_t kMostWanted = 255;

struct PlaceRows {
  DeviceStore store;
  RowSlots slots;
  RowReads reads;
  std::uint32_t* places = nullptr;
};

__device__ inline std::uint64_t row_number(const DeviceStore& store, int kv_head, std::int64_t position) {
  const std::uint64_t rows = static_cast<std::uint64_t>(kv_head) << store.block_shift |
                             static_cast<std::uint64_t>(position & (store.block_tokens() - 1));
  const std::uint64_t serial = store.serials[position >> store.block_shift];
  return (serial * static_cast<std::uint64_t>(store.kv_heads) << store.block_shift) + rows;
}

// The finaliser of MurmurHash3.
__device__ inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

// A block of threads for each KV head, whose sets are its own: what it reads is found first; then rows that are not
// there are told apart by their order in their set; then each looks for the slot of that order; and then takes it.
__global__ __launch_bounds__(kPlaceRowsThreads) void place_rows_kernel(const PlaceRows a) {
  __shared__ unsigned held_of_warp[kPlaceRowsThreads / kWarp];
  const int kv_head = static_cast<int>(blockIdx.x);
  const std::int64_t first_slot = static_cast<std::int64_t>(kv_head) * a.slots.sets * kRowWays;
  std::uint64_t* const rows = a.slots.rows + first_slot;
  std::int32_t* const used = a.slots.used + first_slot;
  std::uint32_t* const wanted = a.slots.wanted + static_cast<std::int64_t>(kv_head) * a.slots.sets;
  const std::int64_t count = static_cast<std::int64_t>(a.reads.lists) * a.reads.k;
  const std::int32_t* const positions = a.reads.positions + kv_head * count;
  std::uint32_t* const places = a.places + kv_head * count;
  const std::int32_t now = a.reads.now;
  const auto is_read = [&](std::int64_t i) {
    return !a.reads.sizes || i % a.reads.k < a.reads.sizes[kv_head * a.reads.lists + i / a.reads.k];
  };
  const auto set_of = [&](std::uint64_t row) { return static_cast<std::uint32_t>(mixed(row) & (a.slots.sets - 1)); };

  unsigned held = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kPlaceRowsThreads) {
    if (!is_read(i)) continue;
    const std::uint64_t row = row_number(a.store, kv_head, positions[i]);
    const std::int64_t slot = static_cast<std::int64_t>(set_of(row)) * kRowWays;
    std::uint32_t place = 0;
    for (int way = 0; way < kRowWays; ++way) {
      if (rows[slot + way] == row) place = static_cast<std::uint32_t>(first_slot + slot + way) * 4 | kHeld;
    }
    if (place != 0) {
      atomic_min(used + (place / 4 - first_slot), now);
      ++held;
    }
    places[i] = place;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < count; i += kPlaceRowsThreads) {
    if (!is_read(i) || places[i] != 0) continue;
    const std::uint32_t order = atomic_add(wanted + set_of(row_number(a.store, kv_head, positions[i])), 1u);
    places[i] = (order < kMostWanted ? order : kMostWanted) << kOrderShift;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < count; i += kPlaceRowsThreads) {
    if (!is_read(i)) continue;
    const std::uint32_t place = places[i];
    if ((place & kHeld) != 0) continue;
    const std::uint32_t order = place >> kOrderShift;
    const std::int64_t slot = static_cast<std::int64_t>(set_of(row_number(a.store, kv_head, positions[i]))) * kRowWays;
    // The slot before which `order` others were read longer ago: `used` falls, and of several the first comes first.
    std::uint32_t found = 0;
    for (int way = 0; way < kRowWays; ++way) {
      const std::int32_t own = used[slot + way];
      if (own == now) continue;
      std::uint32_t before = 0;
      for (int other = 0; other < kRowWays; ++other) {
        const std::int32_t of_other = used[slot + other];
        before += of_other > own || (of_other == own && other < way) ? 1 : 0;
      }
      if (before == order) found = static_cast<std::uint32_t>(first_slot + slot + way) * 4 | kFilled;
    }
    places[i] = found;
    if (order == 0) wanted[slot / kRowWays] = 0;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < count; i += kPlaceRowsThreads) {
    if (!is_read(i)) continue;
    const std::uint32_t place = places[i];
    if ((place & kFilled) == 0) continue;
    rows[place / 4 - first_slot] = row_number(a.store, kv_head, positions[i]);
    used[place / 4 - first_slot] = now;
  }

  if (a.reads.held_bytes == nullptr) return;
  for (int mask = kWarp / 2; mask > 0; mask /= 2) held += shuffle_xor(held, mask);
  if (threadIdx.x % kWarp == 0) held_of_warp[threadIdx.x / kWarp] = held;
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned long long all = 0;
  for (const unsigned part : held_of_warp) all += part;
  atomic_add(a.reads.held_bytes, all * static_cast<unsigned long long>(a.store.row_bytes));
}

}  // namespace

void place_rows(const DeviceStore& store, const RowSlots& slots, const RowReads& reads, std::uint32_t* places,
                cudaStream_t stream) {
  launch("place_rows", place_rows_kernel, {static_cast<unsigned>(store.kv_heads), kPlaceRowsThreads}, stream,
         PlaceRows{store, slots, reads, places});
}

}  // namespace hayloft::gpu::cuda
