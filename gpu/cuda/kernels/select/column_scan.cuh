#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/kernels/columns/columns.cuh"
#include "gpu/cuda/kernels/last_block.cuh"
#include "gpu/cuda/kernels/select/normalise.cuh"
#include "gpu/cuda/kernels/select/scan.h"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/cuda/memory/column_source.h"

// The one pass over the chosen columns. Bound by the link the columns come over, so it does everything that needs no
// second look while it is there: scores all query heads of the KV head, and keeps each one's softmax per chunk. Where
// the device has the columns it keeps bounds of the scores instead of them (strips.h).
//
// A link of 1 to 2 us and 25 to 55 GB/s needs 50 to 100 KB on the way at any time. A lane asks for 8 consecutive tokens
// of 8 components (4 for groups above 8, whose sums fill the registers) before it uses the first of them: 4 KiB (f16),
// 2 KiB (int8) or 1 KiB (int4) a warp, on every multiprocessor 8 warps or more. A warp's request is 512, 256 or 128
// contiguous bytes. A block's are 2,048 consecutive tokens, in f16 a whole page of 4 KiB that no other block asks for:
// a device knows the addresses of only so many of the host's pages at a time.
//
// By its instruction count the link stays the bound: for 256 tokens of r = 16 columns a warp issues about 1,400 (f16),
// 1,700 (int8) or 1,800 (int4) instructions with four query heads, and a small card of 34 multiprocessors at 2.5 GHz
// can issue 340 billion a second, those apart that it issues at less than full rate, conversions and shuffles: at most
// enough for 2,000, 860 or 420 GB/s of columns. With 16 query heads it is 4,400 to
// 4,800, enough for 630, 300 or 150 GB/s: there int4 has little to spare when the link is a fast one.
namespace hayloft::gpu::cuda {

inline constexpr int kLaneTokens = kChunkTokens / kWarp;  // tokens per lane; 16 bytes of f16
inline constexpr int kScanThreads = 256;
inline constexpr int kTileScales = 64;  // scales per component and tile: one line of 128 bytes
static_assert(kLaneTokens == 8);

__host__ __device__ constexpr std::int64_t tile_tokens(int scale_shift) {
  return std::int64_t{kTileScales} << scale_shift;
}

// Components asked for at a time. More would not fit the registers.
template <int G>
inline constexpr int kAhead = G > 8 ? 4 : 8;

// Dynamic shared memory of scan_columns: weights f32 [r'][G], offsets u32 [r'], scales f16 [r'][kTileScales], where r'
// is r rounded up to a multiple of kAhead.
template <int G>
__host__ __device__ constexpr int padded_rank(int rank) {
  return (rank + kAhead<G> - 1) / kAhead<G> * kAhead<G>;
}
template <offload::ColumnFormat format, int G>
constexpr unsigned scan_shared_bytes(int rank) {
  constexpr unsigned scales = kScaled<format> ? kTileScales * sizeof(f16) : 0;
  return static_cast<unsigned>(padded_rank<G>(rank)) * (G * sizeof(float) + sizeof(unsigned) + scales);
}

// The runs of one block that the device has or is to have, as a lane sees them. Writes what was read from the host to
// the slots that are to be filled, once: by the blocks of threads of the group's first query heads.
struct CachedRuns {
  std::byte* base = nullptr;              // of the CachedBlock
  const std::uint32_t* places = nullptr;  // of the KV head

  __device__ CachedRuns() {}
  __device__ CachedRuns(const ColumnSource& source, std::int64_t position, int kv_head)
      : base(source.cached.blocks[source.block(position)].base),
        places(source.cached.of(source.block(position), kv_head)) {}

  __device__ static std::uint64_t offset(std::uint32_t place) { return place & ~kPlaceFlags; }
  __device__ static bool fills(std::uint32_t place) { return (place & kFilled) != 0 && blockIdx.z == 0; }
  // `elsewhere`, or so many bytes into the slot that holds the run; in a kernel behind the one that fills slots
  // (`filled`), also into one that it has filled.
  template <bool filled = false>
  __device__ const std::byte* from(std::uint32_t place, std::uint64_t within, const std::byte* elsewhere) const {
    return (place & (filled ? kHeld | kFilled : kHeld)) != 0 ? base + offset(place) + within : elsewhere;
  }
};

// Whole columns, which may also have been fetched ahead. Planes have not, and no registers left for it.
struct CachedColumns : CachedRuns {
  const std::byte* ahead;  // of the block

  __device__ CachedColumns(const ColumnSource& source, std::int64_t position, int kv_head)
      : CachedRuns(source, position, kv_head),
        ahead(source.cached.ahead + static_cast<std::uint64_t>(source.block(position)) * source.cached.ahead_bytes) {}

