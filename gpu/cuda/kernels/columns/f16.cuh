#pragma once

#include "gpu/cuda/kernels/columns/column_bits.cuh"

namespace hayloft::gpu::cuda {

template <>
struct ColumnBits<offload::ColumnFormat::f16> {
  using Bits = uint4;
  static constexpr int bytes = 16;
  static __device__ Bits load(const std::byte* address) { return load16_once(address); }
  static __device__ void widen_to(const Bits& bits, float, float* x) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    for (int i = 0; i < 4; ++i) {
      const float2 pair = widen_pair(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
  // Writes a lane's two tokens of a tile of 64.
  static __device__ void store(std::byte* tile, int lane, const f16 (&pair)[2]) {
    reinterpret_cast<unsigned*>(tile)[lane] = pair[0].bits | static_cast<unsigned>(pair[1].bits) << 16;
  }
};

}  // namespace hayloft::gpu::cuda
