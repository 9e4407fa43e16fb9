#include <algorithm>
#include <cstdlib>

#include "gpu/cuda/refuse.h"
#include "gpu/cuda/verbs.cuh"
#include "offload/format.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kTouchBytes = std::uint64_t{32} << 20;  // per piece of parallel work

// Touched by all threads first, which is what takes the time of pinning.
bool pin(std::byte* data, std::uint64_t bytes, const offload::Threads& threads) {
  threads.parallel_for(static_cast<std::int64_t>(bytes / kPage), static_cast<std::int64_t>(kTouchBytes / kPage),
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t page = begin; page < end; ++page) {
                           data[static_cast<std::uint64_t>(page) * kPage] = std::byte{0};
                         }
                       });
  if (cudaHostRegister(data, bytes, cudaHostRegisterPortable) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

}  // namespace

std::shared_ptr<std::byte> host_memory(const Context& context, std::uint64_t bytes) {
  const std::uint64_t rounded = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
  if (!data) refuse("the system has no ", format_bytes(rounded), " of memory left; lower the context");
  if (!context.pin_host || !pin(data, rounded, *context.threads)) return {data, [](std::byte* p) { std::free(p); }};
  return {data, [](std::byte* p) {
            cudaDeviceSynchronize();  // fails when the device is lost, and then nothing uses it any more
            cudaHostUnregister(p);
            std::free(p);
          }};
}

}  // namespace hayloft::gpu::cuda
