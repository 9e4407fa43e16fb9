#pragma once

#include <nlohmann/json.hpp>

#include "gpu/backend.h"

namespace hayloft::runtime {

// {"budget_bytes", "peak_bytes", "driver_peak_bytes"}, as a report keeps them; null where there is no budget.
nlohmann::ordered_json device_memory_json(const gpu::DeviceMemory& memory);

}  // namespace hayloft::runtime
