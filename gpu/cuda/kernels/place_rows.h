#pragma once

#include <cstdint>

#include "gpu/cuda/memory/device_store.h"
#include "gpu/cuda/memory/row_slots.h"

namespace hayloft::gpu::cuda {

// Names the rows that an operation reads.
struct RowReads {
  const std::int32_t* positions = nullptr;  // i32 [Hkv][lists][k], in blocks that have serials
  const std::int32_t* sizes = nullptr;      // i32 [Hkv][lists], how many of each list's k; null: all
  int lists = 1;                            // of a KV head
  int k = 0;
  std::int32_t now = 0;                      // smaller than of any operation before
  unsigned long long* held_bytes = nullptr;  // to which the bytes of rows that slots hold are added; may be null
};

// Queues what writes `places` [Hkv][lists][k], as far as lists reach, as RowPlaces says. A row that no slot holds takes
// the one of its set that was read longest ago, unless this operation reads it; such a slot counts as holding the row
// from here on, so whatever reads the rows next must fill it. A row that several lists name may take several.
void place_rows(const DeviceStore& store, const RowSlots& slots, const RowReads& reads, std::uint32_t* places,
                cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
