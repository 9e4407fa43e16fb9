#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/causal_states.cuh"
#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/cuda/kernels/warp.cuh"

// Does with a tile of keys what prefill's attention does: scores, online softmax and weighted values, of which neither
// scores nor weights leave the registers. It is FlashAttention-2 (arXiv:2307.08691), with all query heads of a KV head
// as rows of one matrix and with states that are carried from call to call.
namespace hayloft::gpu::cuda {

inline constexpr int kCausalWarps = 4;
inline constexpr int kCausalThreads = kCausalWarps * kWarp;
inline constexpr int kTile = 16;                  // rows, and keys or components, of a product of tensor cores
inline constexpr int kHalfTile = 8;               // columns of its result
inline constexpr int kVector = 16 / sizeof(f16);  // components of a piece of 16 bytes
// Tensor cores cut off what a sum does not hold, instead of rounding it, of every product by itself: up to 2^-23 of the
// sum each time, by which small weights behind a large one may be lost altogether. So they sum up so many keys, and
// what comes of these is added to the rest as f32 are: 2^-11 is lost at most, what the rounding of a weight may take as
// well. Four times as many sums take a tenth of the kernel's time on an H100.
inline constexpr int kSummedKeys = 4096;
inline constexpr unsigned kTwoOnes = 0x3c003c00;  // in f16

// Says what a block takes at a time, for heads of D components; others are padded with zeros. Sums of weighted values
// are in registers, queries and the tiles of K and V in 48 KiB of shared memory at most, so that two blocks fit a
// multiprocessor of any card; or in 64 KiB at most, for twice as many keys, where two of those fit. Sums of 512
// components do not fit a warp's registers: two warps have the same rows, each all of the scores and half of the values
// (`parts`), and a block has 64 KiB on every card.
template <int D_, bool wide_>
struct CausalTile {
  static constexpr int D = D_;
  static constexpr bool wide = wide_;
  static constexpr int row_tiles = D > 128 ? 1 : 2;  // of a warp
  static constexpr int parts = D > 256 ? 2 : 1;      // of the values
  static constexpr int row_warps = kCausalWarps / parts;
  static constexpr int rows = row_warps * row_tiles * kTile;
  static constexpr int keys = D <= 64 ? 64 : (D > 128 ? 16 : 32) * (wide ? 2 : 1);
  static constexpr int key_tiles = keys / kTile;
  static constexpr int tiles = D / kTile;            // of components
  static constexpr int part_tiles = tiles / parts;   // of those whose values a warp has
  static constexpr int part_components = D / parts;  // likewise
  // Rows that all threads or most of them bring at a time.
  static constexpr int pass = D > 256 ? 2 : D > 128 ? 4 : D > 64 ? 8 : 16;
  static constexpr unsigned shared_bytes = (rows + 2 * keys) * D * sizeof(f16);

  // Returns where a vector of a row lies, in f16: moved so that the same vector of eight rows behind one another lies
  // in as many banks, which load_matrices() reads at once.
  static constexpr int moved = D % 64 == 0 ? 7 : 3;  // bits of a vector's number
  __device__ static int at(int row, int vector) {
    const int by = D % 64 == 0 ? row & 7 : row >> 1 & 3;
    return (row * (D / kVector) + (vector ^ by)) * kVector;
  }
  // Returns at() of the same row and a vector farther on by an even number, where `first` is that of vector 0 or 1.
  __device__ static int farther(int first, int by) {
    return (first ^ (by & moved) * kVector) + (by & ~moved) * kVector;
  }
  // Returns which of the warps with rows of their own has the rows of this one, and which part of the values it has.
  __device__ static int row_warp() {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    return parts == 1 ? warp : warp % row_warps;
  }
  __device__ static int part() { return parts == 1 ? 0 : static_cast<int>(threadIdx.x) / (kWarp * row_warps); }
};

// Brings rows [0, there) of d components to shared memory, and zeros to those behind them and behind d.
template <class Tile, int rows>
__device__ inline void bring_rows(const f16* from, std::int64_t stride, int there, int d, f16* to) {
  constexpr int vectors = Tile::D / kVector, pass = Tile::pass;
  static_assert(pass * vectors <= kCausalThreads && rows % pass == 0);
  const int row = static_cast<int>(threadIdx.x) / vectors, vector = static_cast<int>(threadIdx.x) % vectors;
  if (row >= pass) return;
  from += row * stride + vector * kVector;
  HAYLOFT_UNROLL
  for (int first = 0; first < rows; first += pass, from += pass * stride) {
    f16* const at = to + Tile::at(first + row, vector);
    if (first + row < there && vector * kVector < d) {
      copy16_later(at, from);
    } else {
      *reinterpret_cast<uint4*>(at) = {0, 0, 0, 0};
    }
  }
}

// Holds what a warp has of its rows: lane l those of rows l / 4 and l / 4 + 8 of each tile, there columns 2 (l % 4) and
// the next one of every eight. Sums are of what has come since they were added to the states.
template <class Tile>
struct CausalRows {
  float weighted[Tile::row_tiles][2 * Tile::part_tiles][4];
  float sum[Tile::row_tiles][4];    // likewise, all columns the same
  float max[Tile::row_tiles][2];    // of products, not yet scaled
  float scale[Tile::row_tiles][2];  // of products to scores in powers of two
};

// Calls use(tile, half, row), counted from the block's first.
template <class Tile, class Use>
__device__ inline void for_rows(const Use& use) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = Tile::row_warp();
  HAYLOFT_UNROLL
  for (int tile = 0; tile < Tile::row_tiles; ++tile) {
    HAYLOFT_UNROLL
    for (int half = 0; half < 2; ++half) {
      use(tile, half, (warp * Tile::row_tiles + tile) * kTile + half * kHalfTile + lane / 4);
    }
  }
}

