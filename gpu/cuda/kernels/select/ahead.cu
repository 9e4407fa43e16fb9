#include "gpu/cuda/kernels/select/ahead.h"

#include <algorithm>

#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"

// Fetches the columns that the last step chose in a layer before the next one asks for them, while the link has nothing
// else to do, and finds out then which of them it wants.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kAheadThreads = 256;
constexpr int kAheadWarps = kAheadThreads / kWarp;
// The gather has so many: 8 warps with 2 KiB on the way each are 256 KiB of them, twice what a link needs
// (column_scan.cuh), and leave the multiprocessors to what else is queued.
constexpr std::int64_t kGatherBlocks = 16;
constexpr int kLoads = 4;  // of 16 bytes that a lane has on the way

// Grid: some blocks. Puts a fetch's list and addresses where they belong, and zeros wherever else there are no data.
__global__ void prepare_ahead(const AheadBlocks to, const std::int32_t* choices, const std::byte* const* addresses) {
  const auto set = [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t at = begin + 16 * static_cast<std::uint64_t>(global_thread()); at < end;
         at += 16 * all_threads()) {
      store16(to.memory + at, uint4{});
    }
  };
  set(0, to.layout.addresses_offset());
  set(to.layout.got_offset(), to.layout.data_offset());
  const auto columns = static_cast<std::int64_t>(to.layout.columns());
  for (std::int64_t i = global_thread(); i < columns; i += all_threads()) to.list()[i] = choices[i];
  for (std::int64_t i = global_thread(); i < to.layout.blocks; i += all_threads()) to.addresses()[i] = addresses[i];
}

struct AheadGather {
  AheadBlocks to;
  const CachedBlock* cached = nullptr;  // [blocks], null: nothing is kept
  std::uint64_t head_bytes = 0;         // of a block of the host's, as are these
  std::uint64_t columns_offset = 0;
  std::uint64_t scales_offset = 0;
};

// A warp copies so many bytes, a multiple of 16 of them.
__device__ inline void copy_by_warp(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  constexpr std::uint64_t step = 16, stride = step * kWarp;
  const std::uint64_t own = threadIdx.x % kWarp * step;
  for (std::uint64_t at = own; at < bytes; at += kLoads * stride) {
    uint4 bits[kLoads] = {};
    HAYLOFT_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      if (at + i * stride < bytes) bits[i] = load16_once(from + at + i * stride);
    }
    HAYLOFT_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      if (at + i * stride < bytes) store16(to + at + i * stride, bits[i]);
    }
  }
}

// Grid: some blocks, whose warps take column after column.
__global__ __launch_bounds__(kAheadThreads) void gather_ahead(const AheadGather a) {
  const AheadLayout& layout = a.to.layout;
  const RunLayout& runs = layout.runs;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto columns = static_cast<std::int64_t>(layout.columns());
  const std::int64_t all = layout.blocks * columns;
  const volatile unsigned* const stop = a.to.stop();
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kAheadWarps + static_cast<int>(threadIdx.x) / kWarp;
  for (unsigned stopped = *stop; at < all; at += static_cast<std::int64_t>(gridDim.x) * kAheadWarps) {
    if (ballot(stopped != 0) != 0) return;
    stopped = *stop;  // asked for now, and looked at when the column is here
    const std::int64_t block = at / columns, column = at % columns;
    const auto kv_head = static_cast<std::uint64_t>(column / layout.rank);
    const std::int32_t component = a.to.list()[column];
    const CachedBlock kept = a.cached ? a.cached[block] : CachedBlock();
    bool held = false;
    if (kept.base) {
      const auto* const slot_of = reinterpret_cast<const std::uint16_t*>(kept.base + runs.use_bytes());
      held = slot_of[kv_head * static_cast<unsigned>(runs.runs) + static_cast<unsigned>(component)] != 0;
    }
    if (ballot(held) != 0) continue;  // of all lanes, though others may give the slot away meanwhile
    const std::byte* const head = a.to.addresses()[block] + kv_head * a.head_bytes;
    std::byte* const to = a.to.data() + static_cast<std::uint64_t>(at) * runs.slot_bytes();
    copy_by_warp(to, head + a.columns_offset + static_cast<unsigned>(component) * runs.run_bytes, runs.run_bytes);
    const auto* const scales =
        reinterpret_cast<const f16*>(head + a.scales_offset + static_cast<unsigned>(component) * runs.scale_bytes);
    auto* const to_scales = reinterpret_cast<f16*>(to + runs.run_bytes);
    for (int i = lane; i < static_cast<int>(runs.scale_bytes / sizeof(f16)); i += kWarp) to_scales[i] = scales[i];
    if (lane == 0) a.to.got()[at] = 1;
  }
}

struct AheadPlaces {
  AheadBlocks fetched;
  AheadReads reads;
  const CachedBlock* cached = nullptr;  // [blocks], as of the places; null: nothing is kept, and places are not set
  std::int32_t* choices = nullptr;      // [Hkv][rank], where the components are left
};

