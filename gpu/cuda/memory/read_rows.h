#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/memory/device_store.h"

namespace hayloft::gpu::cuda {

// Integer rows as the store has them, brought to device memory: [heads][rows][row_bytes].
struct StoredRows {
  const std::byte* data = nullptr;
  int heads = 0;           // KV heads, or a whole multiple of them: lists
  std::int64_t rows = 0;   // of each
  std::int64_t begin = 0;  // position of the first, or the number of its entry where there are lists
  // i32 [heads][stride] in device memory, the positions that lists name. Of their rows those in blocks that the device
  // reaches are not there. Null: rows are those of consecutive positions.
  const std::int32_t* positions = nullptr;
  std::int64_t stride = 0;
  const std::int32_t* sizes = nullptr;  // i32 [heads] in device memory: nor are those of later entries; null: all are
};

// Queues what writes the f16 that they stand for to `to`, f16 [heads][rows][2 d]; where rows are not there nothing.
void read_rows(const DeviceStore& store, const StoredRows& from, f16* to, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