  template <bool filled = false>
  __device__ const std::byte* from(std::uint32_t place, std::uint64_t within, const std::byte* elsewhere) const {
    if ((place & kFetched) != 0) return ahead + offset(place) + within;
    return CachedRuns::from<filled>(place, within, elsewhere);
  }
};

// The scales of the tile's tokens [start, start + length), f16 [padded][kTileScales], zero where there is no token or
// no component. Eight at a time where they lie together: the r = 16 components of a tile are then one load per thread,
// and a warp asks for whole lines of four of them.
template <bool Cached>
__device__ inline void fetch_scales(const ColumnSource& source, int head, const std::int32_t* components, int rank,
                                    std::int64_t start, int length, int padded, f16* scales) {
  constexpr int together = 8;
  const bool vectors = source.block_shift - source.scale_shift >= 3;  // a block has as many, and a multiple of them
  const int each = vectors ? together : 1;
  for (int i = static_cast<int>(threadIdx.x) * each; i < padded * kTileScales; i += kScanThreads * each) {
    const int j = i / kTileScales;
    const int token = (i % kTileScales) << source.scale_shift;
    const f16* from = nullptr;
    f16* keep = nullptr;
    if (j < rank && token < length) {
      const std::int64_t position = start + token;
      const std::int64_t scale = source.slot(position) >> source.scale_shift;
      const std::byte* row = source.head(position, head) + source.scales_offset +
                             (source.gathered ? j : components[j]) * source.scale_bytes;
      if constexpr (Cached) {
        const CachedColumns cached(source, position, head);
        const std::uint32_t place = cached.places[j];
        row = cached.from(place, source.column_bytes, row);
        if (cached.fills(place)) {
          keep = reinterpret_cast<f16*>(cached.base + cached.offset(place) + source.column_bytes) + scale;
        }
      }
      from = reinterpret_cast<const f16*>(row) + scale;
    }
    if (vectors) {
      const uint4 eight = from ? load16_once(from) : uint4{};
      *reinterpret_cast<uint4*>(scales + i) = eight;
      if (Cached && keep) store16(keep, eight);
    } else {
      const f16 one = from ? *from : f16{0};
      scales[i] = one;
      if (Cached && keep) *keep = one;
    }
  }
}

// Counts the bytes of static shared memory that scan_columns has.
inline constexpr unsigned kScanStaticBytes = (kNormalisedHeads * kScanThreads / kWarp + 4) * sizeof(float);
static_assert(kScanThreads == kSelectThreads);

// Says where a lane's tokens of the chosen components are, which score_lane() takes in their order: turn(j) comes
// before at(j) and so many behind it. Where something keeps what has come, keep() is told it.
//
// All in one block of the host's: `offsets` from `column`.
struct HostLane {
  const std::byte* column;
  const unsigned* offsets;

  __device__ void turn(int) {}
  __device__ const std::byte* at(int j) const { return column + offsets[j]; }
  __device__ static constexpr bool keeps() { return false; }
  template <class Bits>
  __device__ void keep(int, const Bits&) const {}
};

// Some in slots of the device, and all tokens of a warp in one block: each lane finds out about one component of 32 and
// tells the others. Slots that are to be filled are filled with what came from the host, if the lane's tokens are
// `live`.
struct PassingLane {
  const std::byte* columns;  // of the block and head
  const unsigned* offsets;
  CachedColumns cached;
  std::uint64_t within;  // bytes into a column, of the lane's tokens
  bool live;
  int rank;
  std::uint64_t own = 0;
  unsigned filled = 0;  // a bit for each component of the turn

