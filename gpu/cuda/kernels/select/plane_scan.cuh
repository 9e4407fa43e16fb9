#pragma once

#include "gpu/cuda/kernels/select/column_scan.cuh"

// The scan of column_scan.cuh over columns in bit planes (offload/store/planes.h): of each component as many planes as
// choose_components() chose, or all.
//
// A tile is 2,048 tokens, a chunk of them for each warp of a block. Of a plane it has 256 bytes, two whole lines, which
// 16 threads ask for; of a component's ranges 32. They come in turns of up to 32 planes by way of shared memory: of the
// next turn, in registers, up to 8 KiB are on their way while this one is scored, 256 bytes a plane, and a
// multiprocessor has two blocks (one for groups above 4).
//
// A lane scores tokens 4 n + i, n = 0..7, of the 32 that its word of a plane has: one rotation and one mask make its
// bits of a plane, and those of all planes together are eight codes of four bits.
namespace hayloft::gpu::cuda {

inline constexpr int kPlanes = offload::plane_count;
inline constexpr int kPlaneTile = kScanThreads / kWarp * kChunkTokens;  // tokens
inline constexpr int kPlaneWords = kPlaneTile / 32;                     // of 32 tokens, of a plane
inline constexpr int kPieceTokens = 128;                                // 16 bytes of a plane
inline constexpr int kPieces = kPlaneTile / kPieceTokens;
inline constexpr int kPieceLoads = 2;  // of a thread in a turn
inline constexpr int kTurnPlanes = kScanThreads / kPieces * kPieceLoads;
inline constexpr int kTurnRanges = kScanThreads;  // one for each thread
static_assert(kPlaneTile == 2048 && kTurnPlanes == 32);

// Where a turn begins: so many components, and so many planes of them, were in the turns before it.
struct PlaneTurn {
  std::uint16_t components;
  std::uint16_t planes;
};

// What a block has in its dynamic shared memory.
struct PlaneTables {
  unsigned* words;    // [kTurnPlanes][kPlaneWords], of a turn
  float2* ranges;     // [components of a turn][ranges of a tile]: a 16th of the half-width and more, and the centre
  float* weights;     // [r][G]
  unsigned* offsets;  // [planes] bytes from a head's columns to each plane that is read
  unsigned* range_offsets;  // [r] bytes from a head's ranges to those of each component
  PlaneTurn* turns;         // [turns + 1]
};
template <int G>
__host__ __device__ constexpr unsigned plane_shared_bytes(int rank, int planes) {
  constexpr unsigned turn = kTurnPlanes * kPlaneWords * sizeof(unsigned) + kTurnRanges * sizeof(float2);
  return turn + static_cast<unsigned>(rank) * (G * sizeof(float) + sizeof(unsigned) + sizeof(PlaneTurn)) +
         static_cast<unsigned>(planes) * sizeof(unsigned) + sizeof(PlaneTurn);
}
template <int G>
__device__ inline PlaneTables plane_tables(unsigned char* memory, int rank, int planes) {
  PlaneTables tables;
  tables.words = reinterpret_cast<unsigned*>(memory);
  tables.ranges = reinterpret_cast<float2*>(tables.words + kTurnPlanes * kPlaneWords);
  tables.weights = reinterpret_cast<float*>(tables.ranges + kTurnRanges);
  tables.offsets = reinterpret_cast<unsigned*>(tables.weights + rank * G);
  tables.range_offsets = tables.offsets + planes;
  tables.turns = reinterpret_cast<PlaneTurn*>(tables.range_offsets + rank);
  return tables;
}

// through[p - 1] components, the first ones, have p planes or more that are read.
struct Depths {
  int through[kPlanes];

