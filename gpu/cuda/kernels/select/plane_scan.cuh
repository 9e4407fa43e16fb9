#pragma once

#include "gpu/cuda/kernels/select/plane_weights.cuh"

// The scan of column_scan.cuh over columns in bit planes (offload/store/planes.h), of each component as many planes as
// choose_components() chose, or all; in blocks of 256 tokens or more, so that a chunk is a quantisation group.
//
// A tile is 2,048 tokens, a chunk of them for each warp of a block. Of a plane it has 256 bytes, two whole lines, which
// 16 threads ask for; of a component's ranges 32. They come in turns of up to 32 planes by way of shared memory: of the
// next turn, in registers, up to 8 KiB are on their way while this one is scored, 256 bytes a plane, and a
// multiprocessor has two blocks (one for groups above 8).
//
// A lane scores tokens 4 n + i, n = 0..7, of the 32 that its word of a plane has: one rotation and one mask make its
// bits of a plane, and those of all planes together are eight codes of four bits. Sums are whole numbers of 16 bits,
// two in a register, and one multiply-add is for two tokens.
//
// By its instruction count the link stays the bound: for 256 tokens a warp issues about 1,040, 1,560 or 2,620
// instructions with four query heads for 16, 32 or 64 bits, and 1,470 for all planes of r = 16 components. The 340
// billion a second of column_scan.cuh's small card would do for 180, 245, 294 or 490 GB/s, somewhat less where integer
// multiply-adds have half the rate.
namespace hayloft::gpu::cuda {

inline constexpr int kTileGroups = kScanThreads / kWarp;       // chunks of a tile, one for each warp
inline constexpr int kPlaneTile = kTileGroups * kChunkTokens;  // tokens
inline constexpr int kPlaneWords = kPlaneTile / 32;            // of 32 tokens, of a plane
inline constexpr int kPieceTokens = 128;                       // 16 bytes of a plane
inline constexpr int kPieces = kPlaneTile / kPieceTokens;      // of a plane
inline constexpr int kPieceLoads = 2;                          // of a thread in a turn
inline constexpr int kTurnPlanes = kScanThreads / kPieces * kPieceLoads;
inline constexpr int kRangeLoads = 2;  // of a thread, ahead of the tile: as many as 64 components have
static_assert(kPlaneTile == 2048 && kTurnPlanes * kTileGroups == kScanThreads);

// The beginning of a turn: so many components, and so many planes of them, were in the turns before it.
struct PlaneTurn {
  std::uint16_t components;
  std::uint16_t planes;
};

// The dynamic shared memory of a block.
template <int G>
struct PlaneTables {
  unsigned* words;          // [kTurnPlanes][kPlaneWords], of a turn
  int* factors;             // [components of the turn][kTileGroups][G]: A_c of plane_weights.h
  unsigned* ranges;         // [r][kTileGroups], of a tile: centre and half-width
  float* weights;           // [r][G]
  PlaneScale* scales;       // [kTileGroups][G], of a tile
  unsigned* offsets;        // [planes] bytes from a head's columns to each plane that is read
  unsigned* range_offsets;  // [r] bytes from a head's ranges to those of each component
  PlaneTurn* turns;         // [turns + 1]

