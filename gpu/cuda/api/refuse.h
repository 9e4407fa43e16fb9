#pragma once

#include <sstream>
#include <string>

// Errors for files that nvcc compiles: it cannot evaluate fmt's compile-time check of formats, so offload/error.h stays
// out of them.
namespace hayloft::gpu::cuda {

[[noreturn]] void throw_error(const std::string& message);        // hayloft::Error
[[noreturn]] void throw_no_memory(const std::string& message);    // hayloft::NoMemory
[[noreturn]] void throw_no_device(const std::string& message);    // gpu::NoDevice
[[noreturn]] void throw_device_lost(const std::string& message);  // gpu::DeviceLost

template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  return message.str();
}
// Throw Error and NoMemory with the parts written one after another.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw_error(joined(parts...));
}
template <class... Parts>
[[noreturn]] void refuse_for_memory(const Parts&... parts) {
  throw_no_memory(joined(parts...));
}

}  // namespace hayloft::gpu::cuda
