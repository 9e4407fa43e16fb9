#include "gpu/cuda/kernels/select/place_runs.h"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"
#include "index/scan/run_cache.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kPlaceThreads = 128;
constexpr int kPlaceWarps = kPlaceThreads / kWarp;

struct PlaceArguments {
  RunLayout layout;
  RunReads reads;
  RunPlaces places;
  std::uint32_t* to = nullptr;
  std::int64_t pairs = 0;  // of blocks and KV heads
};

// The shared memory of a warp, for KV heads of so many runs.
template <int most>
struct ReadRuns {
  std::uint16_t runs[most];       // in the order in which they are read
  unsigned chosen[most / kWarp];  // bit i of word w: run 32 w + i is read
};

// The least used slot whose run this step does not read, the smallest of several; its count, negative when it is
// empty.
struct Victim {
  float use;
  int slot;
};
template <int most>
__device__ inline Victim least_used(const std::uint16_t* held, int slots, const float* use,
                                    const ReadRuns<most>& reads) {
  Victim least{__builtin_inff(), slots};
  for (int slot = static_cast<int>(threadIdx.x) % kWarp; slot < slots; slot += kWarp) {
    const int run = held[slot] - 1;
    const bool read = run >= 0 && (reads.chosen[run / kWarp] >> run % kWarp & 1) != 0;
    const float own = run < 0 ? -1.0f : read ? __builtin_inff() : use[run];
    if (own < least.use) least = {own, slot};
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const Victim other{shuffle_xor(least.use, mask), shuffle_xor(least.slot, mask)};
    if (other.use < least.use || (other.use == least.use && other.slot < least.slot)) least = other;
  }
  return least;
}

// The runs that are read of a KV head; how many, the same in every lane.
template <int most>
__device__ inline int list_runs(const RunReads& from, int kv_head, ReadRuns<most>& reads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int32_t* const components = from.components + static_cast<std::int64_t>(kv_head) * from.rank;
  const std::int32_t* const planes =
      from.planes ? from.planes + static_cast<std::int64_t>(kv_head) * from.rank : nullptr;
  for (int i = lane; i < most / kWarp; i += kWarp) reads.chosen[i] = 0;
  int count = 0;
  for (int first = 0; first < from.rank; first += kWarp) {
    const int j = first + lane;
    const int own = j >= from.rank ? 0 : !from.in_planes ? 1 : planes ? planes[j] : offload::plane_count;
    int before = own;  // with those of lower lanes
    for (int delta = 1; delta < kWarp; delta *= 2) {
      const int below = shuffle_up(before, delta);
      if (lane >= delta) before += below;
    }
    const int all = shuffle(before, kWarp - 1);
    for (int p = 0; p < own; ++p) {
      reads.runs[count + before - own + p] =
          static_cast<std::uint16_t>(from.in_planes ? offload::plane_count * components[j] + p : components[j]);
    }
    count += all;
  }
  warp_barrier();
  for (int word = lane; word < most / kWarp; word += kWarp) {
    unsigned bits = 0;
    for (int i = 0; i < count; ++i) {
      if (reads.runs[i] / kWarp == word) bits |= 1u << reads.runs[i] % kWarp;
    }
    reads.chosen[word] = bits;
  }
  warp_barrier();
  return count;
}

