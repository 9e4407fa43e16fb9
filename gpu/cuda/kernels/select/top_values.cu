#include <cstring>

#include "gpu/cuda/api/fetch.h"
#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/select/radix_select.h"

// The largest logits, without the others crossing the link: what sampling chooses among.
namespace hayloft::gpu::cuda {
namespace {

// Keys of x [n], the largest of each chunk, and the histogram of their top bits, as the passes of top_positions.cuh
// want them.
__global__ __launch_bounds__(kSelectThreads) void key_values(const float* x, std::int64_t n, unsigned* keys,
                                                             unsigned* chunk_max, unsigned* histogram) {
  __shared__ unsigned bins[kBins];
  clear_bins(bins);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk * kChunkKeys < n; chunk += warps) {
    unsigned most = 0;
    for (int i = lane; i < kChunkKeys; i += kWarp) {
      const std::int64_t at = chunk * kChunkKeys + i;
      if (at >= n) break;
      const unsigned key = key_of(x[at]);
      keys[at] = key;
      most = most > key ? most : key;
      atomic_add(bins + (key >> level_shift(0)), 1u);
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const unsigned other = shuffle_xor(most, mask);
      most = most > other ? most : other;
    }
    if (lane == 0) chunk_max[chunk] = most;
  }
  merge_bins(bins, histogram);
}

// found: [k] ids, behind which the bits of their values go.
__global__ void gather_values(const float* x, int k, unsigned* found) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < k) found[k + i] = bits_of(x[found[i]]);
}

}  // namespace

void CudaBackend::top_values(const float* x, std::int64_t n, int k, std::int32_t* ids, float* values, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (k < 1 || k > n) refuse("top_values: k ", k, " is out of range; use 1 to ", n, ", the number of values");
  const std::int64_t chunks = (n + kChunkKeys - 1) / kChunkKeys;
  const Scratch<unsigned> keys(context_, chunks * kChunkKeys, stream);
  const Scratch<unsigned> chunk_max(context_, chunks, stream);
  const Scratch<std::int32_t> found(context_, 2 * std::int64_t{k}, stream);  // ids, then the bits of values
  RadixSelect passes(context_, 1, stream);
  passes.clear();
  launch("key_values", key_values, {passes.pass_grid(1, n), kSelectThreads}, stream, x, n, keys, chunk_max,
         passes.histogram(0));
  passes.select({keys, chunk_max, chunks * kChunkKeys, chunks, n}, 1, k, found);
  launch("gather_values", gather_values, {blocks_for(k, kSelectThreads), kSelectThreads}, stream, x, k,
         reinterpret_cast<unsigned*>(found.data()));
  const std::vector<std::int32_t> both = fetch(found.data(), 2 * std::int64_t{k}, stream);
  const std::uint64_t bytes = static_cast<std::uint64_t>(k) * sizeof(float);
  std::memcpy(ids, both.data(), bytes);
  std::memcpy(values, both.data() + k, bytes);
}

}  // namespace hayloft::gpu::cuda
