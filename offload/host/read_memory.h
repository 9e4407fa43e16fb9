#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/host/threads.h"

namespace hayloft::offload {

// All threads together read the buffer once, as fast as the memory gives it: what bandwidth is measured by. Returns the
// sum of the 64-bit words read, so that nothing can be left out. Whole MiB are read, a rest is not.
std::uint64_t read_memory(std::span<const std::byte> buffer, const Threads& threads);

// Returns how many bytes of a buffer of that size read_memory() reads.
inline std::uint64_t bytes_read(std::uint64_t buffer_bytes) {
  return buffer_bytes >> 20 << 20;
}

}  // namespace hayloft::offload
