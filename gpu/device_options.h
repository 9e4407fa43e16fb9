#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpu/link_choice.h"

// The options of a device.
namespace hayloft::gpu {

// Says where K and V lie on the host: pinned, so that the device reads them in place; in pageable memory, passing
// through a small pinned ring (`staged`); or mapped from the file they were saved to, passing through the ring as well
// (`mmap`). `automatic` pins what can be pinned and stages otherwise.
enum class KvHost : std::uint8_t { automatic, pinned, staged, mmap };

// As CudaOptions::column_cache_bytes: whatever the budget leaves, but for an eighth of it.
inline constexpr std::uint64_t column_cache_rest = UINT64_MAX;

// As CudaOptions::row_cache_bytes: a 32nd of the budget.
inline constexpr std::uint64_t row_cache_rest = UINT64_MAX;

// As CudaOptions::mass_bytes, by default.
inline constexpr std::uint64_t cuda_mass_bytes = std::uint64_t{64} << 20;

// Says how much of the device is used, and how K and V reach it.
struct CudaOptions {
  int device = 0;  // of those that this process sees, --device cuda:N
  // Budget of device memory, --gpu-memory: everything that this process takes of it, what CUDA itself needs included.
  // 0: what is free, less a reserve.
  std::uint64_t memory_bytes = 0;
  // Processes that know of each other and use the device: without a budget each has its share of all its memory.
  int sharers = 1;
  LinkChoice link = {};  // automatic: sm
  // With Link::copy and Link::both: columns that lie in so many pieces that a copy would bring in fewer bytes than this
  // are read in place instead. 0: copied at whatever cost.
  std::uint64_t least_copy_bytes = 0;
  KvHost kv_host = KvHost::automatic;
  // --device-columns: what columns of keys, or planes of them, that are read often may take of the budget in order to
  // be kept on the device. They make room for everything else. 0: none are kept.
  std::uint64_t column_cache_bytes = 0;
  // --device-rows: what rows that were read not long ago may take likewise. 0: none are kept.
  std::uint64_t row_cache_bytes = 0;
  // Selections from lists of up to so many keys are made by one kernel; from longer ones by several that fill the
  // device, of which there were eight when this number was found on one, and are four now.
  std::int64_t short_list_keys = std::int64_t{1} << 16;
  // Masses of keys, by which sparse prefill chooses, of so many queries at a time; each time reads the keys anew.
  std::uint64_t mass_bytes = cuda_mass_bytes;
  // Keeps the scratch of a step for the next one. False: the driver has it back each time, which tests watch.
  bool keep_steps = true;
  // Gives the device the kernels of a step several at a time (gpu/cuda/api/step_graphs.h).
  bool step_graphs = true;
  // Called, once, with what the user should know and did not ask for: memory that could not be pinned. May be null.
  std::function<void(const std::string&)> on_warning = nullptr;
};

}  // namespace hayloft::gpu
