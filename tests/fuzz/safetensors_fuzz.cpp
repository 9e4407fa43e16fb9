// Any bytes are either refused with an Error or give tensors that lie inside them.
#include <cstdlib>

#include "offload/error.h"
#include "runtime/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(bytes), size);
  try {
    for (const auto& [name, tensor] : hayloft::runtime::parse_safetensors(file, "input")) {
      // Reads every byte, so that the address sanitizer judges the bounds.
      unsigned sum = 0;
      for (const std::byte b : tensor.data) sum += std::to_integer<unsigned>(b);
      if (tensor.elements() < 0 || sum > 255u * size) std::abort();
      if (tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16" || tensor.dtype == "F64") {
        const auto values = hayloft::runtime::to_f32(tensor, name);
        if (values.size() != static_cast<std::size_t>(tensor.elements())) std::abort();
      }
    }
  } catch (const hayloft::Error&) {
  }
  return 0;
}
