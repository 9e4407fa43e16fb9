#pragma once

#include <cstdint>

#include "gpu/device_options.h"
#include "offload/store/layout.h"
#include "runtime/attention/counters.h"

// Predicts what a device is expected to have of what a step reads, where it keeps columns that are read often and rows
// that were read not long ago (docs/device-cache.md): the memory is counted, the shares are those measured on two
// models.
namespace hayloft::runtime::plan {

// The memory that is asked for, as in CudaOptions.
struct CacheBudget {
  std::uint64_t columns = gpu::column_cache_rest;
  std::uint64_t rows = gpu::row_cache_rest;
};

// The share of the columns of a step that the next one chooses again, as docs/device-cache.md has it: what is fetched
// ahead and right.
inline constexpr double columns_chosen_again = 0.7;

struct ExpectedCache {
  std::uint64_t column_bytes = 0;  // of the device's memory, at most
  double columns_kept = 0;         // share of all columns that they are
  double columns_held = 0;         // of the bytes read of columns, expected on the device
  double rows_held = 0;            // and of the rows of lists
  std::uint64_t link_bytes = 0;    // expected over the link per token
};

// Returns the share of the columns that a step reads, which are `read` of all, that a device has which keeps `kept` of
// all: interpolated in the means of four runs (docs/device-cache.md), for queries of a text that goes on.
double expected_columns_held(double read, double kept);

// For a step that reads `counters` of a store of this shape with so many blocks in each layer. `left`: of a device's
// memory, when everything else has what it needs; `budget` as gpu::DeviceMemory has it.
ExpectedCache expect_cache(const Counters& counters, const offload::StoreShape& shape, std::int64_t blocks,
                           const CacheBudget& asked, std::uint64_t left, std::uint64_t budget);

}  // namespace hayloft::runtime::plan
