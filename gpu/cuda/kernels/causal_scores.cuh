#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/causal_keys.cuh"
#include "gpu/cuda/kernels/causal_states.cuh"
#include "gpu/cuda/kernels/causal_tile.cuh"
#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/sparse_causal.h"

// The softmax of some queries of a prompt over all keys before them, block of keys by block: first the maximum and the
// sum of each query, then the masses of blocks. Keys are read twice for it, and no score is written.
namespace hayloft::gpu::cuda {

// Holds rows of the states, in groups of kTile whose masses are added up. Exponents are of two.
struct CausalSamples {
  const std::int32_t* rows = nullptr;  // [Hkv][count], of the states; negative where a group has no more
  int count = 0;                       // a multiple of kTile
  float* max = nullptr;                // f32 [parts][Hkv][count]
  float* sum = nullptr;                // f32 [parts][Hkv][count]; behind finish_samples() 1 / sum in the first part
  int parts = 0;                       // of the keys, which are read side by side
  int first = 0;                       // the first query's position
};

// Says what a lane has of its rows, as CausalRows does.
template <class Tile>
struct SampledRows {
  float scale[Tile::row_tiles][2];
  float max[Tile::row_tiles][2];
  float sum[Tile::row_tiles][2];
  int own[Tile::row_tiles][2];  // the row's token; less than all keys where there is no row
};

// Calls use(key) with the tile's scores from key `key` on, for all tiles of the block's part of the keys; they begin
// with whole blocks of keys.
template <class Tile, class Use>
__device__ inline void score_all(const CausalStates& states, const CausalKeys& keys, const CausalSamples& samples,
                                 int end_row, const Use& use) {
  f16* const q = reinterpret_cast<f16*>(dynamic_shared());
  f16* now = q + Tile::rows * Tile::D;
  f16* later = now + Tile::keys * Tile::D;
  const int kv_head = static_cast<int>(blockIdx.y), d = states.head_dim;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::rows;
  const std::int32_t* const rows = samples.rows + std::int64_t{kv_head} * samples.count;
  const std::int64_t stride = 2 * d;
  const f16* const from = keys.of_head(kv_head, d);

  const int aligned = (keys.begin + samples.first) / sparse_key_block * sparse_key_block - samples.first;
  const int tiles = (keys.end - aligned + Tile::keys - 1) / Tile::keys;
  const int part_tiles = (tiles + samples.parts - 1) / samples.parts;
  const int begin = aligned + static_cast<int>(blockIdx.z) * part_tiles * Tile::keys;
  const int end = min(keys.end, begin + part_tiles * Tile::keys);
  if (begin >= end) return;

  constexpr int vectors = Tile::D / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < Tile::rows * vectors; i += kCausalThreads) {
    const int row = i / vectors, vector = i % vectors;
    const int of = first_row + row < end_row ? rows[first_row + row] : -1;
    uint4 x{0, 0, 0, 0};
    if (of >= 0 && vector * kVector < d) x = load16(states.q + states.at(kv_head, of) * d + vector * kVector);
    *reinterpret_cast<uint4*>(q + Tile::at(row, vector)) = x;
  }
  // Keys may begin within a block: those of it before them are not there. bring_rows() leaves out those behind the end.
  const auto bring = [&](int key, f16* to) {
    if (key >= keys.begin) return bring_rows<Tile, Tile::keys>(from + key * stride, stride, keys.end - key, d, to);
    for (int i = static_cast<int>(threadIdx.x); i < Tile::keys * vectors; i += kCausalThreads) {
      const int at = key + i / vectors, vector = i % vectors;
      const bool there = at >= keys.begin && at < keys.end && vector * kVector < d;
      *reinterpret_cast<uint4*>(to + Tile::at(i / vectors, vector)) =
          there ? load16(from + at * stride + vector * kVector) : uint4{0, 0, 0, 0};
    }
  };
  bring(begin, now);
  const CausalLane lane = lane_of_tiles<Tile>();
  for (int key = begin; key < end; key += Tile::keys) {
    copies_arrived();
    __syncthreads();  // these keys are there, and nobody reads those of before
    if (key + Tile::keys < end) bring(key + Tile::keys, later);
    float s[Tile::row_tiles][2 * Tile::key_tiles][4];
    score_keys<Tile>(q, opaque(lane.q), now, opaque(lane.k), s);
    use(key, s);
    f16* const next = later;
    later = now;
    now = next;
  }
}

template <class Tile>
__device__ inline void begin_samples(const CausalStates& states, const CausalSamples& samples, int end_row,
                                     SampledRows<Tile>& mine) {
  const int kv_head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.x) * Tile::rows;
  for_rows<Tile>([&](int m, int half, int row) {
    const int of =
        first_row + row < end_row ? samples.rows[std::int64_t{kv_head} * samples.count + first_row + row] : -1;
    mine.scale[m][half] = of >= 0 ? states.scale[states.at(kv_head, of)] * kLog2OfE : 0;
    mine.own[m][half] = of >= 0 ? of / states.group : -0x7fffffff;
    mine.max[m][half] = -INFINITY;
    mine.sum[m][half] = 0;
  });
}

