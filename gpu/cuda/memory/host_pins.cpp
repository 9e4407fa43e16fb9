#include <algorithm>
#include <mutex>
#include <utility>

#include "gpu/cuda/api/device.h"
#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/api/step_graphs.h"
#include "gpu/cuda/memory/device_arena.h"
#include "gpu/cuda/memory/host_pins.h"
#include "gpu/cuda_memory.h"
#include "offload/host/pages.h"
#include "offload/text/format.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;     // which halves do not cut
constexpr std::uint64_t kTouchBytes = std::uint64_t{32} << 20;  // per piece of parallel work

}  // namespace

HostPins::HostPins(KvHost mode, int device, const offload::Threads& threads,
                   std::function<void(const std::string&)> on_warning)
    : mode_(mode),
      device_(device),
      node_(pcie_link_of(device).node),
      threads_(threads),
      on_warning_(std::move(on_warning)) {}

HostPins::~HostPins() {
  if (!pins_.empty()) use_device(device_);
  for (const auto& [data, pin] : pins_) cudaHostUnregister(const_cast<std::byte*>(data));
}

bool HostPins::hopeless(std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  return refused_bytes_ <= (bytes < 2 * least_piece_bytes ? bytes : least_piece_bytes);
}

void HostPins::committed(std::byte* data, std::uint64_t bytes) {
  if (mode_ != KvHost::automatic && mode_ != KvHost::pinned) return;
  if (hopeless(bytes)) return;
  touch(data, bytes);  // fresh pages are zero and stay so
  Refused by;
  const cudaError_t result = pin_in_pieces(data, bytes, by);
  if (result == cudaSuccess) return;
  std::string what, advice;
  {
    const std::unique_lock lock(mutex_);
    if (by.table_bytes > 0) {
      what = "the device has no room for the page tables of " + format_bytes(bytes) +
             " of host memory for keys and values (" + format_bytes(by.table_bytes) + ")";
      advice = "raise --gpu-memory, or lower the context or --batch";
    } else {
      what = std::string("the system refuses to pin ") + format_bytes(refused_bytes_) +
             " of host memory for keys and values (" + cudaGetErrorName(result) + ")";
      advice =
          "what limits it is memory that is free, the memory limit of a container or cgroup, and under WSL half of the "
          "machine's memory (.wslconfig)";
    }
    what += ", with " + format_bytes(pinned_bytes_) + " pinned";
  }
  if (mode_ == KvHost::pinned) {
    releasing(data, bytes);
    refuse_for_memory("--kv-host pinned: ", what, "; ", advice, ". --kv-host staged pins none");
  }
  if (std::unique_lock lock(mutex_); std::exchange(warned_, true)) return;
  if (on_warning_) {
    on_warning_(what + ": what is not pinned is copied through a small pinned buffer, which is slower; " + advice);
  }
}

void HostPins::touch(std::byte* data, std::uint64_t bytes) const {
  if (node_ >= 0) offload::prefer_node(data, bytes, node_);
  const auto pieces = static_cast<std::int64_t>((bytes + kTouchBytes - 1) / kTouchBytes);
  threads_.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::uint64_t last = std::min(bytes, static_cast<std::uint64_t>(end) * kTouchBytes);
    for (std::uint64_t at = static_cast<std::uint64_t>(begin) * kTouchBytes; at < last; at += kPage) {
      *static_cast<volatile std::byte*>(data + at) = std::byte{0};
    }
  });
}

cudaError_t HostPins::pin(std::byte* data, std::uint64_t bytes) {
  Refused by;
  return pin(data, bytes, by);
}

cudaError_t HostPins::pin_in_pieces(std::byte* data, std::uint64_t bytes) {
  Refused by;
  return pin_in_pieces(data, bytes, by);
}

