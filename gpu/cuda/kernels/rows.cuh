#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/kernels/quantised_rows.cuh"
#include "gpu/cuda/kernels/states.cuh"
#include "gpu/cuda/kernels/value_sums.cuh"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/cuda/memory/cached_block.h"
#include "gpu/cuda/memory/dense_rows.h"
#include "gpu/cuda/memory/device_store.h"
#include "gpu/cuda/memory/row_slots.h"

// Decode's attention over rows, wherever they lie: in the store, over the link; in the tail; in a buffer that the copy
// engine filled. A block of threads takes one piece of rows through shared memory, a tile of tile_rows() at a time, all
// of whose loads are under way before the first is used: at d = 128 that is 16 KiB per block, and a few blocks are
// enough to cover the link's latency. Each row is fetched once for row_heads() query heads of its KV head, which is all
// of them in any model that there is. Integer rows cross the link as they are stored and are turned into f16 in shared
// memory.
namespace hayloft::gpu::cuda {

inline constexpr int kRowWarps = 4;
inline constexpr int kRowThreads = kRowWarps * kWarp;

// Says how wide heads are by strips, pairs of components per lane. Of those of more than four a tile has half as many
// rows, and a block half as many query heads, so that both fit the 64 KiB of shared memory that a block of sm_75 has.
inline constexpr int kStripComponents = 2 * kWarp;
inline constexpr int kNarrowStrips = 4;
__host__ __device__ constexpr int strips_of(int head_dim) {
  return (head_dim + kStripComponents - 1) / kStripComponents;
}
// Rows of a tile: a lane scores a row, or two lanes do.
__host__ __device__ constexpr int tile_rows(int strips) {
  return strips > kNarrowStrips ? kWarp / 2 : kWarp;
}
// Query heads a block has room for; larger groups take several blocks.
__host__ __device__ constexpr int row_heads(int strips) {
  return strips > kNarrowStrips ? 8 : 16;
}

// Rows to attend to: [begin, end) of every list, cut into pieces of piece_rows.
struct RowPart {
  const std::int32_t* positions = nullptr;  // i32 [lists in all][stride]; null: row i is position i
  std::int64_t stride = 0;
  const std::int32_t* sizes = nullptr;  // i32 [lists in all]: the entries of each that are read; null: all
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int lists = 1;  // per KV head: one for all its query heads, or one for each
  int pieces = 0;
  std::int64_t piece_rows = 0;
  std::int64_t stored = 0;  // positions below this lie in the store, the others in `dense`
  DenseRows dense;          // its heads are the lists in all
  bool gathered = false;    // `dense` has, by their numbers, the rows that `positions` name in blocks out of reach

  __device__ int blocks() const { return pieces * lists; }
};

inline constexpr int kRowParts = 3;

// grid (Hkv, blocks of all parts and behind them of `values`, slices of row_heads() query heads), so that what every
// head reads over the link is under way before what lies on the device; a piece of part p goes to the slot of its
// number, counted from the first piece of the first part.
struct AttendRows {
  RowPart parts[kRowParts];
  DeviceStore store;
  RowPlaces cached;          // of the part that has lists
  const float* q = nullptr;  // f32 [Hq][d]
  int group = 0;
  int head_dim = 0;
  float scale = 0;  // 1 / sqrt(d)
  States states;    // slots from the first piece's on
  int first_slot = 0;
  bool resume = false;  // carry on from the states there, instead of from nothing
  ValueSums values;     // that are added up besides
};

// Shared memory, of tiles of n rows: q [heads][d] scaled, weights [heads][n], addresses [n], ranges [n] where rows may
// be integers, rows [n][2 d] (after the slots to be filled [n] where rows are cached) padded to an odd number of 16
// bytes, so that lanes reading a row each do not collide.
__host__ __device__ inline std::size_t row_pitch(int head_dim) {
  return sizeof(f16) * 2 * static_cast<std::size_t>(head_dim) + 16;
}
inline std::size_t attend_rows_shared_bytes(int heads, int head_dim, bool integers, bool cached) {
  const auto rows = static_cast<std::size_t>(tile_rows(strips_of(head_dim)));
  return (integers ? sizeof(int) * rows : 0) + (cached ? sizeof(std::byte*) * rows : 0) +
         sizeof(float) * static_cast<std::size_t>(heads) * (static_cast<std::size_t>(head_dim) + rows) +
         sizeof(f16*) * rows + row_pitch(head_dim) * rows;
}

// The 16 bytes of a tile that are a thread's turn: row by row, kRowThreads further at every step. One division for all.
struct TileWalk {
  int row_units;  // 16 bytes each
  int row;
  int unit;  // of the row

