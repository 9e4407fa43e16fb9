#include "gpu/cuda/kernels/select/scan.cuh"

namespace hayloft::gpu::cuda {

void launch_cached_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                        const ColumnScan& scan, int heads, cudaStream_t stream, const Normalising& normalising) {
  launch_scan<true>(context, format, source, scan, heads, stream, normalising);
}

}  // namespace hayloft::gpu::cuda