  __device__ PlaneTables(unsigned char* memory, int rank, int planes)
      : words(reinterpret_cast<unsigned*>(memory)),
        factors(reinterpret_cast<int*>(words + kTurnPlanes * kPlaneWords)),
        ranges(reinterpret_cast<unsigned*>(factors + kTurnPlanes * kTileGroups * G)),
        weights(reinterpret_cast<float*>(ranges + rank * kTileGroups)),
        scales(reinterpret_cast<PlaneScale*>(weights + rank * G)),
        offsets(reinterpret_cast<unsigned*>(scales + kTileGroups * G)),
        range_offsets(offsets + planes),
        turns(reinterpret_cast<PlaneTurn*>(range_offsets + rank)) {}
  __host__ __device__ static constexpr unsigned bytes(int rank, int planes) {
    const int words = kTurnPlanes * (kPlaneWords + kTileGroups * G) + 3 * kTileGroups * G;
    return sizeof(unsigned) * static_cast<unsigned>(words + rank * (kTileGroups + G + 2) + planes + 1);
  }
};

// Returns where a turn ends that begins with a component.
__device__ inline int turn_end(const Depths& depths, int component) {
  int room = kTurnPlanes, end = component;
  for (int p = kPlanes; p > 0; --p) {
    const int count = max(0, min(depths.through[p - 1] - end, room / p));
    end += count;
    room -= count * p;
    if (end < depths.through[p - 1]) break;  // more of these come first
  }
  return end;
}

// Finds where everything of a KV head lies, in turns. Returns how many; in every thread after the next barrier.
template <int G>
__device__ inline void lay_out(const ColumnSource& source, const std::int32_t* components, const Depths& depths,
                               const PlaneTables<G>& tables, int& turns) {
  for (int j = threadIdx.x; j < depths.used(); j += kScanThreads) {
    const int before = depths.planes_before(j);
    for (int p = 0; p < depths.planes_of(j); ++p) {
      const std::uint64_t offset = source.gathered ? (before + p) * source.plane_bytes
                                                   : components[j] * source.column_bytes + p * source.plane_bytes;
      tables.offsets[before + p] = static_cast<unsigned>(offset);
    }
    tables.range_offsets[j] = static_cast<unsigned>((source.gathered ? j : components[j]) * source.scale_bytes);
  }
  if (threadIdx.x != 0) return;
  turns = 0;
  for (int component = 0;; component = turn_end(depths, component)) {
    tables.turns[turns] = {static_cast<std::uint16_t>(component),
                           static_cast<std::uint16_t>(depths.planes_before(component))};
    if (component == depths.used()) return;
    ++turns;
  }
}

// The thread's pieces of a turn; zeros where there are none.
template <int G, bool Cached>
__device__ inline void load_turn(const ColumnSource& source, int head, const PlaneTables<G>& tables, int turn,
                                 std::int64_t start, std::int64_t end, uint4 (&pieces)[kPieceLoads]) {
  const PlaneTurn first = tables.turns[turn], last = tables.turns[turn + 1];
  const int thread = threadIdx.x;
  const std::int64_t position = start + thread % kPieces * kPieceTokens;
  for (int i = 0; i < kPieceLoads; ++i) {
    const int plane = first.planes + thread / kPieces + i * (kScanThreads / kPieces);
    pieces[i] = {};
    if (plane < last.planes && position < end) {
      const std::byte* from =
          source.head(position, head) + source.columns_offset + tables.offsets[plane] + source.slot(position) / 8;
      if constexpr (Cached) {
        const CachedRuns cached(source, position, head);
        from = cached.from(cached.places[plane], static_cast<std::uint64_t>(source.slot(position) / 8), from);
      }
      pieces[i] = load16_once(from);
    }
  }
}

// Writes those of them that came from the host to the slots that are to have them.
template <int G>
__device__ inline void fill_turn(const ColumnSource& source, int head, const PlaneTables<G>& tables, int turn,
                                 std::int64_t start, std::int64_t end, const uint4 (&pieces)[kPieceLoads]) {
  const PlaneTurn first = tables.turns[turn], last = tables.turns[turn + 1];
  const int thread = threadIdx.x;
  const std::int64_t position = start + thread % kPieces * kPieceTokens;
  for (int i = 0; i < kPieceLoads; ++i) {
    const int plane = first.planes + thread / kPieces + i * (kScanThreads / kPieces);
    if (plane >= last.planes || position >= end) continue;
    const CachedRuns cached(source, position, head);
    const std::uint32_t place = cached.places[plane];
    if (cached.fills(place)) store16(cached.base + cached.offset(place) + source.slot(position) / 8, pieces[i]);
  }
}

// The i-th range of a tile, in the order of PlaneTables::ranges.
template <int G, bool Cached>
__device__ inline unsigned load_range(const ColumnSource& source, int head, const PlaneTables<G>& tables,
                                      const Depths& depths, int i, std::int64_t start, std::int64_t end) {
  const std::int64_t position = start + i % kTileGroups * kChunkTokens;
  if (position >= end) return 0;
  const std::byte* ranges = source.head(position, head) + source.scales_offset + tables.range_offsets[i / kTileGroups];
  if constexpr (Cached) {
    const CachedRuns cached(source, position, head);
    ranges = cached.from(cached.places[depths.planes_before(i / kTileGroups)], source.plane_bytes, ranges);
  }
  return load4_once(ranges + source.slot(position) / kChunkTokens * sizeof(unsigned));
}
template <int G, bool Cached>
__device__ inline void load_ranges(const ColumnSource& source, int head, const PlaneTables<G>& tables,
                                   const Depths& depths, int count, std::int64_t start, std::int64_t end,
                                   unsigned (&ranges)[kRangeLoads]) {
  for (int i = 0; i < kRangeLoads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kScanThreads;
    if (at < count) ranges[i] = load_range<G, Cached>(source, head, tables, depths, at, start, end);
  }
}

// Writes such a range, if it came from the host, to the slot that is to have it: that of the component's first plane.
__device__ inline void fill_range(const ColumnSource& source, int head, const Depths& depths, int i, std::int64_t start,
                                  std::int64_t end, unsigned range) {
  const std::int64_t position = start + i % kTileGroups * kChunkTokens;
  if (position >= end) return;
  const CachedRuns cached(source, position, head);
  const std::uint32_t place = cached.places[depths.planes_before(i / kTileGroups)];
  if (!cached.fills(place)) return;
  std::byte* const ranges = cached.base + cached.offset(place) + source.plane_bytes;
  reinterpret_cast<unsigned*>(ranges)[source.slot(position) / kChunkTokens] = range;
}

// The pieces of a turn, and the weights of its components in each group of the tile.
template <int G>
__device__ inline void keep_turn(const PlaneTables<G>& tables, const Depths& depths, int turn,
                                 const uint4 (&pieces)[kPieceLoads]) {
  const int thread = threadIdx.x;
  for (int i = 0; i < kPieceLoads; ++i) {
    const int plane = thread / kPieces + i * (kScanThreads / kPieces);
    *reinterpret_cast<uint4*>(tables.words + plane * kPlaneWords + thread % kPieces * 4) = pieces[i];
  }
  const int component = tables.turns[turn].components + thread / kTileGroups, group = thread % kTileGroups;
  if (component >= tables.turns[turn + 1].components) return;
  const float step = plane_step_of(tables.ranges[component * kTileGroups + group], depths.planes_of(component));
  for (int h = 0; h < G; ++h) {
    tables.factors[thread * G + h] =
        plane_weight(tables.weights[component * G + h], step, tables.scales[group * G + h].inverse);
  }
}

// The place of a warp in a turn.
struct PlaneCursor {
  const unsigned* word;  // the lane's, of the component's first plane
  const int* factors;    // [G], of the component in the warp's group
  int component;
};

// Adds up the components before `end`, of all of which `planes` planes are read. sums[h][n] has in its halves the sums
// of the lane's tokens n and n + 4; what carries from one to the other on the way is gone at the end, when each has 16
// bits.
template <int planes, int G>
__device__ inline void score_planes(PlaneCursor& at, int end, unsigned (&sums)[G][kLaneTokens / 2]) {
  const int i = threadIdx.x % 4;
  for (; at.component < end; ++at.component) {
    unsigned codes = 0;  // bit i of each nibble of a word, to the code's bit in that nibble
    for (int p = 0; p < planes; ++p) {
      const int bit = planes - 1 - p;
      codes |= rotate_right(at.word[p * kPlaneWords], i + 32 - bit) & 0x11111111u << bit;
    }
    unsigned levels[kLaneTokens / 2];
    for (int n = 0; n < kLaneTokens / 2; ++n) {
      constexpr unsigned two = 0x10001, most = (1 << planes) - 1;
      levels[n] = 2 * (codes >> 4 * n & most * two) - most * two;
    }
    for (int h = 0; h < G; ++h) {
      const auto factor = static_cast<unsigned>(at.factors[h]);
      for (int n = 0; n < kLaneTokens / 2; ++n) sums[h][n] += factor * levels[n];
    }
    at.word += planes * kPlaneWords;
    at.factors += kTileGroups * G;
  }
}

// A sum of 16 bits to which 2^15 have been added, as a float.
__device__ inline float sum_of(unsigned half) {
  return float_of(half | 0x4b000000u) - (8388608.0f + 32768.0f);
}

// The static shared memory that a block has besides.
inline constexpr unsigned kPlaneStaticBytes = sizeof(Depths) + sizeof(int);

namespace {  // so that the fibers' double guards its static shared memory

// Grid as of scan_columns, in tiles of kPlaneTile.
template <int G, bool Cached>
__global__ __launch_bounds__(kScanThreads, G > 8 ? 1 : 2) void scan_planes(ColumnSource source, ColumnScan scan) {
  constexpr float infinity = __builtin_inff();
  __shared__ Depths depths;
  __shared__ int turns;
  const PlaneTables<G> tables(dynamic_shared(), scan.rank, scan.plane_total);
  const int head = scan.head + static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.z) * G;  // of the group
  const int heads = scan.group - first < G ? scan.group - first : G;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  load_weights<G>(scan, head, first, scan.rank, tables.weights);
  find_depths(scan, head, depths);
  lay_out(source, scan.components + static_cast<std::int64_t>(head) * scan.rank, depths, tables, turns);
  __syncthreads();

