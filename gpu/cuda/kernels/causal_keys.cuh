#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/causal_states.cuh"
#include "gpu/cuda/kernels/causal_tile.cuh"
#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/sparse_causal.h"

// Prefill's attention over keys in device memory: all that queries see, or blocks of them that lists name.
namespace hayloft::gpu::cuda {

// Keys [begin, end) of each KV head.
struct CausalKeys {
  const f16* rows = nullptr;     // that of the first head's key at `begin`: [K | V], each of head_dim components
  std::int64_t head_stride = 0;  // f16
  int begin = 0;                 // positions, counted from the first query's; less than 0 before it
  int end = 0;
  int window = 0;  // CausalWindow's; the largest int where all before a query are seen

  // Returns the row of a KV head at position 0, which may lie outside of what there is.
  __device__ const f16* of_head(int kv_head, int d) const {
    return rows + kv_head * head_stride - std::int64_t{begin} * (2 * d);
  }
};

// Says what a block reads of the keys, numbered [begin, end) in the order in which it reads them: all that its rows
// see.
template <class Tile>
struct EveryKey {
  const CausalKeys& keys;
  const f16* from;      // the KV head's row at position 0
  int lowest, highest;  // tokens of the rows
  int begin = max(keys.begin, lowest - keys.window + 1);
  int end = min(keys.end, highest + 1);

  // Brings the tile's keys from number `key` on, from the component on that is the offset's.
  __device__ void bring(int key, int d, int offset, f16* to) const {
    const std::int64_t stride = 2 * d;
    bring_rows<Tile, Tile::keys>(from + key * stride + offset, stride, end - key, d, to);
  }
  __device__ bool hides(int key) const {
    return key + Tile::keys > min(end, lowest + 1) || key <= highest - keys.window;
  }
  __device__ int position(int key) const { return key; }
  __device__ bool hidden(int own, int at) const {
    const unsigned behind = static_cast<unsigned>(own) - static_cast<unsigned>(at);
    return at > own || behind >= static_cast<unsigned>(keys.window) || at >= keys.end;
  }
};

// Names entries [begin, end) of an array.
struct ListPart {
  int begin;
  int end;
};

// Holds lists of blocks of keys, ascending, one for so many rows of a KV head, the last for the rest. They name all
// that the rows may see.
struct CausalLists {
  const std::int32_t* blocks = nullptr;  // positions / sparse_key_block
  const ListPart* parts = nullptr;       // [Hkv][lists], of `blocks`
  int lists = 0;                         // of a KV head
  int rows = 0;                          // that one is for
  int first_row = 0;                     // of the first list
  int first = 0;                         // the first query's position
};

// Says the same of blocks of the keys that arrived which a list names.
template <class Tile>
struct ListedKeys {
  static constexpr int block = sparse_key_block;
  static constexpr int none = 0x7fffff00;  // a position that nobody sees
  const CausalKeys& keys;
  const f16* from;
  int all_see;  // the last position that every row sees, of those that arrived
  const std::int32_t* blocks;
  int first;
  int begin, end;

  __device__ ListedKeys(const CausalKeys& of, const f16* rows, int lowest, int highest, const CausalLists& lists,
                        ListPart part)
      : keys(of), from(rows), all_see(min(lowest, of.end - 1)), blocks(lists.blocks + part.begin), first(lists.first) {
    const int size = part.end - part.begin;
    const auto listed_before = [&](int position) {  // entries that end at or before it
      int low = 0, high = size;
      while (low < high) {
        const int middle = (low + high) / 2;
        if ((blocks[middle] + 1) * block - first <= position) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      return low;
    };
    begin = listed_before(keys.begin) * block;
    end = listed_before(min(keys.end, highest + 1) + block - 1) * block;
  }

  __device__ int position(int key) const {
    return key < end ? blocks[key / block] * block + key % block - first : none;
  }
  __device__ void bring(int key, int d, int offset, f16* to) const {
    constexpr int vectors = Tile::D / kVector, pass = Tile::pass;
    static_assert(block % pass == 0);  // the rows of a pass lie behind one another
    const int row = static_cast<int>(threadIdx.x) / vectors, vector = static_cast<int>(threadIdx.x) % vectors;
    if (row >= pass) return;
    for (int some = 0; some < Tile::keys; some += opaque(pass)) {  // one after the other, for the registers
      f16* const to_row = to + Tile::at(some + row, vector);
      const int at = position(key + some) + row;
      if (at >= keys.begin && at < keys.end && vector * kVector < d) {
        copy16_later(to_row, from + std::int64_t{at} * (2 * d) + offset + vector * kVector);
      } else {
        *reinterpret_cast<uint4*>(to_row) = {0, 0, 0, 0};
      }
    }
  }
  // The first block may have begun before the keys that arrived.
  __device__ bool hides(int key) const { return key == begin || position(key + Tile::keys - 1) > all_see; }
  __device__ bool hidden(int own, int at) const { return at > own || at < keys.begin || at >= keys.end; }
};

// Takes out of the scores of keys from number `key` on what a query does not see.
template <class Tile, class Keys>
__device__ inline void hide_keys(float (&s)[Tile::row_tiles][2 * Tile::key_tiles][4], int first_row, int group, int key,
                                 const Keys& keys) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  for_rows<Tile>([&](int m, int half, int row) {
    const int own = (first_row + row) / group;
    HAYLOFT_UNROLL
    for (int n = 0; n < 2 * Tile::key_tiles; ++n) {
      const int at = keys.position(key + n * kHalfTile) + column;
      HAYLOFT_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (keys.hidden(own, at + i)) s[m][n][2 * half + i] = -INFINITY;
      }
    }
  });
}