cudaError_t HostPins::pin(std::byte* data, std::uint64_t bytes, Refused& by) {
  DeviceArena* arena = nullptr;
  {
    const std::shared_lock lock(mutex_);
    arena = arena_;
  }
  // Not under the mutex: whoever is asked to make room may ask where memory is pinned.
  const std::uint64_t charged = arena ? cuda_page_table_bytes(bytes) : 0;
  by.table_bytes = arena && !arena->set_aside(charged) ? charged : 0;
  if (by.table_bytes > 0) return cudaErrorMemoryAllocation;
  cudaError_t result = use_device(device_);
  if (result == cudaSuccess) result = cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (result == cudaSuccess) {
    void* device = nullptr;
    result = cudaHostGetDevicePointer(&device, data, 0);
    if (result == cudaSuccess) {
      const std::unique_lock lock(mutex_);
      pins_.emplace(data, Pin{bytes, static_cast<std::byte*>(device), charged});
      pinned_bytes_ += bytes;
      generation_++;
      return result;
    }
    cudaHostUnregister(data);  // pinned, but out of the device's reach
  }
  cudaGetLastError();
  if (arena) arena->give_back(charged);
  return result;
}

void HostPins::charge_to(DeviceArena* arena) {
  const std::unique_lock lock(mutex_);
  arena_ = arena;
}

cudaError_t HostPins::pin_in_pieces(std::byte* data, std::uint64_t bytes, Refused& by) {
  std::uint64_t refused = 0;
  {
    const std::shared_lock lock(mutex_);
    refused = refused_bytes_;
  }
  cudaError_t result = cudaErrorMemoryAllocation;
  if (bytes < refused) {
    result = pin(data, bytes, by);
    if (result == cudaSuccess) return result;
    const std::unique_lock lock(mutex_);
    if (by.table_bytes == 0) refused_bytes_ = std::min(refused_bytes_, bytes);
  }
  if (bytes < 2 * least_piece_bytes) return result;
  const std::uint64_t half = (bytes / 2 + kHugePage - 1) / kHugePage * kHugePage;
  result = pin_in_pieces(data, half, by);
  return result == cudaSuccess ? pin_in_pieces(data + half, bytes - half, by) : result;
}

void HostPins::releasing(std::byte* data, std::uint64_t bytes) noexcept {
  const std::unique_lock lock(mutex_);
  const auto first = pins_.lower_bound(data), last = pins_.lower_bound(data + bytes);
  if (first == last) return;
  use_device(device_);
  generation_++;
  refused_bytes_ = UINT64_MAX;  // what is given up here may be granted elsewhere
  StepGraphs::launch_held_quietly(nullptr);
  cudaDeviceSynchronize();  // fails when the device is lost, and then nothing reads any more
  for (auto pin = first; pin != last; ++pin) {
    cudaHostUnregister(const_cast<std::byte*>(pin->first));
    pinned_bytes_ -= pin->second.bytes;
    if (arena_) arena_->give_back(pin->second.charged);
  }
  pins_.erase(first, last);
}

HostPins::Pins::const_iterator HostPins::find(const std::byte* data) const {
  auto pin = pins_.upper_bound(data);
  if (pin == pins_.begin()) return pins_.end();
  --pin;
  return static_cast<std::uint64_t>(data - pin->first) < pin->second.bytes ? pin : pins_.end();
}

const std::byte* HostPins::on_device(const std::byte* data, std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  auto pin = find(data);
  if (pin == pins_.end()) return nullptr;
  const auto offset = static_cast<std::uint64_t>(data - pin->first);
  const std::byte* const address = pin->second.device + offset;
  for (std::uint64_t seen = pin->second.bytes - offset; seen < bytes; seen += pin->second.bytes) {
    const auto [before, from] = *pin++;
    const bool adjoins = pin != pins_.end() && pin->first == before + from.bytes;
    if (!adjoins || pin->second.device != from.device + from.bytes) return nullptr;
  }
  return address;
}

std::span<const std::byte> HostPins::piece_of(const std::byte* data) const {
  const std::shared_lock lock(mutex_);
  const auto pin = find(data);
  if (pin == pins_.end()) return {};
  return {pin->first, pin->second.bytes};
}

std::uint64_t HostPins::copyable(const std::byte* data, std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  if (const auto pin = find(data); pin != pins_.end()) {
    return std::min(bytes, pin->second.bytes - static_cast<std::uint64_t>(data - pin->first));
  }
  const auto next = pins_.upper_bound(data);
  return next == pins_.end() ? bytes : std::min(bytes, static_cast<std::uint64_t>(next->first - data));
}

}  // namespace hayloft::gpu::cuda