  const int source_head = source.gathered ? 0 : head;
  const std::int64_t row = static_cast<std::int64_t>(head - scan.first_head) * scan.group + first;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kPlaneTile;
  const int chunk = warp * kChunkTokens;
  const int token = chunk + lane / 4 * 32 + lane % 4;  // the lane's first; its others are each 4 further
  const int range_count = depths.used() * kTileGroups;
  uint4 pieces[kPieceLoads];
  unsigned ranges[kRangeLoads] = {};
  std::int64_t start = scan.begin + static_cast<std::int64_t>(blockIdx.x) * kPlaneTile;
  if (start < scan.end) {
    load_ranges<G, Cached>(source, source_head, tables, depths, range_count, start, scan.end, ranges);
    load_turn<G, Cached>(source, source_head, tables, 0, start, scan.end, pieces);
  }
  for (; start < scan.end; start += stride) {
    const int length = static_cast<int>(scan.end - start < kPlaneTile ? scan.end - start : kPlaneTile);
    __syncthreads();  // the last tile is still in use
    for (int i = threadIdx.x; i < range_count; i += kScanThreads) {
      const int load = i / kScanThreads;
      const unsigned range = load == 0 ? ranges[0]
                             : load == 1
                                 ? ranges[1]
                                 : load_range<G, Cached>(source, source_head, tables, depths, i, start, scan.end);
      tables.ranges[i] = range;
      if (Cached) fill_range(source, source_head, depths, i, start, scan.end, range);
    }
    __syncthreads();
    if (threadIdx.x < kTileGroups * G) {
      const int group = threadIdx.x / G, h = threadIdx.x % G;
      tables.scales[threadIdx.x] =
          plane_scale(tables.ranges + group, kTileGroups, tables.weights + h, G, depths, scan.plane_units);
    }
    unsigned sums[G][kLaneTokens / 2];
    for (int h = 0; h < G; ++h) {
      for (int n = 0; n < kLaneTokens / 2; ++n) sums[h][n] = 0x80008000u;
    }
    for (int turn = 0; turn < turns; ++turn) {
      __syncthreads();  // the last turn is still in use
      keep_turn(tables, depths, turn, pieces);
      if (Cached) fill_turn(source, source_head, tables, turn, start, scan.end, pieces);
      if (turn + 1 < turns) {
        load_turn<G, Cached>(source, source_head, tables, turn + 1, start, scan.end, pieces);
      } else if (start + stride < scan.end) {
        load_ranges<G, Cached>(source, source_head, tables, depths, range_count, start + stride, scan.end, ranges);
        load_turn<G, Cached>(source, source_head, tables, 0, start + stride, scan.end, pieces);
      }
      __syncthreads();
      if (chunk >= length) continue;
      const int end = tables.turns[turn + 1].components;
      PlaneCursor at{tables.words + token / 32, tables.factors + warp * G, tables.turns[turn].components};
      score_planes<4>(at, min(end, depths.through[3]), sums);
      score_planes<3>(at, min(end, depths.through[2]), sums);
      score_planes<2>(at, min(end, depths.through[1]), sums);
      score_planes<1>(at, end, sums);
    }
    if (chunk >= length) continue;
    float s[G][kLaneTokens];
    for (int h = 0; h < G; ++h) {
      const PlaneScale scale = tables.scales[warp * G + h];
      for (int n = 0; n < kLaneTokens / 2; ++n) {
        s[h][n] = fmaf(scale.unit, sum_of(sums[h][n] & 0xffff), scale.base);
        s[h][n + kLaneTokens / 2] = fmaf(scale.unit, sum_of(sums[h][n] >> 16), scale.base);
      }
    }
    if (chunk + kChunkTokens > length) {  // the store's last chunk
      for (int h = 0; h < G; ++h) {
        for (int n = 0; n < kLaneTokens; ++n) {
          if (token + 4 * n >= length) s[h][n] = -infinity;
        }
      }
    }
    for (int h = 0; h < G; ++h) {
      if (h < heads) {
        float* out = scan.logits + (row + h) * scan.stride + start + token;
        for (int n = 0; n < kLaneTokens; ++n) out[4 * n] = s[h][n];
      }
    }
    write_parts<G, false>(s, heads, row, (start + chunk) / kChunkTokens, scan);
  }
}

}  // namespace
}  // namespace hayloft::gpu::cuda