// grid (rows / tile's, Hkv, parts), dynamic shared memory Tile::shared_bytes. Takes keys into the maxima and the sums,
// which begin as none.
template <class Tile>
static __global__ void __launch_bounds__(kCausalThreads, 2)
    sum_samples(const CausalStates states, const CausalKeys keys, const CausalSamples samples) {
  SampledRows<Tile> mine;
  begin_samples<Tile>(states, samples, samples.count, mine);
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  score_all<Tile>(states, keys, samples, samples.count,
                  [&](int key, const float(&s)[Tile::row_tiles][2 * Tile::key_tiles][4]) {
                    HAYLOFT_UNROLL
                    for (int m = 0; m < Tile::row_tiles; ++m) {
                      HAYLOFT_UNROLL
                      for (int half = 0; half < 2; ++half) {
                        float x[2 * Tile::key_tiles][2];
                        float largest = mine.max[m][half];
                        HAYLOFT_UNROLL
                        for (int n = 0; n < 2 * Tile::key_tiles; ++n) {
                          HAYLOFT_UNROLL
                          for (int i = 0; i < 2; ++i) {
                            const int at = key + n * kHalfTile + column + i;
                            const bool seen = at >= keys.begin && at < keys.end && at <= mine.own[m][half];
                            x[n][i] = seen ? s[m][n][2 * half + i] * mine.scale[m][half] : -INFINITY;
                            largest = fmaxf(largest, x[n][i]);
                          }
                        }
                        const float base = largest == -INFINITY ? 0 : largest;
                        float sum = mine.sum[m][half] * fast_exp2(mine.max[m][half] - base);
                        HAYLOFT_UNROLL
                        for (int n = 0; n < 2 * Tile::key_tiles; ++n) {
                          sum += fast_exp2(x[n][0] - base) + fast_exp2(x[n][1] - base);
                        }
                        mine.max[m][half] = largest;
                        mine.sum[m][half] = sum;
                      }
                    }
                  });
  const int kv_head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.x) * Tile::rows;
  const std::int64_t part = (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + kv_head) * samples.count;
  for_rows<Tile>([&](int m, int half, int row) {
    const bool there = first_row + row < samples.count;
    const std::int64_t at = part + (there ? first_row + row : 0);
    const float before = there ? samples.max[at] : -INFINITY;
    if constexpr (Tile::parts == 1) {
      warp_barrier();  // all lanes have read the maximum
    } else {
      __syncthreads();  // likewise, of both warps
    }
    float largest = fmaxf(before, mine.max[m][half]);
    largest = fmaxf(largest, shuffle_xor(largest, 1));
    largest = fmaxf(largest, shuffle_xor(largest, 2));
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = mine.sum[m][half] * fast_exp2(mine.max[m][half] - base);
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    if (there && column == 0 && Tile::part() == 0) {
      samples.max[at] = largest;
      samples.sum[at] = samples.sum[at] * fast_exp2(before - base) + sum;
    }
  });
}

// A thread a row, of all KV heads. Nothing has been seen yet.
static __global__ void begin_sums(const CausalSamples samples, std::int64_t rows) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= rows * samples.parts) return;
  samples.max[at] = -INFINITY;
  samples.sum[at] = 0;
}

// Likewise. Leaves in the first part the maximum over all, and 1 / sum, 0 where there is no row.
static __global__ void finish_samples(const CausalSamples samples, std::int64_t rows) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= rows) return;
  float largest = -INFINITY, sum = 0;
  for (int part = 0; part < samples.parts; ++part) largest = fmaxf(largest, samples.max[part * rows + at]);
  const float base = largest == -INFINITY ? 0 : largest;
  for (int part = 0; part < samples.parts; ++part) {
    sum += samples.sum[part * rows + at] * fast_exp2(samples.max[part * rows + at] - base);
  }
  samples.max[at] = base;
  samples.sum[at] = sum > 0 ? 1 / sum : 0;
}

// Grid as of sum_samples(), of rows that choose alone, [0, rows). Adds to masses f32 [Hkv][rows / kTile][blocks] those
// of each group; of blocks of keys that some of its queries do not see they mean nothing.
template <class Tile>
static __global__ void __launch_bounds__(kCausalThreads, 2)
    add_masses(const CausalStates states, const CausalKeys keys, const CausalSamples samples, int rows, int blocks,
               float* masses) {
  SampledRows<Tile> mine;
  begin_samples<Tile>(states, samples, rows, mine);
  const int kv_head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.x) * Tile::rows;
  for_rows<Tile>([&](int m, int half, int row) {
    if (first_row + row >= rows) return;
    const std::int64_t at = std::int64_t{kv_head} * samples.count + first_row + row;
    mine.max[m][half] = samples.max[at];
    mine.sum[m][half] = samples.sum[at];
  });
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = Tile::row_warp();
  const int column = 2 * (lane % 4);
  const bool writes = Tile::parts == 1 ? lane == 0 : lane == 0 && Tile::part() == 0;
  score_all<Tile>(states, keys, samples, rows, [&](int key, const float(&s)[Tile::row_tiles][2 * Tile::key_tiles][4]) {
    HAYLOFT_UNROLL
    for (int m = 0; m < Tile::row_tiles; ++m) {
      const int group = first_row / kTile + warp * Tile::row_tiles + m;
      float* const to = masses + (std::int64_t{kv_head} * (rows / kTile) + group) * blocks;
      HAYLOFT_UNROLL
      for (int tile = 0; tile < Tile::key_tiles; ++tile) {
        float mass = 0;
        HAYLOFT_UNROLL
        for (int half = 0; half < 2; ++half) {
          float sum = 0;
          HAYLOFT_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int n = 2 * tile + i / 2, at = key + n * kHalfTile + column + i % 2;
            const float x = fast_exp2(s[m][n][2 * half + i % 2] * mine.scale[m][half] - mine.max[m][half]);
            sum += at >= keys.begin && at < keys.end ? x : 0;
          }
          mass += mine.sum[m][half] > 0 ? sum * mine.sum[m][half] : 0;
        }
        mass = warp_sum(mass);
        const int block = (key + samples.first) / sparse_key_block + tile;
        if (writes && group * kTile < rows && block < blocks) to[block] += mass;
      }
    }
  });
}

}  // namespace hayloft::gpu::cuda
