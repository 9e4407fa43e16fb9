#include <algorithm>
#include <cstring>

#include "gpu/cuda/context.cuh"
#include "gpu/cuda/device_arena.cuh"
#include "gpu/cuda/store_tables.cuh"

namespace hayloft::gpu::cuda {
namespace {

// What fits beside two more arguments into the 4 KiB that a launch can carry.
struct Packet {
  static constexpr std::uint64_t capacity = 4000;
  unsigned char bytes[capacity];
};
constexpr std::uint64_t kMostPackets = 16;  // more than these are faster copied

__global__ void unpack(const Packet packet, unsigned char* to, int bytes) {
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) to[i] = packet.bytes[i];
}

}  // namespace

void Crossing::order(cudaStream_t before, cudaStream_t after) {
  const std::lock_guard lock(mutex_);
  event_.record(before);
  event_.wait(after);
}

void order(const Context& context, cudaStream_t before, cudaStream_t after) {
  context.crossing->order(before, after);
}

void* allocate_scratch(const Context& context, std::uint64_t bytes, cudaStream_t stream) {
  return context.arena->allocate(bytes, stream);
}
void free_scratch(const Context& context, void* data, std::uint64_t bytes, cudaStream_t stream) noexcept {
  context.arena->free(data, bytes, stream);
}

void upload(const Context&, void* device, const void* host, std::uint64_t bytes, cudaStream_t stream) {
  if (bytes > kMostPackets * Packet::capacity) {
    // Whether such a copy returns before it has read its source depends on where the source lies and on the machine.
    HAYLOFT_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
    HAYLOFT_CUDA(cudaStreamSynchronize(stream));
    return;
  }
  Packet packet;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t part = std::min(bytes - done, Packet::capacity);
    std::memcpy(packet.bytes, static_cast<const unsigned char*>(host) + done, part);
    std::memset(packet.bytes + part, 0, Packet::capacity - part);
    launch("unpack", unpack, {1, 256}, stream, packet, static_cast<unsigned char*>(device) + done,
           static_cast<int>(part));
    done += part;
  }
}

bool pinned(const Context& context, const offload::LayerView& view) {
  return context.tables->pinned(view);
}
DeviceStore on_device(const Context& context, const offload::LayerView& view, cudaStream_t stream) {
  return context.tables->find(view, stream);
}

}  // namespace hayloft::gpu::cuda
