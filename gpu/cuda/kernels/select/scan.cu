#include "gpu/cuda/kernels/select/scan.cuh"

namespace hayloft::gpu::cuda {

void launch_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                 const ColumnScan& scan, int heads, cudaStream_t stream) {
  if (source.cached.blocks) return launch_cached_scan(context, format, source, scan, heads, stream);
  launch_scan<false>(context, format, source, scan, heads, stream);
}

}  // namespace hayloft::gpu::cuda