  __device__ void turn(int j) {
    if (j % kWarp != 0) return;
    const int i = j + static_cast<int>(threadIdx.x) % kWarp;
    const std::uint32_t place = i < rank ? cached.places[i] : 0;
    own = reinterpret_cast<std::uint64_t>(cached.from(place, 0, columns + (i < rank ? offsets[i] : 0)));
    filled = ballot(CachedRuns::fills(place));
  }
  __device__ const std::byte* at(int j) const {
    return reinterpret_cast<const std::byte*>(shuffle(own, j % kWarp)) + within;
  }
  __device__ bool keeps() const { return filled != 0; }
  template <class Bits>
  __device__ void keep(int j, const Bits& bits) const {
    if ((filled >> (j % kWarp) & 1u) == 0 || !live) return;
    *reinterpret_cast<Bits*>(cached.base + CachedRuns::offset(cached.places[j]) + within) = bits;
  }
};

// s[h][i] = sum over the chosen components, in their order, of weight times the lane's i-th token: one fused
// multiply-add each. `scale_of` is the lane's scale in each component's row of `scales`. Called by whole warps.
template <offload::ColumnFormat format, int G, int scales = kTileScales, class Lane>
__device__ inline void score_lane(Lane& lane, const float* weights, const f16* scale_of, int rank,
                                  float (&s)[G][kLaneTokens]) {
  using Tokens = ColumnBits<format>;
  for (int j = 0; j < rank; j += kAhead<G>) {
    typename Tokens::Bits bits[kAhead<G>] = {};  // past the rank zeros, with zero weights
    lane.turn(j);
    for (int u = 0; u < kAhead<G>; ++u) {
      if (j + u < rank) bits[u] = Tokens::load(lane.at(j + u));
    }
    warp_barrier();  // keeps the compiler from moving loads down to their first use, one after the other
    for (int u = 0; u < kAhead<G> && lane.keeps(); ++u) lane.keep(j + u, bits[u]);
    for (int u = 0; u < kAhead<G>; ++u) {
      float x[kLaneTokens];
      const float scale = kScaled<format> ? widen(scale_of[(j + u) * scales]) : 1.0f;
      Tokens::widen_to(bits[u], scale, x);
      for (int h = 0; h < G; ++h) {
        const float weight = weights[(j + u) * G + h];
        for (int i = 0; i < kLaneTokens; ++i) s[h][i] = fmaf(weight, x[i], s[h][i]);
      }
    }
  }
}

// A softmax over the warp's tokens. What fast_exp is off by grows with the distance from the largest logit, slower than
// the terms shrink.
struct Part {
  float max;
  float sum;
  float strip;  // the largest logit of the lane's strip, if any is a number
};
// Over the four lanes that score a strip.
__device__ inline float strip_max_of(const float (&s)[kLaneTokens]) {
  static_assert(4 * kLaneTokens == kStripTokens);
  float max = s[0];
  for (int i = 1; i < kLaneTokens; ++i) max = fmaxf(max, s[i]);
  for (int mask = 1; mask < 4; mask *= 2) max = fmaxf(max, shuffle_xor(max, mask));
  return max;
}
__device__ inline Part part_of(const float (&s)[kLaneTokens]) {
  const float strip = strip_max_of(s);
  float max = strip;
  for (int mask = 4; mask < kWarp; mask *= 2) max = fmaxf(max, shuffle_xor(max, mask));
  const float reference = max == -__builtin_inff() ? 0.0f : max;
  float sum = 0;
  for (int i = 0; i < kLaneTokens; ++i) sum += fast_exp(s[i] - reference);
  return {max, warp_sum(sum), strip};
}

// Each head's softmax over the warp's tokens, of the chunk that is `chunk`th in the rows of partials from `row` on, and
// with kStrips its strips' largest logits, if they are wanted. Lane h writes the softmax of head h; of a strip's four
// lanes each writes the largest logit of every fourth head.
template <int G, bool kStrips>
__device__ inline void write_parts(const float (&s)[G][kLaneTokens], int heads, std::int64_t row, std::int64_t chunk,
                                   const ColumnScan& scan) {
  constexpr int lanes = kStripTokens / kLaneTokens, strips = kChunkTokens / kStripTokens;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t strip = chunk * strips + lane / lanes;
  const bool each = kStrips && scan.strip_max && !scan.strip_sums;
  Part own{};
  float largest = 0;
#ifdef __CUDACC__
#pragma unroll  // for compute_120 nvcc does not by itself with 16 heads, and their scores leave the registers
#endif
  for (int h = 0; h < G; ++h) {
    const Part part = part_of(s[h]);
    if (lane == h) own = part;
    if (lane % lanes == h % lanes) largest = part.strip;
    const int writes = h - h % lanes + lane % lanes;
    if (each && (h % lanes == lanes - 1 || h == G - 1) && writes <= h && writes < heads) {
      scan.strip_max[(row + writes) * scan.strip_stride + strip] = largest;
    }
  }
  if (lane < heads) {
    const std::int64_t slot = (row + lane) * scan.partials.stride + chunk;
    scan.partials.max[slot] = own.max;
    scan.partials.sum[slot] = own.sum;
  }
  if (kStrips && scan.strip_max && scan.strip_sums) {
    float sum[kLaneTokens] = {};
    for (int h = 0; h < G; ++h) {
      if (h < heads) {
        for (int i = 0; i < kLaneTokens; ++i) sum[i] += s[h][i];
      }
    }
    const float most = strip_max_of(sum);
    if (lane % lanes == 0) scan.strip_max[row / scan.group * scan.strip_stride + strip] = most;
  }
}

// Loads those of G query heads of the KV head from the group's `first` on, f32 [padded][G]: zero past the rank and past
// the group.
template <int G>
__device__ inline void load_weights(const ColumnScan& scan, int head, int first, int padded, float* weights) {
  for (int j = threadIdx.x; j < padded; j += kScanThreads) {
    for (int h = 0; h < G; ++h) {
      const std::int64_t query_head = static_cast<std::int64_t>(head) * scan.group + first + h;
      const bool chosen = j < scan.rank && first + h < scan.group;
      weights[j * G + h] = chosen ? scan.weights[query_head * scan.rank + j] : 0.0f;
    }
  }
}

namespace {  // so that the fibers' double guards its static shared memory

// Grid: tiles (as many blocks as are useful, each takes every gridDim.x-th), KV heads, and pieces of G query heads of
// the group. G is the group size rounded up to a power of two; heads beyond the group have zero weights.
// Cached: whether some runs come from the device. The last block of a KV head normalises, if that is wanted.
template <offload::ColumnFormat format, int G, bool Cached>
__global__ __launch_bounds__(kScanThreads, G > 4 ? 1 : 2) void scan_columns(ColumnSource source, ColumnScan scan,
                                                                            Normalising normalising) {
  constexpr bool scaled = kScaled<format>;
  constexpr float infinity = __builtin_inff();
  const int padded = padded_rank<G>(scan.rank);
  float* weights = reinterpret_cast<float*>(dynamic_shared());
  unsigned* offsets = reinterpret_cast<unsigned*>(weights + padded * G);
  f16* scales = reinterpret_cast<f16*>(offsets + padded);
  __shared__ float scratch[kNormalisedHeads * kScanThreads / kWarp];
  __shared__ bool last;
  const int head = scan.head + static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.z) * G;  // of the group
  const int heads = scan.group - first < G ? scan.group - first : G;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  const std::int32_t* components = scan.components + static_cast<std::int64_t>(head) * scan.rank;
  load_weights<G>(scan, head, first, padded, weights);
  for (int j = threadIdx.x; j < scan.rank; j += kScanThreads) {
    offsets[j] = static_cast<unsigned>((source.gathered ? j : components[j]) * source.column_bytes);
  }
  __syncthreads();

