#pragma once

#include <type_traits>

#include "gpu/cuda/kernels/select/column_scan.cuh"
#include "gpu/cuda/kernels/select/group_rank.cuh"
#include "gpu/cuda/kernels/select/strips.h"

// The second look at the strips that may matter, behind a scan that has kept their bounds alone: their logits again, by
// the same sums, and their keys at once.
namespace hayloft::gpu::cuda {

inline constexpr int kWarpStrips = kChunkTokens / kStripTokens;

// Dynamic shared memory of rank_strips: weights f32 [r'][G], offsets u32 [r'], what is taken off logits f32 [G], scales
// f16 [warps][r'][kWarpStrips].
template <offload::ColumnFormat format, int G>
constexpr unsigned strip_shared_bytes(int rank) {
  constexpr unsigned scales = kScaled<format> ? kScanThreads / kWarp * kWarpStrips * sizeof(f16) : 0;
  return static_cast<unsigned>(padded_rank<G>(rank)) * (G * sizeof(float) + sizeof(unsigned) + scales) +
         G * sizeof(float);
}
inline constexpr unsigned kStripStaticBytes = kBins * sizeof(unsigned);

// Calls body with each of 0 to G - 1 as a type, in order: a loop too long for the compiler to unroll would have its
// scores in memory.
template <int G, int h = 0, class Body>
__device__ inline void for_each_head(const Body& body) {
  if constexpr (h < G) {
    body(std::integral_constant<int, h>());
    for_each_head<G, h + 1>(body);
  }
}

// Some in slots that the scan before has left as they are to be, each strip in a block of its own.
struct FilledLane {
  const std::byte* column;  // of the lane's tokens
  const unsigned* offsets;
  CachedColumns cached;
  std::uint64_t within;

  __device__ void turn(int) {}
  __device__ const std::byte* at(int j) const {
    return cached.from<true>(cached.places[j], within, column + offsets[j]);
  }
  __device__ static constexpr bool keeps() { return false; }
  template <class Bits>
  __device__ void keep(int, const Bits&) const {}
};

namespace {  // so that the fibers' double guards its static shared memory

// Grid: some blocks, KV heads from scan.head on, which is the batch's first. A warp takes kWarpStrips strips, of each
// list those that are its own; columns come from the host or from slots of the device, which are as the scan before has
// left them. scan.logits are those of what is listed.
template <offload::ColumnFormat format, int G>
__global__ __launch_bounds__(kScanThreads, G > 4 ? 1 : 2) void rank_strips(ColumnSource source, ColumnScan scan,
                                                                           StripRank rank) {
  static_assert(kScanThreads == kSelectThreads);
  constexpr float infinity = __builtin_inff();
  constexpr int warps = kScanThreads / kWarp, lanes = kWarp / kWarpStrips;
  __shared__ unsigned bins[kBins];
  const int padded = padded_rank<G>(scan.rank);
  float* const weights = reinterpret_cast<float*>(dynamic_shared());
  unsigned* const offsets = reinterpret_cast<unsigned*>(weights + padded * G);
  float* const taken_off = reinterpret_cast<float*>(offsets + padded);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  f16* const scales = reinterpret_cast<f16*>(taken_off + G) + warp * padded * kWarpStrips;
  const std::int64_t list = blockIdx.y;
  const int head = scan.head + static_cast<int>(list);
  const int group = scan.group;
  const std::int64_t first = list * group;

  const std::int32_t* const components = scan.components + static_cast<std::int64_t>(head) * scan.rank;
  load_weights<G>(scan, head, 0, padded, weights);
  for (int j = threadIdx.x; j < scan.rank; j += kScanThreads) {
    offsets[j] = static_cast<unsigned>(components[j] * source.column_bytes);
  }
  if (!rank.sum_logits) group_offsets(rank.heads + first, group, taken_off);
  clear_bins(bins);

  const std::int32_t* const listed = rank.strips.listed + list * rank.strips.stride;
  const int count = rank.strips.counts[list];
  const int limit = rank.strips.limits[list];
  for (int chunk = static_cast<int>(blockIdx.x) * warps + warp; chunk * kWarpStrips < count;
       chunk += static_cast<int>(gridDim.x) * warps) {
    const int own = chunk * kWarpStrips;
    if constexpr (kScaled<format>) {
      warp_barrier();  // the last chunk's scales are still in use
      const int of = lane % kWarpStrips;
      const std::int64_t position = std::int64_t{listed[own + of < count ? own + of : own]} * kStripTokens;
      const std::int64_t scale = source.slot(position) >> source.scale_shift;
      const std::byte* const rows = source.head(position, head) + source.scales_offset;
      const CachedColumns cached(source, position, head);
      for (int j = lane / kWarpStrips; j < padded; j += lanes) {
        f16 one{0};
        if (j < scan.rank) {
          const std::byte* const row =
              cached.from<true>(cached.places[j], source.column_bytes, rows + components[j] * source.scale_bytes);
          one = reinterpret_cast<const f16*>(row)[scale];
        }
        scales[j * kWarpStrips + of] = one;
      }
      warp_barrier();
    }
    const int strip = lane / lanes, at = lane % lanes * kLaneTokens;
    const bool live = own + strip < count;
    const std::int64_t begin = std::int64_t{listed[live ? own + strip : own]} * kStripTokens;
    const std::int64_t read = begin + at < scan.end ? begin + at : begin;  // past the end what is then dropped
    const auto within = static_cast<std::uint64_t>(source.slot(read) / kLaneTokens * ColumnBits<format>::bytes);
    FilledLane from{source.head(read, head) + source.columns_offset + within, offsets,
                    CachedColumns(source, read, head), within};
    float s[G][kLaneTokens] = {};
    score_lane<format, G, kWarpStrips>(from, weights, scales + strip, scan.rank, s);
    const std::int64_t place = std::int64_t{chunk} * kChunkTokens + lane * kLaneTokens;
    float score[kLaneTokens] = {};
    for_each_head<G>([&](auto index) {
      constexpr int h = decltype(index)::value;
      if (h >= group) return;
      for (int i = 0; i < kLaneTokens; ++i) {
        if (!live || begin + at + i >= scan.end) s[h][i] = -infinity;
        score[i] += rank.sum_logits ? s[h][i] : share_of(s[h][i], taken_off[h]);
      }
      float* const out = scan.logits + (first + h) * scan.stride + place;
      for (int i = 0; i < kLaneTokens; i += 4) {
        store16(out + i, {bits_of(s[h][i]), bits_of(s[h][i + 1]), bits_of(s[h][i + 2]), bits_of(s[h][i + 3])});
      }
    });
    keep_keys(score, limit - place, rank.keys + list * scan.stride + place,
              rank.key_chunk_max + list * scan.partials.stride + chunk, bins);
  }
  merge_bins(bins, rank.histogram + list * kBins);
}

}  // namespace
}  // namespace hayloft::gpu::cuda
