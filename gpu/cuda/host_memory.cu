#include <algorithm>
#include <cstdlib>

#include "gpu/cuda/host_pins.cuh"
#include "gpu/cuda/refuse.h"
#include "gpu/cuda/verbs.cuh"
#include "offload/format.h"

namespace hayloft::gpu::cuda {

std::shared_ptr<std::byte> host_memory(const Context& context, std::uint64_t bytes) {
  constexpr std::uint64_t page = 4096;
  const std::uint64_t rounded = std::max(page, (bytes + page - 1) / page * page);
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(page, rounded));
  if (!data) refuse("the system has no ", format_bytes(rounded), " of memory left; lower the context");
  std::shared_ptr<std::byte> memory(data, [pins = context.pins, rounded](std::byte* p) {
    pins->releasing(p, rounded);  // if they are pinned
    std::free(p);
  });
  if (context.pin_host) {
    context.pins->touch(data, rounded);
    context.pins->pin(data, rounded);  // or they are copied as other memory is
  }
  return memory;
}

}  // namespace hayloft::gpu::cuda
