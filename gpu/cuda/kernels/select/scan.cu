#include "gpu/cuda/kernels/select/scan.cuh"

namespace hayloft::gpu::cuda {

int most_scanned(const Context& context, offload::ColumnFormat format) {
  int most = 0;
  with_column_format(format, [&](auto chosen) {
    constexpr offload::ColumnFormat of = decltype(chosen)::value;
    const auto bytes = [](int rank) {
      return in_planes(of) ? PlaneTables<1>::bytes(rank, offload::plane_count * rank) + kPlaneStaticBytes
                           : scan_shared_bytes<of, 1>(rank) + kScanStaticBytes;
    };
    most = offload::most_head_dim;
    while (most > 0 && bytes(most) > static_cast<unsigned>(context.block_shared_bytes)) --most;
  });
  return most;
}

void launch_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                 const ColumnScan& scan, int heads, cudaStream_t stream, const Normalising& normalising) {
  if (source.cached.blocks) return launch_cached_scan(context, format, source, scan, heads, stream, normalising);
  launch_scan<false>(context, format, source, scan, heads, stream, normalising);
}

}  // namespace hayloft::gpu::cuda