template <class Tile>
__device__ inline void clear_sums(CausalRows<Tile>& rows) {
  HAYLOFT_UNROLL
  for (int tile = 0; tile < Tile::row_tiles; ++tile) {
    HAYLOFT_UNROLL
    for (int i = 0; i < 4; ++i) {
      rows.sum[tile][i] = 0;
      HAYLOFT_UNROLL
      for (int n = 0; n < 2 * Tile::part_tiles; ++n) rows.weighted[tile][n][i] = 0;
    }
  }
}

template <class Tile>
__device__ inline void begin_rows(const CausalStates& states, int kv_head, int first_row, int end_row,
                                  CausalRows<Tile>& rows) {
  for_rows<Tile>([&](int tile, int half, int row) {
    const bool there = first_row + row < end_row;
    const std::int64_t at = states.at(kv_head, first_row + row);
    rows.max[tile][half] = there ? states.max[at] : -INFINITY;
    rows.scale[tile][half] = there ? states.scale[at] * kLog2OfE : 1;
  });
}

// Adds the sums to the states. Contains barriers where several warps have the same rows.
template <class Tile>
__device__ inline void add_to_states(const CausalStates& states, int kv_head, int first_row, int end_row,
                                     const CausalRows<Tile>& rows) {
  const int d = states.head_dim, column = 2 * (static_cast<int>(threadIdx.x) % 4);
  const int first = Tile::part() * Tile::part_components;  // of the warp's components
  for_rows<Tile>([&](int tile, int half, int row) {
    const bool there = first_row + row < end_row;
    const std::int64_t at = states.at(kv_head, first_row + row);
    const float max = rows.max[tile][half], before = there ? states.max[at] : max, sum = there ? states.sum[at] : 0;
    const float keep = max == before ? 1 : fast_exp2((before - max) * rows.scale[tile][half]);
    if constexpr (Tile::parts == 1) {
      warp_barrier();  // all lanes have read the maximum and the sum
    } else {
      __syncthreads();  // likewise, of both warps
    }
    if (there && column == 0 && first == 0) {
      states.max[at] = max;
      states.sum[at] = sum * keep + rows.sum[tile][2 * half];
    }
    float* const to = states.weighted + at * d + first + column;
    HAYLOFT_UNROLL
    for (int n = 0; n < 2 * Tile::part_tiles; ++n) {
      if (!there || first + n * kHalfTile >= d) continue;
      float2* const two = reinterpret_cast<float2*>(to + n * kHalfTile);
      *two = {two->x * keep + rows.weighted[tile][n][2 * half], two->y * keep + rows.weighted[tile][n][2 * half + 1]};
    }
  });
}

// Says where the lane reads q, K and V, in f16, for the first components and the first tile.
struct CausalLane {
  int q;
  int k;
  int v;
};
template <class Tile>
__device__ inline CausalLane lane_of_tiles() {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = Tile::row_warp();
  const int low = lane % kHalfTile, odd = lane / kHalfTile % 2, high = lane / kTile;
  const int row = odd * kHalfTile + low;
  return {Tile::at(warp * Tile::row_tiles * kTile + row, high), Tile::at(high * kHalfTile + low, odd),
          Tile::at(row, high) + Tile::part() * Tile::part_components};
}

