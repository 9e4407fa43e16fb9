#pragma once

#include "gpu/cuda/kernels/planes.cuh"
#include "offload/store/rows.h"

// Integer rows, to the bit what offload/store/rows.h says: that file has the definitions and their reasons.
namespace hayloft::gpu::cuda {

using offload::RowFormat;

template <RowFormat format>
inline constexpr int kLevelBits = offload::bits_of(format);
template <RowFormat format>
inline constexpr int kScaleElements = offload::elements_per_scale(format);  // of K or V that share one

// Returns the range of keys between lo and hi, as finite() leaves them.
__device__ inline offload::ChannelRange channel_range(float lo, float hi) {
  const KeyRange range = plane_range(lo, hi);
  const int exponent = (range.half.bits >> 10) + ((range.half.bits & 0x3ff) != 0 ? 1 : 0);
  return {range.centre, {static_cast<std::uint16_t>(min(max(exponent, 1), 30) << 10)}};
}

// n is offload::levels_below_zero().
__device__ inline f16 row_scale(int n, float lo, float hi) {
  const f16 scale = narrow((hi >= -lo ? hi : lo) * (-1.0f / static_cast<float>(n)));
  return {static_cast<std::uint16_t>(scale.bits == 0x8000 ? 0 : scale.bits)};
}

__device__ inline int row_level(int n, float x, f16 scale) {
  if (scale.bits == 0) return 0;
  const auto most = static_cast<float>(n);
  return static_cast<int>(rintf(fminf(fmaxf(x / widen(scale), -most), most - 1)));
}

// Returns what eight levels of a row stand for, f16: elements [8 octet, 8 octet + 8) of its [K | V]. `ranges` are those
// [d] of its keys, in memory aligned to 16 bytes.
template <RowFormat format>
__device__ inline uint4 read_octet(const unsigned char* row, const offload::ChannelRange* ranges, int head_dim,
                                   int octet) {
  constexpr int bits = kLevelBits<format>, group = kScaleElements<format>;
  const bool key = octet < head_dim / 8;
  const int component = octet * 8 - (key ? 0 : head_dim);
  const int scale_at = component / group + (key ? 0 : (head_dim + group - 1) / group);
  const float scale = widen(reinterpret_cast<const f16*>(row + 2 * head_dim * bits / 8)[scale_at]);
  // Values have centre -0 and width 1, with which the sum is the product itself, whatever its sign.
  uint4 range[2] = {{0x3c008000, 0x3c008000, 0x3c008000, 0x3c008000}, {0x3c008000, 0x3c008000, 0x3c008000, 0x3c008000}};
  if (key) {
    range[0] = load16(ranges + component);
    range[1] = load16(ranges + component + 4);
  }
  uint2 levels;
  if constexpr (bits == 8) {
    levels = *reinterpret_cast<const uint2*>(row + octet * 8);
  } else {
    levels = {*reinterpret_cast<const unsigned*>(row + octet * 4), 0};
  }
  const unsigned ranges_of[8] = {range[0].x, range[0].y, range[0].z, range[0].w,
                                 range[1].x, range[1].y, range[1].z, range[1].w};
  float x[8];
  for (int i = 0; i < 8; ++i) {
    const unsigned word = bits == 8 && i >= 4 ? levels.y : levels.x;
    const int level = static_cast<int>(word << (32 - bits - i * bits % 32)) >> (32 - bits);
    const float2 range_of = widen_pair(ranges_of[i]);  // centre and width
    // Exact, as widths are powers of two: it does not matter whether the sum is fused to it.
    x[i] = static_cast<float>(level) * scale * range_of.y + range_of.x;
  }
  return {narrow_pair(x[0], x[1]), narrow_pair(x[2], x[3]), narrow_pair(x[4], x[5]), narrow_pair(x[6], x[7])};
}

}  // namespace hayloft::gpu::cuda
