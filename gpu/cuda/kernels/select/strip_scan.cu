#include "gpu/cuda/kernels/select/strip_scan.cuh"

#include <algorithm>
#include <type_traits>

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
  if (all > 48 * 1024) allow_shared("rank_strips", rank_strips<format, G>, shared);
  const std::int64_t chunks = (rank.strips.stride + kWarpStrips - 1) / kWarpStrips;
  const unsigned useful =
      static_cast<unsigned>(std::max(1, blocks_per_multiprocessor * context.multiprocessors / heads));
  const dim3 grid(std::min(blocks_for(chunks, kScanThreads / kWarp), useful), static_cast<unsigned>(heads));
  launch("rank_strips", rank_strips<format, G>, {grid, kScanThreads, shared}, stream, source, scan, rank);
}

// Calls body with the query heads that a block takes of a group, a std::integral_constant.
template <class Body>
auto with_block_heads(int group, const Body& body) {
  if (group == 1) return body(std::integral_constant<int, 1>());
  if (group == 2) return body(std::integral_constant<int, 2>());
  if (group <= 4) return body(std::integral_constant<int, 4>());
  if (group <= 8) return body(std::integral_constant<int, 8>());
  return body(std::integral_constant<int, 16>());
}

}  // namespace

bool strips_fit(const Context& context, offload::ColumnFormat format, int rank, int group) {
  unsigned most = 0;
  with_column_format(format, [&](auto chosen) {
    constexpr offload::ColumnFormat of = decltype(chosen)::value;
    if constexpr (!in_planes(of)) {
      most = with_block_heads(group, [&](auto heads) {
        return std::max(strip_shared_bytes<of, heads()>(rank) + kStripStaticBytes,
                        scan_shared_bytes<of, heads()>(rank) + kScanStaticBytes);
      });
    }
  });
  return most > 0 && most <= static_cast<unsigned>(context.block_shared_bytes);
}

void launch_rank_strips(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                        const ColumnScan& scan, const StripRank& rank, int heads, cudaStream_t stream) {
  with_column_format(format, [&](auto chosen) {
    constexpr offload::ColumnFormat of = decltype(chosen)::value;
    if constexpr (in_planes(of)) {
      refuse("rank_strips: columns in planes keep all logits");
    } else {
      with_block_heads(scan.group, [&](auto block_heads) {
        launch_strips<of, block_heads()>(context, source, scan, rank, heads, stream);
      });
    }
  });
}

}  // namespace hayloft::gpu::cuda
