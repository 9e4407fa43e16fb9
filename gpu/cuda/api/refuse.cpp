#include "gpu/cuda/api/refuse.h"

#include "gpu/make_backend.h"

namespace hayloft::gpu::cuda {

void throw_no_memory(const std::string& message) {
  throw NoMemory(message);
}

void throw_error(const std::string& message) {
  throw Error(message);
}
void throw_no_device(const std::string& message) {
  throw NoDevice(message);
}
void throw_device_lost(const std::string& message) {
  throw DeviceLost(message);
}

}  // namespace hayloft::gpu::cuda
