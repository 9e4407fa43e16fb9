#pragma once

#include <cstdint>

#include "gpu/cuda/context.h"
#include "gpu/cuda/kernels/select/components.h"
#include "gpu/cuda/memory/column_source.h"

namespace hayloft::gpu::cuda {

// Says what is scored, and where the results go. Heads are those of one batch: blockIdx.y = 0 is KV head `first_head`.
struct ColumnScan {
  const std::int32_t* components = nullptr;  // [Hkv][r]
  const std::int32_t* planes = nullptr;      // [Hkv][r] of columns in planes, more before fewer; null: all of each
  const float* weights = nullptr;            // [Hq][r]
  int rank = 0;
  int plane_total = 0;  // of a KV head, all components together
  int group = 0;
  int first_head = 0;       // of the batch's arrays below
  int head = 0;             // KV head of blockIdx.y = 0
  std::int64_t begin = 0;   // positions; a multiple of the tile
  std::int64_t end = 0;     // a multiple of kChunkTokens, or the store's end
  float* logits = nullptr;  // [batch Hq][stride], -infinity from the store's end to the chunk's
  std::int64_t stride = 0;
  PartialSoftmax partials;  // [batch Hq][partials.stride]
};

// Queues the scan of so many KV heads, those from scan.head on. With source.cached some runs come from the device, in
// blocks of kChunkTokens or more.
void launch_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                 const ColumnScan& scan, int heads, cudaStream_t stream);
// Launches that one.
void launch_cached_scan(const Context& context, offload::ColumnFormat format, const ColumnSource& source,
                        const ColumnScan& scan, int heads, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
