#pragma once

#include <cstdint>

#include "gpu/cuda/memory/cached_block.h"

namespace hayloft::gpu::cuda {

// Names the runs that a step reads, and their blocks.
struct RunReads {
  const std::int32_t* components = nullptr;  // [Hkv][r]
  const std::int32_t* planes = nullptr;      // [Hkv][r] of columns in planes, more before fewer; null: all of each
  int rank = 0;
  bool in_planes = false;
  std::int64_t tokens = 0;  // of the store
  // u64 [2], to which the bytes that the device holds already are added: of columns, and of scales or ranges. May be
  // null.
  unsigned long long* held_bytes = nullptr;
};

// Queues what writes `places` of every block (RunPlaces::reads of them for each KV head) and counts the reads. Runs
// that are not held take slots as index::RunCache says; such a slot counts as holding its run from here on, so whatever
// scans the blocks next must fill it.
void place_runs(const RunLayout& layout, const RunReads& reads, const RunPlaces& places, std::uint32_t* to,
                std::int64_t blocks, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