// Multiplies the warp's queries with a tile of keys.
template <class Tile>
__device__ inline void score_keys(const f16* q, int q_at, const f16* k, int k_at,
                                  float (&s)[Tile::row_tiles][2 * Tile::key_tiles][4]) {
  HAYLOFT_UNROLL
  for (int m = 0; m < Tile::row_tiles; ++m) {
    HAYLOFT_UNROLL
    for (int n = 0; n < 2 * Tile::key_tiles; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
  }
  HAYLOFT_UNROLL
  for (int i = 0; i < Tile::tiles; ++i) {
    uint4 a[Tile::row_tiles];
    HAYLOFT_UNROLL
    for (int m = 0; m < Tile::row_tiles; ++m) {
      a[m] = load_matrices(q, Tile::farther(q_at, 2 * i) + m * kTile * Tile::D);
    }
    HAYLOFT_UNROLL
    for (int n = 0; n < Tile::key_tiles; ++n) {
      const uint4 b = load_matrices(k, Tile::farther(k_at, 2 * i) + n * kTile * Tile::D);
      HAYLOFT_UNROLL
      for (int m = 0; m < Tile::row_tiles; ++m) {
        add_product(s[m][2 * n], a[m], b.x, b.y);
        add_product(s[m][2 * n + 1], a[m], b.z, b.w);
      }
    }
  }
}

// Makes weights of products: under the maximum so far, to which sums of before are brought down.
template <class Tile>
__device__ inline void weigh_keys(float (&s)[Tile::row_tiles][2 * Tile::key_tiles][4], CausalRows<Tile>& rows,
                                  uint4 (&weights)[Tile::row_tiles][Tile::key_tiles]) {
  float keep[Tile::row_tiles][2];
  bool grown = false;
  for_rows<Tile>([&](int m, int half, int) {
    const float before = rows.max[m][half];
    float largest = before;
    HAYLOFT_UNROLL
    for (int n = 0; n < 2 * Tile::key_tiles; ++n) {
      largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
    }
    largest = fmaxf(largest, shuffle_xor(largest, 1));
    largest = fmaxf(largest, shuffle_xor(largest, 2));
    rows.max[m][half] = largest;
    grown = grown || largest != before;
    const float base = largest == -INFINITY ? 0 : largest;  // nothing seen yet: every weight is 0
    const float scale = rows.scale[m][half];
    keep[m][half] = largest == before ? 1 : fast_exp2((before - base) * scale);
    HAYLOFT_UNROLL
    for (int n = 0; n < 2 * Tile::key_tiles; ++n) {
      HAYLOFT_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[m][n][i] = fast_exp2(fmaf(s[m][n][i] - base, scale, kLog2OfWeightScale));
      }
    }
  });
  HAYLOFT_UNROLL
  for (int m = 0; m < Tile::row_tiles; ++m) {
    HAYLOFT_UNROLL
    for (int n = 0; n < Tile::key_tiles; ++n) {
      const float(&low)[4] = s[m][2 * n];
      const float(&high)[4] = s[m][2 * n + 1];
      weights[m][n] = {narrow_pair(low[0], low[1]), narrow_pair(low[2], low[3]), narrow_pair(high[0], high[1]),
                       narrow_pair(high[2], high[3])};
    }
  }
  if (ballot(grown) == 0) return;
  HAYLOFT_UNROLL
  for (int m = 0; m < Tile::row_tiles; ++m) {
    HAYLOFT_UNROLL
    for (int i = 0; i < 4; ++i) {
      rows.sum[m][i] *= keep[m][i / 2];
      HAYLOFT_UNROLL
      for (int n = 0; n < 2 * Tile::part_tiles; ++n) rows.weighted[m][n][i] *= keep[m][i / 2];
    }
  }
}

// Adds a tile's weighted values, and its weights as their product with ones, whose sum is rounded as the others are.
template <class Tile>
__device__ inline void add_values(const f16* v, int v_at, const uint4 (&weights)[Tile::row_tiles][Tile::key_tiles],
                                  CausalRows<Tile>& rows) {
  HAYLOFT_UNROLL
  for (int i = 0; i < Tile::key_tiles; ++i) {
    HAYLOFT_UNROLL
    for (int m = 0; m < Tile::row_tiles; ++m) add_product(rows.sum[m], weights[m][i], kTwoOnes, kTwoOnes);
    HAYLOFT_UNROLL
    for (int n = 0; n < Tile::part_tiles; ++n) {
      const uint4 b = load_matrices_transposed(v, Tile::farther(v_at, 2 * n) + i * kTile * Tile::D);
      HAYLOFT_UNROLL
      for (int m = 0; m < Tile::row_tiles; ++m) {
        add_product(rows.weighted[m][2 * n], weights[m][i], b.x, b.y);
        add_product(rows.weighted[m][2 * n + 1], weights[m][i], b.z, b.w);
      }
    }
  }
}

}  // namespace hayloft::gpu::cuda
