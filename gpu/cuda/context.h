#pragma once

#include <cstdint>

#include "gpu/cuda/memory/device_context.h"
#include "gpu/link_choice.h"
#include "offload/host/threads.h"

namespace hayloft::gpu::cuda {

class StoreTables;   // block tables on the device, gpu/cuda/memory/store_tables.h
class ColumnCache;   // columns that are read often, gpu/cuda/memory/column_cache.h
class AheadColumns;  // columns that are fetched before a step asks for them, gpu/cuda/memory/ahead_columns.h
class RowCache;      // rows that were read not long ago, gpu/cuda/memory/row_cache.h
class StagingRing;   // a little pinned memory that pageable memory passes through, gpu/cuda/memory/staging_ring.h
class SpillImage;    // where blocks take shape on their way out, gpu/cuda/memory/spill_image.h
class StageClock;    // how long parts of operations take, gpu/cuda/api/stage_clock.h
struct Cublas;       // gpu/cuda/api/cublas.h

// Holds what every operation of the CUDA backend works with. One per backend, passed by reference; no file-scope state.
struct Context : DeviceContext {
  int multiprocessors;
  int block_shared_bytes;  // shared memory that a block can have
  bool bf16_products;      // whether the device multiplies bf16 as fast as f16
  bool wide_products;      // whether its tensor cores want more than warps by themselves bring them
  LinkChoice link;         // never automatic
  std::uint64_t least_copy_bytes;
  std::int64_t short_list_keys;
  std::uint64_t mass_bytes;
  StoreTables& tables;
  ColumnCache& columns;
  AheadColumns& ahead;
  RowCache& rows;
  StagingRing& staging;
  SpillImage& spill_image;
  Cublas& cublas;
  StageClock& stages;
  const offload::Threads& threads;
};

}  // namespace hayloft::gpu::cuda
