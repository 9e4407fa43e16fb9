#include "runtime/decode/device_memory.h"

namespace hayloft::runtime {

nlohmann::ordered_json device_memory_json(const gpu::DeviceMemory& memory) {
  if (memory.budget_bytes == 0) return nullptr;
  return {{"budget_bytes", memory.budget_bytes},
          {"peak_bytes", memory.peak_bytes},
          {"driver_peak_bytes", memory.driver_peak_bytes}};
}

}  // namespace hayloft::runtime
