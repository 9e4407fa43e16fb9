#pragma once

#include <cstdint>

#include "gpu/cuda/memory/ahead_columns.h"

namespace hayloft::gpu::cuda {

// Says what a step reads of a layer, all of it whole columns.
struct AheadReads {
  const std::int32_t* components = nullptr;  // [Hkv][rank]
  int rank = 0;
  std::int64_t tokens = 0;                    // of the store
  std::int64_t blocks = 0;                    // likewise
  unsigned long long* ahead_bytes = nullptr;  // SparqSelect's; may be null
};

// Queues what waits for the columns that have been fetched ahead, leaves the components for the next step, and changes
// the places [blocks][Hkv][rank] of those that choose_components() has not found on the device to where they are.
// Columns that are to fill slots are copied there, and are held from here on. `places`, in: as choose_components() has
// been given it, or empty where nothing is kept, and `to` then holds nothing; out: what the scan takes.
void take_ahead(const AheadColumns::Use& use, const AheadReads& reads, const RunLayout& layout, std::uint32_t* to,
                RunPlaces& places, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