  __device__ int planes_of(int component) const {
    int planes = 0;
    for (int p = 0; p < kPlanes; ++p) planes += component < through[p] ? 1 : 0;
    return planes;
  }
  __device__ int planes_before(int component) const {
    int planes = 0;
    for (int p = 0; p < kPlanes; ++p) planes += min(component, through[p]);
    return planes;
  }
  // Where a turn ends that begins with a component and takes at most so many.
  __device__ int turn_end(int component, int most) const {
    int room = kTurnPlanes, end = component;
    for (int p = kPlanes; p > 0; --p) {
      const int count = max(0, min(min(through[p - 1] - end, room / p), component + most - end));
      end += count;
      room -= count * p;
      if (end < through[p - 1]) break;  // more of these come first
    }
    return end;
  }
};

// A piece of a plane, `offset` bytes from its head's columns; zeros where no block has memory for it.
__device__ inline uint4 load_piece(const ColumnSource& source, int head, unsigned offset, std::int64_t position,
                                   std::int64_t end) {
  const auto at = [&](std::int64_t token) {
    return source.head(token, head) + source.columns_offset + offset + source.slot(token) / 8;
  };
  if (source.block_shift >= 7) return load16_once(at(position));
  unsigned words[4] = {};
  for (int i = 0; i < 4; ++i) {
    const std::int64_t token = position + 32 * i;
    if (token >= end) continue;
    if (source.block_shift >= 5) {
      words[i] = load4_once(at(token));
    } else {  // blocks of 16 tokens
      words[i] = *reinterpret_cast<const std::uint16_t*>(at(token));
      if (token + 16 < end) {
        words[i] |= static_cast<unsigned>(*reinterpret_cast<const std::uint16_t*>(at(token + 16))) << 16;
      }
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// What a thread brings in of a turn.
struct PlaneLoads {
  uint4 pieces[kPieceLoads];
  unsigned range;
};
__device__ inline void load_turn(const ColumnSource& source, int head, const PlaneTables& tables, int turn,
                                 std::int64_t start, std::int64_t end, PlaneLoads& loads) {
  const PlaneTurn first = tables.turns[turn], last = tables.turns[turn + 1];
  const int thread = threadIdx.x;
  const std::int64_t position = start + thread % kPieces * kPieceTokens;
  for (int i = 0; i < kPieceLoads; ++i) {
    const int plane = first.planes + thread / kPieces + i * (kScanThreads / kPieces);
    loads.pieces[i] = {};
    if (plane < last.planes && position < end) {
      loads.pieces[i] = load_piece(source, head, tables.offsets[plane], position, end);
    }
  }
  const int ranges = kPlaneTile >> source.scale_shift;
  const int component = first.components + thread / ranges;
  const std::int64_t token = start + (static_cast<std::int64_t>(thread % ranges) << source.scale_shift);
  loads.range = 0;
  if (component < last.components && token < end) {
    loads.range = load4_once(source.head(token, head) + source.scales_offset + tables.range_offsets[component] +
                             (source.slot(token) >> source.scale_shift) * sizeof(unsigned));
  }
}

// A key is centre + half * plane_step(p) * (2 c + 1 - 2^p) for the first p bits of a code, c; the same number as with
// the step times 2^(p - 4) and (2 c + 1 - 2^p) 2^(4 - p), which is twice the code of four bits in the middle of the
// cell, less 16 (15 where p = 4).
__device__ inline float2 range_of(unsigned bits, int planes) {
  const float2 range = widen_pair(bits);  // centre, half
  const float step = planes == 1 ? 0.046875f : planes == 2 ? 0.0546875f : 0.0625f;
  return {range.y * step, range.x};
}

__device__ inline void keep_turn(const ColumnSource& source, const PlaneTables& tables, const Depths& depths, int turn,
                                 const PlaneLoads& loads) {
  const int thread = threadIdx.x;
  for (int i = 0; i < kPieceLoads; ++i) {
    const int plane = thread / kPieces + i * (kScanThreads / kPieces);
    *reinterpret_cast<uint4*>(tables.words + plane * kPlaneWords + thread % kPieces * 4) = loads.pieces[i];
  }
  const int component = tables.turns[turn].components + thread / (kPlaneTile >> source.scale_shift);
  tables.ranges[thread] = range_of(loads.range, depths.planes_of(component));
}

// The lane's eight keys of a component, of which `planes` planes are read: `word` is the lane's of the first. A block
// of 16 tokens ends within a word: `low` is the range of the first four keys, `high` that of the others.
template <int planes>
__device__ inline void plane_keys(const unsigned* word, float2 low, float2 high, float (&x)[kLaneTokens]) {
  const int i = threadIdx.x % 4;
  if constexpr (planes == 1) {
    const unsigned bits = word[0] >> i;
    for (int n = 0; n < kLaneTokens; ++n) {
      const float2 range = n < 4 ? low : high;
      const float less = fmaf(range.x, -8.0f, range.y), more = fmaf(range.x, 8.0f, range.y);
      x[n] = (bits & 1u << 4 * n) != 0 ? more : less;
    }
  } else {
    unsigned codes = planes == 2 ? 0x22222222u : planes == 3 ? 0x11111111u : 0u;  // the middle of a cell
    for (int p = 0; p < planes; ++p) {
      codes |= rotate_right(word[p * kPlaneWords], i + 29 + p) & 0x88888888u >> p;  // from bit i of a nibble to 3 - p
    }
    for (int n = 0; n < kLaneTokens; ++n) {
      // In the mantissa of a number whose exponent makes the code's last bit 2.
      const int at = 1 + n % 4 * 4;
      const unsigned mantissa = (n < 4 ? codes << 1 : codes >> 15) & 15u << at;
      const float twice = float_of(mantissa | static_cast<unsigned>(151 - at) << 23);
      const float level = twice - static_cast<float>((1 << (24 - at)) + (planes == kPlanes ? 15 : 16));
      const float2 range = n < 4 ? low : high;
      x[n] = fmaf(range.x, level, range.y);
    }
  }
}

// Where a warp is in a turn.
struct PlaneCursor {
  const unsigned* word;  // the lane's, of the component's first plane
  const float2* low;     // the component's range of the lane's first four tokens
  const float2* high;    // and of the others
  const float* weights;  // [G]
  int component;
};

// s[h][n] += weight times the lane's n-th token: one fused multiply-add for each component before `end`, of all of
// which `planes` planes are read.
template <int planes, int G>
__device__ inline void score_planes(PlaneCursor& at, int end, int ranges, float (&s)[G][kLaneTokens]) {
  for (; at.component < end; ++at.component) {
    float x[kLaneTokens];
    plane_keys<planes>(at.word, *at.low, *at.high, x);
    for (int h = 0; h < G; ++h) {
      const float weight = at.weights[h];
      for (int n = 0; n < kLaneTokens; ++n) s[h][n] = fmaf(weight, x[n], s[h][n]);
    }
    at.word += planes * kPlaneWords;
    at.low += ranges;
    at.high += ranges;
    at.weights += G;
  }
}

// Grid as of scan_columns, in tiles of kPlaneTile.
template <int G>
__global__ __launch_bounds__(kScanThreads, G > 4 ? 1 : 2) void scan_planes(ColumnSource source, ColumnScan scan) {
  constexpr float infinity = __builtin_inff();
  __shared__ Depths depths;
  __shared__ int turns;
  const PlaneTables tables = plane_tables<G>(dynamic_shared(), scan.rank, scan.plane_total);
  const int head = scan.head + static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.z) * G;  // of the group
  const int heads = scan.group - first < G ? scan.group - first : G;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int ranges = kPlaneTile >> source.scale_shift;

  const std::int32_t* components = scan.components + static_cast<std::int64_t>(head) * scan.rank;
  const std::int32_t* planes = scan.planes ? scan.planes + static_cast<std::int64_t>(head) * scan.rank : nullptr;
  load_weights<G>(scan, head, first, scan.rank, tables.weights);
  if (threadIdx.x < kPlanes) depths.through[threadIdx.x] = planes ? 0 : scan.rank;
  __syncthreads();
  for (int j = threadIdx.x; planes && j < scan.rank; j += kScanThreads) {
    const int own = planes[j], next = j + 1 < scan.rank ? planes[j + 1] : 0;
    for (int p = next; p < own; ++p) depths.through[p] = j + 1;
  }
  __syncthreads();
  for (int j = threadIdx.x; j < scan.rank; j += kScanThreads) {
    const int before = depths.planes_before(j);
    for (int p = 0; p < depths.planes_of(j); ++p) {
      const std::uint64_t offset = source.gathered ? (before + p) * source.plane_bytes
                                                   : components[j] * source.column_bytes + p * source.plane_bytes;
      tables.offsets[before + p] = static_cast<unsigned>(offset);
    }
    tables.range_offsets[j] = static_cast<unsigned>((source.gathered ? j : components[j]) * source.scale_bytes);
  }
  if (threadIdx.x == 0) {
    int count = 0, component = 0;
    while (component < depths.through[0]) {
      const int planes_before = depths.planes_before(component);
      tables.turns[count++] = {static_cast<std::uint16_t>(component), static_cast<std::uint16_t>(planes_before)};
      component = depths.turn_end(component, kTurnRanges / ranges);
    }
    const int planes_before = depths.planes_before(component);
    tables.turns[count] = {static_cast<std::uint16_t>(component), static_cast<std::uint16_t>(planes_before)};
    turns = count;
  }
  __syncthreads();

  const int source_head = source.gathered ? 0 : head;
  const std::int64_t row = static_cast<std::int64_t>(head - scan.first_head) * scan.group + first;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kPlaneTile;
  const int chunk = warp * kChunkTokens;
  const int token = chunk + lane / 4 * 32 + lane % 4;  // the lane's first; its others are each 4 further
  PlaneLoads loads;
  std::int64_t start = scan.begin + static_cast<std::int64_t>(blockIdx.x) * kPlaneTile;
  if (start < scan.end) load_turn(source, source_head, tables, 0, start, scan.end, loads);
  for (; start < scan.end; start += stride) {
    const int length = static_cast<int>(scan.end - start < kPlaneTile ? scan.end - start : kPlaneTile);
    float s[G][kLaneTokens] = {};
    for (int turn = 0; turn < turns; ++turn) {
      __syncthreads();  // the last turn is still in use
      keep_turn(source, tables, depths, turn, loads);
      if (turn + 1 < turns) {
        load_turn(source, source_head, tables, turn + 1, start, scan.end, loads);
      } else if (start + stride < scan.end) {
        load_turn(source, source_head, tables, 0, start + stride, scan.end, loads);
      }
      __syncthreads();
      if (chunk >= length) continue;
      const int component = tables.turns[turn].components, end = tables.turns[turn + 1].components;
      PlaneCursor at{tables.words + token / 32, tables.ranges + (token >> source.scale_shift),
                     tables.ranges + ((token + 16) >> source.scale_shift), tables.weights + component * G, component};
      score_planes<4>(at, min(end, depths.through[3]), ranges, s);
      score_planes<3>(at, min(end, depths.through[2]), ranges, s);
      score_planes<2>(at, min(end, depths.through[1]), ranges, s);
      score_planes<1>(at, end, ranges, s);
    }
    if (chunk >= length) continue;
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
    write_parts<G>(s, heads, row, (start + chunk) / kChunkTokens, scan.partials);
  }
}

}  // namespace hayloft::gpu::cuda
