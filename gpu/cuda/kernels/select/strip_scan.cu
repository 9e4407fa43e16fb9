#include "gpu/cuda/kernels/select/strip_scan.cuh"

#include <algorithm>

#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/kernels/launch.h"

namespace hayloft::gpu::cuda {
namespace {

template <offload::ColumnFormat format, int G>
void launch_strips(const Context& context, const ColumnSource& source, const ColumnScan& scan, const StripRank& rank,
                   int heads, cudaStream_t stream) {
  constexpr int blocks_per_multiprocessor = 4;
  const unsigned shared = strip_shared_bytes<format, G>(scan.rank);
  const unsigned all = shared + kStripStaticBytes;
  if (all > static_cast<unsigned>(context.block_shared_bytes)) refuse_rank(context, scan.rank, all);
  if (all > 48 * 1024) allow_shared("rank_strips", rank_strips<format, G>, all);
  const std::int64_t chunks = (rank.strips.stride + kWarpStrips - 1) / kWarpStrips;
  const unsigned useful =
      static_cast<unsigned>(std::max(1, blocks_per_multiprocessor * context.multiprocessors / heads));
  const dim3 grid(std::min(blocks_for(chunks, kScanThreads / kWarp), useful), static_cast<unsigned>(heads));
  launch("rank_strips", rank_strips<format, G>, {grid, kScanThreads, shared}, stream, source, scan, rank);
}

}  // namespace

void launch_rank_strips(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                        const ColumnScan& scan, const StripRank& rank, int heads, cudaStream_t stream) {
  with_column_format(format, [&](auto chosen) {
    constexpr offload::ColumnFormat of = decltype(chosen)::value;
    if constexpr (in_planes(of)) {
      refuse("rank_strips: columns in planes keep all logits");
    } else {
      const int group = scan.group;
      if (group == 1) return launch_strips<of, 1>(context, source, scan, rank, heads, stream);
      if (group == 2) return launch_strips<of, 2>(context, source, scan, rank, heads, stream);
      if (group <= 4) return launch_strips<of, 4>(context, source, scan, rank, heads, stream);
      if (group <= 8) return launch_strips<of, 8>(context, source, scan, rank, heads, stream);
      launch_strips<of, 16>(context, source, scan, rank, heads, stream);
    }
  });
}

}  // namespace hayloft::gpu::cuda
