#include "gpu/cuda/cuda_backend.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "gpu/cuda/api/device.h"
#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/memory/host_copy.h"
#include "gpu/cuda/memory/upload.h"
#include "gpu/cuda_memory.h"
#include "gpu/make_backend.h"
#include "offload/text/format.h"

namespace hayloft::gpu {
namespace cuda {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeastBytes = 1024 * kMiB;  // of --gpu-memory
// Left to others, and to kernels and cuBLAS' code that are loaded later, when nobody says how much to take.
constexpr std::uint64_t kSpareBytes = 512 * kMiB;
constexpr std::uint64_t kPieceBytes = 8 * kMiB;  // of the staging ring: long enough for the link's full rate
constexpr int kPieces = 4;
constexpr std::uint64_t kMoveBytes = 4 * kMiB;  // of an overlapping copy at a time

// One of the devices that CUDA_VISIBLE_DEVICES leaves.
int open_device(int device) {
  require_device(device);
  HAYLOFT_CUDA(cudaSetDevice(device));
  if (!attribute(cudaDevAttrMemoryPoolsSupported, device) || !attribute(cudaDevAttrCanMapHostMemory, device)) {
    refuse(
        "--device cuda: this device, or its driver, has no memory pools or cannot map host memory, as some virtual "
        "GPUs; use --device cpu");
  }
  return device;
}

std::uint64_t arena_budget(std::uint64_t asked, int sharers) {
  std::size_t free = 0, total = 0;
  HAYLOFT_CUDA(cudaMemGetInfo(&free, &total));  // with the context counted as taken
  if (asked == 0 && sharers > 1) {              // what is free depends on how far the others have come
    const std::uint64_t rest = total - std::min<std::uint64_t>(kSpareBytes, total / 8);
    asked = rest / static_cast<unsigned>(sharers);
    if (asked < kLeastBytes) {
      refuse("--device cuda: ", sharers, " ranks share a device of ", format_bytes(total), ", and each needs at least ",
             format_bytes(kLeastBytes), "; start fewer on a machine");
    }
  }
  if (asked == 0) return free - std::min<std::uint64_t>(kSpareBytes, free / 8);
  if (asked < kLeastBytes) {
    refuse("--gpu-memory ", format_bytes(asked), ": must be at least ", format_bytes(kLeastBytes),
           ", of which CUDA itself takes up to ", format_bytes(cuda_context_bytes));
  }
  if (asked - cuda_context_bytes > free) {
    refuse("--gpu-memory ", format_bytes(asked), ": the device has ", format_bytes(free), " free of ",
           format_bytes(total), "; lower it, or end what else uses the device");
  }
  return asked - cuda_context_bytes;
}

DeviceArena make_arena(int device, std::uint64_t budget) {
  return {device, budget, cuda_step_bytes(budget)};
}

std::string describe(int device, std::uint64_t budget) {
  cudaDeviceProp properties{};
  HAYLOFT_CUDA(cudaGetDeviceProperties(&properties, device));
  std::ostringstream text;
  text << properties.name;
  if (const std::string address = bus_address(device); !address.empty()) text << " at " << address;
  text << ", compute capability " << properties.major << "." << properties.minor << ", "
       << properties.multiProcessorCount << " multiprocessors, " << format_bytes(properties.totalGlobalMem)
       << ", of which " << format_bytes(budget) << " may be used";
  return text.str();
}

// Compute capabilities 9.x have wgmma, 10.x and 11.x tcgen05, 12.x neither. Tensor cores of 8.0 take as many clocks for
// a product as a warp has instructions beside it, and those of all others from 7.5 on 1.8 times as many or more.
bool has_wide_products(int device) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  return (major == 8 && minor == 0) || (major >= 9 && major <= 11);
}

LinkChoice way_over(LinkChoice link) {
  for (Link* way : {&link.f16, &link.int8, &link.int4}) {
    if (*way == Link::automatic) *way = Link::sm;
  }
  return link;
}

void queue_copy(void* to, const void* from, std::uint64_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, in_order(stream)), "cudaMemcpyAsync", bytes);
}

}  // namespace

