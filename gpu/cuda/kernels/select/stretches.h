#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu/cuda/memory/column_source.h"
#include "gpu/cuda/memory/store_tables.h"

namespace hayloft::gpu::cuda {

// Says of positions [begin, end), whole chunks but for the store's last one, whether kernels read columns in place.
struct Stretch {
  std::int64_t begin;
  std::int64_t end;
  bool in_place;
};

// Returns those of a store. A chunk is read in place when all of its blocks are.
inline std::vector<Stretch> stretches_of(const std::vector<BlockRun>& runs, const offload::LayerView& store) {
  const std::int64_t block = store.layout->block_tokens;
  std::vector<Stretch> stretches;
  const auto add = [&](std::int64_t end, bool in_place) {
    const std::int64_t begin = stretches.empty() ? 0 : stretches.back().end;
    if (begin >= end) return;
    if (!stretches.empty() && stretches.back().in_place == in_place) {
      stretches.back().end = end;
    } else {
      stretches.push_back({begin, end, in_place});
    }
  };
  for (const BlockRun& run : runs) {
    if (run.in_place) continue;
    add(run.begin * block / kChunkTokens * kChunkTokens, true);
    add(std::min(chunks_of(run.end * block) * kChunkTokens, store.tokens), false);
  }
  add(store.tokens, true);
  return stretches;
}

}  // namespace hayloft::gpu::cuda
