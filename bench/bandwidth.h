#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/threads.h"

namespace hayloft::bench {

// Bytes per second at which all threads together read the buffer once, adding up what they read; the best of `passes`.
// The buffer should be larger than the caches.
double measure_read_bandwidth(std::span<const std::byte> buffer, const offload::Threads& threads, int passes);

}  // namespace hayloft::bench