// A warp for each pair of a block and a KV head, which has up to `most` runs.
template <int most>
__global__ __launch_bounds__(kPlaceThreads) void place_runs_kernel(const PlaceArguments a) {
  __shared__ ReadRuns<most> reads_of_warp[kPlaceWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kPlaceWarps + warp;
  if (pair >= a.pairs) return;
  const RunLayout& layout = a.layout;
  const std::int64_t block = pair / layout.kv_heads;
  const int kv_head = static_cast<int>(pair % layout.kv_heads);
  std::uint32_t* const places = a.to + pair * a.places.reads;
  const CachedBlock cached = a.places.blocks[block];
  if (cached.base == nullptr) {
    for (int i = lane; i < a.places.reads; i += kWarp) places[i] = 0;
    return;
  }
  ReadRuns<most>& reads = reads_of_warp[warp];
  const int count = list_runs(a.reads, kv_head, reads);

  float* const use = reinterpret_cast<float*>(cached.base) + kv_head * layout.runs;
  auto* const slot_of = reinterpret_cast<std::uint16_t*>(cached.base + layout.use_bytes()) + kv_head * layout.runs;
  auto* const held = reinterpret_cast<std::uint16_t*>(cached.base + layout.run_offset()) + kv_head * cached.slots;
  for (int run = lane; run < layout.runs; run += kWarp) {
    use[run] = index::run_use_left * use[run] + static_cast<float>(reads.chosen[run / kWarp] >> run % kWarp & 1);
  }
  warp_barrier();

  int held_runs = 0, held_scales = 0;
  for (int first = 0; first < count; first += kWarp) {
    const int i = first + lane;
    const int run = i < count ? reads.runs[i] : 0;
    const int slot = i < count ? slot_of[run] : 0;
    if (slot > 0) {
      places[i] = static_cast<std::uint32_t>(layout.slot_offset(cached.slots, kv_head, slot - 1)) | kHeld;
      ++held_runs;
      if (!a.reads.in_planes || run % offload::plane_count == 0) ++held_scales;
    }
    warp_barrier();
    unsigned missing = ballot(i < count && slot == 0);
    while (missing != 0) {
      const int at = count_bits((missing & (0u - missing)) - 1);  // the lowest
      missing &= missing - 1;
      const int wanted = shuffle(run, at);
      const Victim victim = least_used(held, cached.slots, use, reads);
      const bool taken = victim.slot < cached.slots && victim.use < use[wanted];
      warp_barrier();
      if (lane == at) {
        places[i] = 0;
        if (taken) {
          if (held[victim.slot] > 0) slot_of[held[victim.slot] - 1] = 0;
          held[victim.slot] = static_cast<std::uint16_t>(wanted + 1);
          slot_of[wanted] = static_cast<std::uint16_t>(victim.slot + 1);
          places[i] = static_cast<std::uint32_t>(layout.slot_offset(cached.slots, kv_head, victim.slot)) | kFilled;
        }
      }
      warp_barrier();
    }
  }

  if (a.reads.held_bytes == nullptr) return;
  const std::int64_t left = a.reads.tokens - block * layout.block_tokens;
  const auto tokens = static_cast<std::uint64_t>(left < layout.block_tokens ? left : layout.block_tokens);
  const auto all_tokens = static_cast<std::uint64_t>(layout.block_tokens);
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    held_runs += shuffle_xor(held_runs, mask);
    held_scales += shuffle_xor(held_scales, mask);
  }
  if (lane != 0 || held_runs == 0) return;
  // As runtime::count_columns() and count_planes() count those that are read from the host: to a whole byte, and scales
  // in whole groups.
  const std::uint64_t odd = a.reads.in_planes ? all_tokens - 1 : 0;
  atomic_add(a.reads.held_bytes,
             static_cast<unsigned long long>(held_runs * ((layout.run_bytes * tokens + odd) / all_tokens)));
  const std::uint64_t group = layout.scale_bytes == 0 ? 1 : a.reads.in_planes ? 256 : 64;
  const std::uint64_t groups = (tokens + group - 1) / group;
  atomic_add(a.reads.held_bytes + 1,
             static_cast<unsigned long long>(held_scales * groups) * (layout.scale_bytes * group / all_tokens));
}

}  // namespace

void place_runs(const RunLayout& layout, const RunReads& reads, const RunPlaces& places, std::uint32_t* to,
                std::int64_t blocks, cudaStream_t stream) {
  const std::int64_t pairs = blocks * layout.kv_heads;
  with_most_components(layout.runs / (reads.in_planes ? offload::plane_count : 1), [&](auto components) {
    constexpr int most = offload::plane_count * decltype(components)::value;
    launch("place_runs", place_runs_kernel<most>, {blocks_for(pairs, kPlaceWarps), kPlaceThreads}, stream,
           PlaceArguments{layout, reads, places, to, pairs});
  });
}

}  // namespace hayloft::gpu::cuda