// Adds to the states of rows [first_row, end_row) what they see of the keys. While the block multiplies with K, its V
// arrives, and while with V, the next K.
template <class Tile, class Keys>
__device__ inline void attend_rows_to(const CausalStates& states, int kv_head, int first_row, int end_row,
                                      const Keys& keys) {
  f16* const q = reinterpret_cast<f16*>(dynamic_shared());
  f16* const k = q + Tile::rows * Tile::D;
  f16* const v = k + Tile::keys * Tile::D;
  const int d = states.head_dim, end = keys.end;
  bring_rows<Tile, Tile::rows>(states.q + states.at(kv_head, first_row) * d, d, end_row - first_row, d, q);
  keys.bring(keys.begin, d, 0, k);
  const CausalLane lane = lane_of_tiles<Tile>();
  CausalRows<Tile> rows;
  begin_rows<Tile>(states, kv_head, first_row, end_row, rows);
  for (int from_key = keys.begin; from_key < end; from_key += kSummedKeys) {
    clear_sums<Tile>(rows);
    const int to_key = min(end, from_key + kSummedKeys);
    for (int key = from_key; key < to_key; key += Tile::keys) {
      copies_arrived();
      __syncthreads();  // K is there, and nobody reads V any more
      keys.bring(key, d, d, v);
      float s[Tile::row_tiles][2 * Tile::key_tiles][4];
      score_keys<Tile>(q, opaque(lane.q), k, opaque(lane.k), s);
      if (keys.hides(key)) hide_keys<Tile>(s, opaque(first_row), states.group, key, keys);
      copies_arrived();
      __syncthreads();  // V is there, and nobody reads K any more
      const int next = key + Tile::keys;
      if (next < end) keys.bring(next, d, 0, k);
      uint4 weights[Tile::row_tiles][Tile::key_tiles];
      weigh_keys<Tile>(s, rows, weights);
      add_values<Tile>(v, opaque(lane.v), weights, rows);
    }
    add_to_states<Tile>(states, kv_head, opaque(first_row), end_row, rows);
  }
}

// grid (rows / tile's, Hkv), dynamic shared memory Tile::shared_bytes. Blocks whose rows see most come first.
template <class Tile>
static __global__ void __launch_bounds__(kCausalThreads, 2)
    attend_keys(const CausalStates states, const CausalKeys keys) {
  if (Tile::wide && !kLargeShared) return;  // never launched there
  const int kv_head = static_cast<int>(blockIdx.y);
  const int all_rows = static_cast<int>(states.rows);
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::rows;
  const int lowest = first_row / states.group, highest = (min(first_row + Tile::rows, all_rows) - 1) / states.group;
  const EveryKey<Tile> seen{keys, keys.of_head(kv_head, states.head_dim), lowest, highest};
  if (seen.begin < seen.end) attend_rows_to<Tile>(states, kv_head, first_row, all_rows, seen);
}

// The same of listed keys: grid (lists by rows of a list / tile's, Hkv).
template <class Tile>
static __global__ void __launch_bounds__(kCausalThreads, 2)
    attend_listed_keys(const CausalStates states, const CausalKeys keys, const CausalLists lists) {
  const int kv_head = static_cast<int>(blockIdx.y);
  const int tiles = (lists.rows + Tile::rows - 1) / Tile::rows, tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int list = tile / tiles;
  const int list_row = lists.first_row + list * lists.rows, first_row = list_row + tile % tiles * Tile::rows;
  const int end_row = min(list_row + lists.rows, static_cast<int>(states.rows));
  if (first_row >= end_row) return;
  const int lowest = first_row / states.group, highest = (min(first_row + Tile::rows, end_row) - 1) / states.group;
  const ListedKeys<Tile> seen(keys, keys.of_head(kv_head, states.head_dim), lowest, highest, lists,
                              lists.parts[kv_head * lists.lists + list]);
  if (seen.begin < seen.end) attend_rows_to<Tile>(states, kv_head, first_row, end_row, seen);
}

}  // namespace hayloft::gpu::cuda