  const std::int64_t tile = tile_tokens(source.scale_shift);
  const int source_head = source.gathered ? 0 : head;
  const std::int64_t row = static_cast<std::int64_t>(head - scan.first_head) * scan.group + first;
  for (std::int64_t start = scan.begin + blockIdx.x * tile; start < scan.end; start += gridDim.x * tile) {
    const int length = static_cast<int>(scan.end - start < tile ? scan.end - start : tile);
    if (scaled) {
      __syncthreads();  // the last tile's scales are still in use
      fetch_scales<Cached>(source, source_head, components, scan.rank, start, length, padded, scales);
      __syncthreads();
    }
    for (int chunk = warp * kChunkTokens; chunk < length; chunk += kScanThreads / kWarp * kChunkTokens) {
      const int token = chunk + lane * kLaneTokens;
      float s[G][kLaneTokens] = {};
      const int live = token < length ? token : 0;  // a lane past the end reads what it then drops
      const auto within =
          static_cast<std::uint64_t>(source.slot(start + live) / kLaneTokens * ColumnBits<format>::bytes);
      const f16* const scale_of = scales + (live >> source.scale_shift);
      if constexpr (Cached) {  // in blocks of whole chunks
        PassingLane from{source.head(start + chunk, source_head) + source.columns_offset,
                         offsets,
                         CachedColumns(source, start + chunk, source_head),
                         within,
                         token < length,
                         scan.rank};
        score_lane<format, G>(from, weights, scale_of, scan.rank, s);
      } else {
        HostLane from{source.head(start + live, source_head) + source.columns_offset + within, offsets};
        score_lane<format, G>(from, weights, scale_of, scan.rank, s);
      }
      if (chunk + kChunkTokens > length) {  // the store's last chunk
        for (int h = 0; h < G; ++h) {
          for (int i = 0; i < kLaneTokens; ++i) {
            if (token + i >= length) s[h][i] = -infinity;
          }
        }
      }
      for (int h = 0; h < G; ++h) {
        if (scan.logits && h < heads) {
          float* out = scan.logits + (row + h) * scan.stride + start + token;
          for (int i = 0; i < kLaneTokens; i += 4) {
            store16(out + i, {bits_of(s[h][i]), bits_of(s[h][i + 1]), bits_of(s[h][i + 2]), bits_of(s[h][i + 3])});
          }
        }
      }
      write_parts<G, true>(s, heads, row, (start + chunk) / kChunkTokens, scan);
    }
  }
  if constexpr (G <= cuda_most_normalised_heads) {
    if (!normalising.out) return;
    const int list = head - scan.first_head;
    if (!is_last_block(normalising.counters + list, gridDim.x * gridDim.z, last)) return;
    constexpr int together = G < kNormalisedHeads ? 1 : kNormalisedHeads;
    for (int h = 0; h < scan.group; h += together) {
      const int count = scan.group - h < together ? scan.group - h : together;
      normalise_heads<together>(normalising, scan.partials, std::int64_t{list} * scan.group + h, count, scratch);
    }
  }
}

}  // namespace
}  // namespace hayloft::gpu::cuda
