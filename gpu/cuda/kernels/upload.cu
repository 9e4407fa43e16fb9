#include "gpu/cuda/memory/upload.h"

#include <algorithm>
#include <cstring>

#include "gpu/cuda/kernels/launch.h"

namespace hayloft::gpu::cuda {
namespace {

// A packet fits beside two more arguments into the 4 KiB that a launch can carry.
struct Packet {
  static constexpr std::uint64_t capacity = 4000;
  unsigned char bytes[capacity];
};
constexpr std::uint64_t kMostPackets = 16;  // more than these are faster copied

__global__ void unpack(const Packet packet, unsigned char* to, int bytes) {
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) to[i] = packet.bytes[i];
}

}  // namespace

void upload(void* device, const void* host, std::uint64_t bytes, cudaStream_t stream) {
  if (bytes > kMostPackets * Packet::capacity) {
    // It depends on the source's place and the machine whether such a copy returns before it has read
    // it.
    HAYLOFT_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, in_order(stream)));
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

}  // namespace hayloft::gpu::cuda