CudaBackend::CudaBackend(const offload::Threads& threads, const CudaOptions& options)
    : threads_(threads),
      device_(open_device(options.device)),
      pin_host_(options.kv_host == KvHost::automatic || options.kv_host == KvHost::pinned),
      graphs_(device_, compute_, options.step_graphs),
      arena_(make_arena(device_, arena_budget(options.memory_bytes, options.sharers))),
      pins_(std::make_shared<HostPins>(options.kv_host, device_, threads, options.on_warning)),
      staging_(kPieceBytes, kPieces),
      context_{{device_, compute_, copies_, arena_, *pins_, order_, graphs_},
               attribute(cudaDevAttrMultiProcessorCount, device_),
               attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device_),
               attribute(cudaDevAttrComputeCapabilityMajor, device_) >= 8,
               has_wide_products(device_),
               way_over(options.link),
               options.least_copy_bytes,
               options.short_list_keys,
               options.mass_bytes,
               tables_,
               columns_,
               ahead_,
               rows_,
               staging_,
               spill_image_,
               cublas_,
               stages_,
               threads},
      spill_image_(context_, spills_),
      workspace_(context_, cuda_workspace_bytes, compute_, DeviceArena::Purpose::lasting),
      cublas_(compute_, workspace_, cuda_workspace_bytes),
      tables_(context_),
      ahead_(context_, tables_.mutex()),
      columns_(context_, tables_.mutex(), ahead_, options.column_cache_bytes),
      rows_(context_, tables_.mutex(), ahead_, options.row_cache_bytes) {
  pins_->charge_to(&arena_);
  if (options.keep_steps) arena_.keep_steps_of(compute_);
  arena_.when_short([this](std::uint64_t bytes) {
    std::uint64_t freed = ahead_.spare();
    if (freed < bytes) freed += columns_.spare(bytes - freed);
    if (freed < bytes) freed += rows_.spare();
    if (freed < bytes) tables_.spare(bytes - freed);
  });
}

CudaBackend::~CudaBackend() {
  use_device(device_);  // of streams, memory and cuBLAS
  pins_->charge_to(nullptr);
  // Work that is still queued may use anything below.
  cudaStreamSynchronize(copies_);
  cudaStreamSynchronize(spills_);
  cudaStreamSynchronize(ahead_.stream());
  cudaStreamSynchronize(compute_);
}

std::string CudaBackend::description() const {
  return describe(device_, arena_.budget_bytes());
}

DeviceMemory CudaBackend::memory() const {
  // Kept columns and rows make room for whoever asks.
  const std::uint64_t kept = ahead_.bytes() + columns_.bytes() + rows_.bytes(), used = arena_.used_bytes();
  return {arena_.budget_bytes(), used - std::min(used, kept), arena_.peak_bytes(), arena_.driver_peak_bytes(),
          cuda_context_bytes};
}

std::uint64_t CudaBackend::scratch_bytes(const ScratchShape& shape) const {
  const std::uint64_t set_aside = cuda_step_bytes(arena_.budget_bytes());
  return std::max(set_aside, cuda_scratch_bytes(shape)) - set_aside;
}

std::unique_ptr<Step> CudaBackend::begin_step(int tokens) {
  return tokens <= cuda_tokens_as_alone ? graphs_.begin() : nullptr;
}

Buffer CudaBackend::allocate(std::uint64_t bytes, Stream stream) {
  return Buffer(this, arena_.allocate(bytes, native(stream)), bytes, stream);
}

Buffer CudaBackend::allocate_weights(std::uint64_t bytes, Stream stream) {
  return Buffer(this, arena_.allocate(bytes, native(stream), DeviceArena::Purpose::lasting), bytes, stream);
}

void CudaBackend::to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) {
  upload(device, host, bytes, native(stream));
}

void CudaBackend::to_host(void* host, const void* device, std::uint64_t bytes, Stream queue) {
  if (bytes == 0) return;
  const cudaStream_t stream = in_order(native(queue));
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync", bytes);
  HAYLOFT_CUDA(cudaStreamSynchronize(stream));
}

void CudaBackend::queue_to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) {
  copy_to_device(*pins_, device, host, bytes, native(stream));
}

void CudaBackend::queue_to_host(void* host, const void* device, std::uint64_t bytes, Stream stream) {
  copy_to_host(*pins_, host, device, bytes, native(stream));
}

void CudaBackend::copy(void* to, const void* from, std::uint64_t bytes, Stream stream) {
  const auto target = reinterpret_cast<std::uintptr_t>(to), source = reinterpret_cast<std::uintptr_t>(from);
  const std::uint64_t distance = target < source ? source - target : target - source;
  if (bytes == 0 || distance == 0) return;
  if (distance >= bytes) return queue_copy(to, from, bytes, native(stream));
  // CUDA leaves open what an overlapping copy does. By way of a third place, piece by piece, each before its source
  // is overwritten.
  const std::uint64_t most = std::min(bytes, kMoveBytes);
  const Scratch<std::byte> between(context_, static_cast<std::int64_t>(most), native(stream));
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t part = std::min(most, bytes - done);
    const std::uint64_t at = target < source ? done : bytes - done - part;
    queue_copy(between, static_cast<const std::byte*>(from) + at, part, native(stream));
    queue_copy(static_cast<std::byte*>(to) + at, between, part, native(stream));
    done += part;
  }
}

void CudaBackend::synchronize(Stream stream) {
  HAYLOFT_CUDA(cudaStreamSynchronize(in_order(native(stream))));
}

void CudaBackend::release(void* data, std::uint64_t bytes, Stream stream) noexcept {
  use_device(device_);
  arena_.free(data, bytes, handle(stream));
}

}  // namespace cuda

int cuda_devices() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::unique_ptr<Backend> make_cuda_backend(const offload::Threads& threads, const CudaOptions& options) {
  return std::make_unique<cuda::CudaBackend>(threads, options);
}

}  // namespace hayloft::gpu