  __device__ explicit TileWalk(int head_dim)
      : row_units(head_dim / 4),
        row(static_cast<int>(threadIdx.x) / row_units),
        unit(static_cast<int>(threadIdx.x) % row_units) {}
  __device__ void step() {
    row += kRowThreads / row_units;
    unit += kRowThreads % row_units;
    if (unit >= row_units) {
      unit -= row_units;
      ++row;
    }
  }
};

// Brings n rows to `tile`, shared, and when `filling` to the slots that `fills` names. Units: how often a
// thread's turn comes. Called by whole warps.
template <int Units>
__device__ inline void fetch_rows(const f16* const* addresses, std::byte* const* fills, bool filling, int n,
                                  int head_dim, unsigned char* tile) {
  uint4 staged[Units];
  TileWalk from(head_dim);
  for (int u = 0; u < Units; ++u, from.step()) {
    if (from.row < n) staged[u] = load16_once(addresses[from.row] + from.unit * 8);
  }
  warp_barrier();  // keeps the compiler from moving loads down to their stores, one after the other
  TileWalk to(head_dim);
  for (int u = 0; u < Units; ++u, to.step()) {
    if (to.row >= n) continue;
    unsigned char* const at = tile + static_cast<std::size_t>(to.row) * row_pitch(head_dim) + to.unit * 16;
    *reinterpret_cast<uint4*>(at) = staged[u];
    if (filling && fills[to.row]) store16(fills[to.row] + to.unit * 16, staged[u]);
  }
}

// The same of rows some of which are integers: those of which `ranges` is not negative lie in the store, the others in
// device memory. A warp takes a fourth of them, all at once or, for the registers, half and half: brings their bytes to
// the front of their places in the tile, all loads under way before the first is used, and turns them there.
template <RowFormat format, int Strips>
__device__ inline void fetch_integer_rows(const DeviceStore& store, int kv_head, const f16* const* addresses,
                                          const int* ranges, std::byte* const* fills, bool filling, int n,
                                          unsigned char* tile) {
  constexpr int warp_rows = tile_rows(Strips) / kRowWarps, rows = Strips <= 2 ? warp_rows : warp_rows / 2;
  constexpr int most_dim = kStripComponents * Strips, group = kScaleElements<format>;
  constexpr int most_bytes = 2 * most_dim * kLevelBits<format> / 8 + 4 * ((most_dim + group - 1) / group);
  constexpr int turns = (rows * ((most_bytes + 7) / 8) + kWarp - 1) / kWarp;
  constexpr int octet_turns = (most_dim / 4 + kWarp - 1) / kWarp;
  const int d = store.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int of_warp = static_cast<int>(threadIdx.x) / kWarp * warp_rows;
  const auto place = [&](int row) { return tile + static_cast<std::size_t>(row) * row_pitch(d); };
  const int units = static_cast<int>(store.row_bytes) / 8;  // of a row
  const int octets = d / 4;
  // Each lane takes eight levels of a row, of as many rows as a warp has lanes for.
  const int together = octets < kWarp ? kWarp / octets : 1;
  const int of_lane = lane / octets < together ? lane / octets : warp_rows;

  for (int first = of_warp; first < min(of_warp + warp_rows, n); first += rows) {
    const int last = min(first + rows, n);
    uint2 staged[turns];
    int row = first + lane / units, unit = lane % units;
    const auto step = [&] {
      row += kWarp / units;
      unit += kWarp % units;
      if (unit >= units) {
        unit -= units;
        ++row;
      }
    };
    for (int turn = 0; turn < turns; ++turn, step()) {
      if (row < last && ranges[row] >= 0) staged[turn] = load8_once(addresses[row] + unit * 4);
    }
    warp_barrier();  // as in fetch_rows()
    row = first + lane / units, unit = lane % units;
    for (int turn = 0; turn < turns; ++turn, step()) {
      if (row >= last || ranges[row] < 0) continue;
      *reinterpret_cast<uint2*>(place(row) + unit * 8) = staged[turn];
      if (filling && fills[row]) *reinterpret_cast<uint2*>(fills[row] + unit * 8) = staged[turn];
    }
    for (int i = first; i < last; ++i) {
      if (ranges[i] >= 0) continue;
      for (int octet = lane; octet < octets; octet += kWarp) {
        *reinterpret_cast<uint4*>(place(i) + octet * 16) = load16_once(addresses[i] + octet * 8);
      }
    }
    warp_barrier();

    for (int begin = first; begin < last; begin += together) {
      const int mine = begin + of_lane;
      const bool live = mine < last && ranges[mine] >= 0;
      uint4 turned[octet_turns];
      for (int turn = 0; turn < octet_turns; ++turn) {
        const int octet = lane % octets + turn * kWarp;
        if (live && octet < octets) {
          turned[turn] = read_octet<format>(place(mine), store.ranges_of(kv_head, ranges[mine]), d, octet);
        }
      }
      warp_barrier();  // nothing of a row is written over before all of it has been read
      for (int turn = 0; turn < octet_turns; ++turn) {
        const int octet = lane % octets + turn * kWarp;
        if (live && octet < octets) *reinterpret_cast<uint4*>(place(mine) + octet * 16) = turned[turn];
      }
    }
  }
}

// Heads: query heads per warp; warp w has the block's heads w, w + 4, ... Strips: at least strips_of() d. Integers:
// whether the store's rows are. The least number of blocks per multiprocessor is what ptxas reaches without spilling
// registers.
template <int Heads, int Strips, bool Integers>
__global__ void __launch_bounds__(kRowThreads, Heads* Strips > 2 ? 2
                                               : Integers        ? 3
                                                                 : 4) attend_rows(const AttendRows a) {
  constexpr int rows = tile_rows(Strips), most_queries = row_heads(Strips);
  constexpr bool two_lanes = rows < kWarp;  // score a row
  const int d = a.head_dim;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int kv_head = static_cast<int>(blockIdx.x);

  int block = static_cast<int>(blockIdx.y);
  int slot = a.first_slot;
  RowPart part = a.parts[0];
  for (int p = 1; p < kRowParts; ++p) {
    if (block >= part.blocks()) {
      block -= part.blocks();
      slot += part.pieces;
      part = a.parts[p];
    }
  }
  if (block >= part.blocks()) {
    if (blockIdx.z == 0) sum_values(a.values, kv_head, block - part.blocks(), d);
    return;
  }
  const int list = block / part.pieces;
  const int piece = block % part.pieces;
  slot += piece;
  int first_query = static_cast<int>(blockIdx.z) * most_queries;
  int queries = a.group - first_query < most_queries ? a.group - first_query : most_queries;
  if (part.lists > 1) {
    if (blockIdx.z > 0) return;
    first_query = list;
    queries = 1;
  }
  first_query += kv_head * a.group;
  const std::int64_t begin = part.begin + piece * part.piece_rows;
  std::int64_t end = begin + part.piece_rows < part.end ? begin + part.piece_rows : part.end;
  const int list_in_all = kv_head * part.lists + list;
  if (part.sizes && part.sizes[list_in_all] < end) end = part.sizes[list_in_all];
  if (a.resume && begin >= end) return;  // its state stays as it is

  unsigned char* const shared = dynamic_shared();
  float* const q = reinterpret_cast<float*>(shared);
  float* const weights = q + Heads * kRowWarps * d;
  const f16** const addresses = reinterpret_cast<const f16**>(weights + Heads * kRowWarps * rows);
  int* const ranges = reinterpret_cast<int*>(addresses + rows);  // negative of f16
  std::byte** const fills = reinterpret_cast<std::byte**>(ranges + (Integers ? rows : 0));
  const bool filling = a.cached.places != nullptr;
  unsigned char* const tile = reinterpret_cast<unsigned char*>(fills + (filling ? rows : 0));

  for (int i = thread; i < queries * d; i += kRowThreads) {
    q[i] = a.q[static_cast<std::int64_t>(first_query) * d + i] * a.scale;
  }

  float max[Heads];
  float sum[Heads];
  float2 weighted[Heads][Strips];
  for (int h = 0; h < Heads; ++h) {
    const int head = warp + h * kRowWarps;
    const bool resumed = a.resume && head < queries;
    const std::int64_t state = static_cast<std::int64_t>(first_query + head) * a.states.slots + slot;
    max[h] = resumed ? a.states.max[state] : -INFINITY;
    sum[h] = resumed ? a.states.sum[state] : 0.0f;
    for (int s = 0; s < Strips; ++s) {
      const int pair = lane + s * kWarp;
      weighted[h][s] = resumed && pair < d / 2 ? reinterpret_cast<const float2*>(a.states.weighted + state * d)[pair]
                                               : float2{0.0f, 0.0f};
    }
  }

  for (std::int64_t at = begin; at < end; at += rows) {
    const int n = end - at < rows ? static_cast<int>(end - at) : rows;
    if (thread < n) {
      const std::int64_t entry = at + thread;
      const std::int64_t position = part.positions ? part.positions[list_in_all * part.stride + entry] : entry;
      const bool in_place = position < part.stored && (!part.gathered || a.store.reached(position));
      if (Integers && in_place) {
        addresses[thread] = reinterpret_cast<const f16*>(a.store.integer_row(kv_head, position));
      } else {
        addresses[thread] = in_place ? a.store.row(kv_head, position)
                                     : part.dense.row(list_in_all, part.gathered ? entry : position, d);
      }
      if (Integers) ranges[thread] = in_place ? a.store.range(position) : -1;
      if (filling) {
        const std::uint32_t at_slot = part.positions ? a.cached.places[list_in_all * part.stride + entry] : 0;
        std::byte* const slot_data = a.cached.slot(at_slot);
        if ((at_slot & kHeld) != 0) addresses[thread] = reinterpret_cast<const f16*>(slot_data);
        fills[thread] = (at_slot & kFilled) != 0 && blockIdx.z == 0 ? slot_data : nullptr;
      }
    }
    __syncthreads();
    if (!Integers || ballot(lane < n && ranges[lane] >= 0) == 0) {
      fetch_rows<Strips * rows / (kWarp / 4)>(addresses, fills, filling, n, d, tile);
    } else if (a.store.row_format == RowFormat::int8) {
      fetch_integer_rows<RowFormat::int8, Strips>(a.store, kv_head, addresses, ranges, fills, filling, n, tile);
    } else {
      fetch_integer_rows<RowFormat::int4, Strips>(a.store, kv_head, addresses, ranges, fills, filling, n, tile);
    }
    __syncthreads();
    if (warp < queries) {
      // Scores: a lane per row, or two that take turns at eight components. Heads that the group does not have score
      // the last one's query again; nobody looks.
      float2 score[Heads];
      for (int h = 0; h < Heads; ++h) score[h] = {0.0f, 0.0f};
      const bool live = lane < n;
      const int scored = two_lanes ? lane % rows : lane;
      const unsigned char* const key = tile + static_cast<std::size_t>(scored < n ? scored : 0) * row_pitch(d);
      for (int c = two_lanes ? lane / rows * 8 : 0; c < d; c += two_lanes ? 16 : 8) {
        const uint4 packed = load16(key + c * 2);
        const float2 k[4] = {widen_pair(packed.x), widen_pair(packed.y), widen_pair(packed.z), widen_pair(packed.w)};
        for (int h = 0; h < Heads; ++h) {
          const int head = warp + h * kRowWarps;
          const float4* const x = reinterpret_cast<const float4*>(q + (head < queries ? head : queries - 1) * d + c);
          const float4 low = x[0];
          const float4 high = x[1];
          score[h].x += low.x * k[0].x + low.z * k[1].x + high.x * k[2].x + high.z * k[3].x;
          score[h].y += low.y * k[0].y + low.w * k[1].y + high.y * k[2].y + high.w * k[3].y;
        }
      }
      // Softmax over the tile's rows under the running maximum.
      float* const weight = weights + warp * Heads * rows;
      for (int h = 0; h < Heads; ++h) {
        float all = score[h].x + score[h].y;
        if (two_lanes) all += shuffle_xor(all, rows);
        const float s = live ? all : -INFINITY;
        const float grown = fmaxf(max[h], warp_max(s));
        const float keep = rescale(max[h], grown);
        const float p = live ? expf(s - grown) : 0.0f;
        if (!two_lanes || lane < rows) weight[h * rows + lane] = p;
        max[h] = grown;
        sum[h] = sum[h] * keep + warp_sum(p);
        for (int s2 = 0; s2 < Strips; ++s2) {
          weighted[h][s2].x *= keep;
          weighted[h][s2].y *= keep;
        }
      }
      warp_barrier();
      // Weighted values: lanes share out a row's components.
      for (int row = 0; row < n; ++row) {
        const unsigned* const value =
            reinterpret_cast<const unsigned*>(tile + static_cast<std::size_t>(row) * row_pitch(d) + d * 2);
        for (int s = 0; s < Strips; ++s) {
          const int pair = lane + s * kWarp;
          const float2 v = pair < d / 2 ? widen_pair(value[pair]) : float2{0.0f, 0.0f};
          for (int h = 0; h < Heads; ++h) {
            const float p = weight[h * rows + row];
            weighted[h][s].x += p * v.x;
            weighted[h][s].y += p * v.y;
          }
        }
      }
    }
    // No barrier: what the next tile overwrites before its first one, addresses and ranges, was last read before this
    // one's second.
  }

  for (int h = 0; h < Heads; ++h) {
    const int head = warp + h * kRowWarps;
    if (head >= queries) continue;
    const std::int64_t state = static_cast<std::int64_t>(first_query + head) * a.states.slots + slot;
    for (int s = 0; s < Strips; ++s) {
      const int pair = lane + s * kWarp;
      if (pair < d / 2) reinterpret_cast<float2*>(a.states.weighted + state * d)[pair] = weighted[h][s];
    }
    if (lane == 0) {
      a.states.max[state] = max[h];
      a.states.sum[state] = sum[h];
    }
  }
}

}  // namespace hayloft::gpu::cuda
