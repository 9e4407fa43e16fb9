#include <algorithm>
#include <mutex>

#include "gpu/cuda/api/device.h"
#include "gpu/cuda/api/refuse.h"
#include "gpu/cuda/memory/host_pins.h"
#include "offload/format.h"
#include "offload/host/pages.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kTouchBytes = std::uint64_t{32} << 20;  // per piece of parallel work

}  // namespace

HostPins::HostPins(KvHost mode, int device, const offload::Threads& threads,
                   std::function<void(const std::string&)> on_warning)
    : mode_(mode), node_(pcie_link_of(device).node), threads_(threads), on_warning_(std::move(on_warning)) {}

HostPins::~HostPins() {
  for (const auto& [data, pin] : pins_) cudaHostUnregister(const_cast<std::byte*>(data));
}

void HostPins::committed(std::byte* data, std::uint64_t bytes) {
  if (mode_ != KvHost::automatic && mode_ != KvHost::pinned) return;
  if (const std::shared_lock lock(mutex_); refused_) return;
  touch(data, bytes);  // fresh pages are zero and stay so
  const cudaError_t result = pin(data, bytes);
  if (result == cudaSuccess) return;
  const std::string what = std::string("the system refuses to pin ") + format_bytes(bytes) +
                           " of host memory for keys and values (" + cudaGetErrorName(result) + ")";
  if (mode_ == KvHost::pinned) {
    refuse("--kv-host pinned: ", what,
           "; raise the limit of locked memory, lower the context, or use --kv-host staged");
  }
  {
    const std::unique_lock lock(mutex_);
    refused_ = true;
  }
  if (on_warning_) on_warning_(what + ": what is not pinned is copied through a small pinned buffer, which is slower");
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
  cudaError_t result = cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (result == cudaSuccess) {
    void* device = nullptr;
    result = cudaHostGetDevicePointer(&device, data, 0);
    if (result == cudaSuccess) {
      const std::unique_lock lock(mutex_);
      pins_.emplace(data, Pin{bytes, static_cast<std::byte*>(device)});
      generation_++;
      return result;
    }
    cudaHostUnregister(data);  // pinned, but out of the device's reach
  }
  cudaGetLastError();
  return result;
}

void HostPins::releasing(std::byte* data, std::uint64_t) noexcept {
  const std::unique_lock lock(mutex_);
  if (pins_.erase(data) == 0) return;
  generation_++;
  cudaDeviceSynchronize();  // fails when the device is lost, and then nothing reads any more
  cudaHostUnregister(data);
}

HostPins::Pins::const_iterator HostPins::find(const std::byte* data) const {
  auto pin = pins_.upper_bound(data);
  if (pin == pins_.begin()) return pins_.end();
  --pin;
  return static_cast<std::uint64_t>(data - pin->first) < pin->second.bytes ? pin : pins_.end();
}

const std::byte* HostPins::on_device(const std::byte* data, std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  const auto pin = find(data);
  if (pin == pins_.end()) return nullptr;
  const auto offset = static_cast<std::uint64_t>(data - pin->first);
  return bytes <= pin->second.bytes - offset ? pin->second.device + offset : nullptr;
}

std::span<const std::byte> HostPins::piece_of(const std::byte* data) const {
  const std::shared_lock lock(mutex_);
  const auto pin = find(data);
  if (pin == pins_.end()) return {};
  return {pin->first, pin->second.bytes};
}

}  // namespace hayloft::gpu::cuda
