#pragma once

#include "gpu/cuda/kernels/columns/column_bits.cuh"

namespace hayloft::gpu::cuda {

template <>
struct ColumnBits<offload::ColumnFormat::int8> {
  using Bits = uint2;
  static constexpr int bytes = 8;
  static __device__ Bits load(const std::byte* address) { return load8_once(address); }
  static __device__ void widen_to(const Bits& bits, float scale, float* x) {
    for (int i = 0; i < 8; ++i) {
      const unsigned word = i < 4 ? bits.x : bits.y;
      x[i] = static_cast<float>(static_cast<int>(word << (24 - 8 * (i % 4))) >> 24) * scale;
    }
  }
  // Writes a lane's two levels of a tile of 64.
  static __device__ void store(std::byte* tile, int lane, int low, int high) {
    reinterpret_cast<std::uint16_t*>(tile)[lane] = static_cast<std::uint16_t>((low & 255) | (high & 255) << 8);
  }
};

}  // namespace hayloft::gpu::cuda
