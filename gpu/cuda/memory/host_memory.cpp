#include "gpu/cuda/cuda_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "gpu/cuda/api/refuse.h"
#include "offload/text/format.h"

namespace hayloft::gpu::cuda {

std::shared_ptr<std::byte> CudaBackend::host_memory(std::uint64_t bytes) {
  // Large pages, of which the system has some for the asking, are read and pinned sooner.
  constexpr std::uint64_t huge = std::uint64_t{2} << 20;
  const std::uint64_t page = bytes >= huge ? huge : 4096;
  const std::uint64_t rounded = std::max(page, (bytes + page - 1) / page * page);
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(page, rounded));
  if (data && page == huge) madvise(data, rounded, MADV_HUGEPAGE);  // a wish: nothing is lost if refused
  if (!data) refuse_for_memory("the system has no ", format_bytes(rounded), " of memory left; lower the context");
  std::shared_ptr<std::byte> memory(data, [pins = pins_.get(), rounded](std::byte* p) {
    pins->releasing(p, rounded);  // if they are pinned
    std::free(p);
  });
  if (pin_host_) {
    pins_->touch(data, rounded);
    pins_->pin_in_pieces(data, rounded);  // or they are copied as other memory is
  }
  return memory;
}

}  // namespace hayloft::gpu::cuda
