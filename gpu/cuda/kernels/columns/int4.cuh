#pragma once

#include "gpu/cuda/kernels/columns/column_bits.cuh"

namespace hayloft::gpu::cuda {

template <>
struct ColumnBits<offload::ColumnFormat::int4> {
  using Bits = unsigned;
  static constexpr int bytes = 4;
  static __device__ Bits load(const std::byte* address) { return load4_once(address); }
  static __device__ void widen_to(const Bits& bits, float scale, float* x) {
    for (int i = 0; i < 8; ++i) x[i] = static_cast<float>(static_cast<int>(bits << (28 - 4 * i)) >> 28) * scale;
  }
  // Writes a lane's two levels of a tile of 64.
  static __device__ void store(std::byte* tile, int lane, int low, int high) {
    tile[lane] = static_cast<std::byte>((low & 15) | (high & 15) << 4);
  }
};

}  // namespace hayloft::gpu::cuda