// Grid: a warp for each pair of a block and a KV head.
__global__ __launch_bounds__(kAheadThreads) void place_ahead(const AheadPlaces a, std::uint32_t* places) {
  const AheadLayout& layout = a.fetched.layout;
  const RunLayout& runs = layout.runs;
  const int rank = layout.rank, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kAheadWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (pair >= a.reads.blocks * runs.kv_heads) return;
  const std::int64_t block = pair / runs.kv_heads;
  const int kv_head = static_cast<int>(pair % runs.kv_heads);
  const bool fetched = block < layout.blocks;
  const std::int32_t* const list = a.fetched.list() + kv_head * rank;
  const std::uint8_t* const got = a.fetched.got() + pair * rank;
  const std::int32_t* const components = a.reads.components + kv_head * rank;
  places += pair * rank;
  int used = 0, brought = 0;
  for (int first = 0; first < rank; first += kWarp) {
    const int i = first + lane;
    const std::int32_t component = i < rank ? components[i] : -1;
    std::uint32_t place = a.cached && i < rank ? places[i] : 0;
    int at = -1;
    for (int j = 0; j < rank && fetched; ++j) {
      if (list[j] == component) at = j;
    }
    const bool there = at >= 0 && (place & kHeld) == 0 && got[at] != 0;
    const auto from = static_cast<std::uint32_t>((kv_head * rank + at) * runs.slot_bytes());
    unsigned fills = ballot(there && (place & kFilled) != 0);
    while (fills != 0) {
      const int one = count_bits((fills & (0u - fills)) - 1);  // the lowest
      fills &= fills - 1;
      const std::uint32_t source = shuffle(from, one), slot = shuffle(place, one) & ~kPlaceFlags;
      copy_by_warp(a.cached[block].base + slot,
                   a.fetched.data() + static_cast<std::uint64_t>(block) * layout.block_bytes() + source,
                   runs.slot_bytes());
    }
    if (there) place = (place & kFilled) != 0 ? (place & ~kPlaceFlags) | kHeld : from | kFetched;
    if (i < rank) {
      places[i] = place;
      used += there ? 1 : 0;
      brought += fetched && got[i] != 0 ? 1 : 0;
      if (block == 0) a.choices[kv_head * rank + i] = component;
    }
  }
  if (a.reads.ahead_bytes == nullptr) return;
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    used += shuffle_xor(used, mask);
    brought += shuffle_xor(brought, mask);
  }
  if (lane != 0 || used + brought == 0) return;
  // As place_runs_of() counts what is held.
  const std::int64_t left = a.reads.tokens - block * runs.block_tokens;
  const auto tokens = static_cast<std::uint64_t>(left < runs.block_tokens ? left : runs.block_tokens);
  const auto all_tokens = static_cast<std::uint64_t>(runs.block_tokens);
  const std::uint64_t group = runs.scale_bytes == 0 ? 1 : 64;
  const std::uint64_t each =
      runs.run_bytes * tokens / all_tokens + (tokens + group - 1) / group * (runs.scale_bytes * group / all_tokens);
  atomic_add(a.reads.ahead_bytes, static_cast<unsigned long long>(static_cast<unsigned>(used) * each));
  if (!a.fetched.first) return;
  atomic_add(a.reads.ahead_bytes + 1, static_cast<unsigned long long>(static_cast<unsigned>(brought) * each));
}

}  // namespace

void take_ahead(const AheadColumns::Use& use, const AheadReads& reads, const RunLayout& layout, std::uint32_t* to,
                RunPlaces& places, cudaStream_t stream) {
  use.wait(stream);
  const AheadBlocks& fetched = *use.fetched();
  const AheadPlaces a{fetched, reads, places.blocks, use.choices()};
  if (!places.blocks) places = {fetched.table(), to, layout.kv_heads, reads.rank};
  places.ahead = fetched.data();
  places.ahead_bytes = fetched.layout.block_bytes();
  launch("place_ahead", place_ahead, {blocks_for(reads.blocks * layout.kv_heads, kAheadWarps), kAheadThreads}, stream,
         a, to);
}

void CudaBackend::fetch_ahead(const CacheView& next, Stream queue) {
  const offload::LayerView& view = next.store;
  if (!columns_.keeps(view) || in_planes(view.layout->columns) || !ahead_.wants(view)) return;
  const cudaStream_t stream = native(queue);
  if (!tables_.pinned(view)) return;
  const DeviceStore store = tables_.find(view, stream);
  const std::optional<AheadColumns::Fetch> fetch = ahead_.begin(view, stream);
  if (!fetch) return;
  const AheadBlocks& to = fetch->to;
  // The table that the others read may be freed before the fetch is over.
  const auto words = static_cast<std::int64_t>(to.layout.data_offset() / 16);
  launch("prepare_ahead", prepare_ahead, strided(context_.multiprocessors, words), stream, to, fetch->choice->memory,
         store.blocks);
  AheadGather gather;
  gather.to = to;
  gather.cached = columns_.known_blocks(view);
  gather.head_bytes = store.head_bytes;
  gather.columns_offset = store.columns_offset;
  gather.scales_offset = store.scales_offset;
  const std::int64_t all = to.layout.blocks * static_cast<std::int64_t>(to.layout.columns());
  ahead_.start(stream);
  const auto blocks = static_cast<unsigned>(std::min(kGatherBlocks, (all + kAheadWarps - 1) / kAheadWarps));
  launch("gather_ahead", gather_ahead, {blocks, kAheadThreads}, ahead_.stream(), gather);
  ahead_.queued(*fetch, view);
}

}  // namespace hayloft::gpu::cuda
