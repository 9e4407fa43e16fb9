#pragma once

#include <algorithm>

#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/select/column_scan.cuh"
#include "gpu/cuda/kernels/select/plane_scan.cuh"
#include "gpu/cuda/kernels/select/small_plane_scan.cuh"

// Chooses the scan that is launched, and its grid. The kernels that take some runs from the device are apart from those
// that do not, in files that compile beside each other.
namespace hayloft::gpu::cuda {

template <offload::ColumnFormat format, bool Cached, int G>
void launch_scan(const Context& context, const ColumnSource& source, const ColumnScan& scan, int heads,
                 cudaStream_t stream, const Normalising& normalising) {
  constexpr int blocks_per_multiprocessor = 4;
  constexpr bool planes = in_planes(format);
  const auto launch_as = [&](const char* name, auto kernel, unsigned shared, std::int64_t tile, auto&&... more) {
    const unsigned all = shared + (planes ? kPlaneStaticBytes : kScanStaticBytes);
    if (all > static_cast<unsigned>(context.block_shared_bytes)) {
      // Fewer query heads a block, which strips that bound the sum over a group do not come to: strips_fit().
      if constexpr (G > 1) return launch_scan<format, Cached, G / 2>(context, source, scan, heads, stream, normalising);
      refuse("ranking by ", scan.rank, " components of a head takes ", all,
             " bytes of shared memory, and a block of this GPU has ", context.block_shared_bytes,
             ": take a lower r, or columns of another format");
    }
    if (all > 48 * 1024) allow_shared(name, kernel, shared);
    const std::int64_t tiles = (scan.end - scan.begin + tile - 1) / tile;
    const std::int64_t useful = std::max(1, blocks_per_multiprocessor * context.multiprocessors / heads);
    const dim3 grid(static_cast<unsigned>(std::min(tiles, useful)), static_cast<unsigned>(heads),
                    blocks_for(scan.group, G));
    launch(name, kernel, {grid, kScanThreads, shared}, stream, source, scan, more...);
  };
  if constexpr (planes) {
    if constexpr (!Cached) {
      if ((1 << source.scale_shift) < kChunkTokens) {
        return launch_as("scan_small_planes", scan_small_planes<G>, small_plane_shared_bytes<G>(scan.rank),
                         kChunkTokens);
      }
    }
    launch_as("scan_planes", scan_planes<G, Cached>, PlaneTables<G>::bytes(scan.rank, scan.plane_total), kPlaneTile);
  } else {
    launch_as("scan_columns", scan_columns<format, G, Cached>, scan_shared_bytes<format, G>(scan.rank),
              tile_tokens(source.scale_shift), normalising);
  }
}

template <offload::ColumnFormat format, bool Cached>
void launch_scan(const Context& context, const ColumnSource& source, const ColumnScan& scan, int heads,
                 cudaStream_t stream, const Normalising& normalising) {
  const int group = scan.group;
  if (group == 1) return launch_scan<format, Cached, 1>(context, source, scan, heads, stream, normalising);
  if (group == 2) return launch_scan<format, Cached, 2>(context, source, scan, heads, stream, normalising);
  if (group <= 4) return launch_scan<format, Cached, 4>(context, source, scan, heads, stream, normalising);
  if (group <= 8) return launch_scan<format, Cached, 8>(context, source, scan, heads, stream, normalising);
  return launch_scan<format, Cached, 16>(context, source, scan, heads, stream, normalising);
}

template <bool Cached>
void launch_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                 const ColumnScan& scan, int heads, cudaStream_t stream, const Normalising& normalising) {
  with_column_format(format, [&](auto chosen) {
    launch_scan<decltype(chosen)::value, Cached>(context, source, scan, heads, stream, normalising);
  });
}

}  // namespace hayloft::gpu::cuda
