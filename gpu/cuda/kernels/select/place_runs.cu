#include "gpu/cuda/kernels/select/place_runs.h"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/select/place_runs.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kPlaceThreads = 128;
constexpr int kPlaceWarps = kPlaceThreads / kWarp;

// The planes that are read of a KV head; how many, the same in every lane.
template <int most>
__device__ inline int list_runs(const RunReads& from, int kv_head, ReadRuns<most>& reads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int32_t* const components = from.components + static_cast<std::int64_t>(kv_head) * from.rank;
  const std::int32_t* const planes =
      from.planes ? from.planes + static_cast<std::int64_t>(kv_head) * from.rank : nullptr;
  int count = 0;
  for (int first = 0; first < from.rank; first += kWarp) {
    const int j = first + lane;
    const int own = j >= from.rank ? 0 : planes ? planes[j] : offload::plane_count;
    int before = own;  // with those of lower lanes
    for (int delta = 1; delta < kWarp; delta *= 2) {
      const int below = shuffle_up(before, delta);
      if (lane >= delta) before += below;
    }
    const int all = shuffle(before, kWarp - 1);
    for (int p = 0; p < own; ++p) {
      reads.runs[count + before - own + p] = static_cast<std::uint16_t>(offload::plane_count * components[j] + p);
    }
    count += all;
  }
  warp_barrier();
  mark_runs(count, lane, kWarp, reads);
  warp_barrier();
  return count;
}

// A warp for each pair of a block and a KV head, which has up to `most` runs.
template <int most>
__global__ __launch_bounds__(kPlaceThreads, 3) void place_planes_kernel(const RunPlacing a) {
  __shared__ ReadRuns<most> reads_of_warp[kPlaceWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kPlaceWarps + warp;
  if (pair >= a.blocks * a.layout.kv_heads) return;
  const std::int64_t block = pair / a.layout.kv_heads;
  const int kv_head = static_cast<int>(pair % a.layout.kv_heads);
  ReadRuns<most>& reads = reads_of_warp[warp];
  place_runs_of(a, block, kv_head, reads, [&] { return list_runs(a.reads, kv_head, reads); });
}

}  // namespace

void place_planes(const RunPlacing& placing, cudaStream_t stream) {
  const std::int64_t pairs = placing.blocks * placing.layout.kv_heads;
  with_most_components(placing.layout.runs / offload::plane_count, [&](auto components) {
    constexpr int most = offload::plane_count * decltype(components)::value;
    launch("place_planes", place_planes_kernel<most>, {blocks_for(pairs, kPlaceWarps), kPlaceThreads}, stream, placing);
  });
}

}  // namespace hayloft::gpu::cuda
