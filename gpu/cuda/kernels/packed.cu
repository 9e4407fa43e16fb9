#include "gpu/cuda/kernels/packed.cuh"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/packed.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kParts = kThreads / kTileRows;  // chunks of a tile that a block reads at a time

// Fills a block's table; contains a barrier.
template <class Form>
__device__ inline void load_table(const PackedView& w, float* table) {
  if constexpr (Form::by_table) {
    const unsigned code = threadIdx.x;
    const std::uint64_t values = (code < 8 ? w.table[0] : w.table[1]) >> (code % 8 * 8);
    if (code < 16) table[code] = static_cast<float>(static_cast<signed char>(values & 255));
    __syncthreads();
  }
}

// Loads four inputs from an address that is a multiple of 16.
__device__ inline void load_inputs(const float* x, float* to) {
  const uint4 bits = load16(x);
  to[0] = float_of(bits.x), to[1] = float_of(bits.y), to[2] = float_of(bits.z), to[3] = float_of(bits.w);
}

// The sum of a group's inputs, which are those of sixteen threads, or twice sixteen.
template <class Form>
__device__ inline float input_sum(const float* x, int g, int lane) {
  float sum = x[g * Form::group + lane];
  if constexpr (Form::group == 32) sum += x[kTileRows + lane];
  for (int mask = kTileRows / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

// Sums codes times inputs over a group. Each group has a function of its own, so that every code's place is known.
template <class Form, int kGroup>
__device__ inline float code_sum(const CodeWords<Form>& words, float zero, const float* table, const float* x) {
  constexpr int first = kGroup * Form::group;
  float sums[4] = {0, 0, 0, 0};
  for (int i = first; i < first + Form::group; i += 4) {
    float v[4];
    load_inputs(x + i, v);
    for (int j = 0; j < 4; ++j) sums[j] += words.value(i + j, zero, table) * v[j];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Does the same for plain 4-bit codes, and takes five of the eight in a word where they lie: a code `shift` bits up is,
// as a number, 2^shift times itself, exactly as far as the mantissa reaches. Codes of each shift have a sum of their
// own, which is scaled once.
__device__ inline float nibble_sum(const CodeWords<CodeForm<4, false>>& words, float zero, const float* x) {
  constexpr int shifts = 5;
  float sums[shifts] = {0, 0, 0, 0, 0};
  for (int w = 0; w < 4; ++w) {
    float v[8];
    load_inputs(x + 8 * w, v);
    load_inputs(x + 8 * w + 4, v + 4);
    const unsigned low = words.word[w], high = low >> (4 * shifts);
    for (int i = 0; i < 8; ++i) {
      const int s = i % shifts;
      const unsigned code = (i < shifts ? low : high) & (15u << (4 * s));
      const float none = 8388608.0f + zero * static_cast<float>(1 << (4 * s));
      sums[s] += (float_of(code | 0x4b000000u) - none) * v[i];
    }
  }
  float sum = sums[shifts - 1];
  for (int s = shifts - 2; s >= 0; --s) sum = sum * 0.0625f + sums[s];
  return sum;
}

// Holds the codes of a chunk and the scales of its groups, which are loaded long before they are used.
template <class Form>
struct ChunkOfRow {
  CodeWords<Form> words;
  PackedFactors scale[Form::groups], minimum[Form::groups];

  ChunkOfRow() = default;
  __device__ ChunkOfRow(const PackedView& w, PackedChunk chunk, int lane) : words(chunk.codes, lane) {
    for (int g = 0; g < Form::groups; ++g) {
      scale[g] = scale_factors<Form>(w, chunk, g, lane);
      minimum[g] = minimum_factors<Form>(w, chunk, g, lane);
    }
  }

  // Returns what group kGroup adds to the row's sum.
  template <int kGroup>
  __device__ float product(const PackedView& w, int lane, const float* table, const float* x) const {
    float sum;
    if constexpr (Form::bits == 4 && !Form::by_table) {
      sum = nibble_sum(words, w.zero, x);
    } else {
      sum = code_sum<Form, kGroup>(words, w.zero, table, x);
    }
    const float product = product_of(scale[kGroup]) * sum;
    if (!w.minimum) return product;
    return product + product_of(minimum[kGroup]) * input_sum<Form>(x, kGroup, lane);
  }
};

constexpr int kMostProducts = 3;  // of the same inputs, in one launch

// Holds matrices of the same packing and columns, whose tiles are numbered through.
struct PackedProducts {
  struct One {
    const unsigned char* data;
    const float* bias;
    float* y;
    int rows;
    int end;  // of its tiles among all
  };
  PackedView common;  // of their data and rows, the first one's
  One of[kMostProducts];
};

// Calls body(0), body(1) ... without a loop, so that each finds its array elements in registers.
template <int... kTurns, class Body>
__device__ inline void each_of(std::integer_sequence<int, kTurns...>, const Body& body) {
  (body(kTurns), ...);
}

// Says how many chunks a thread has under way: they come from device memory, and a matrix has few threads to wait.
template <class Form>
inline constexpr int kAhead = Form::bits <= 4 ? 4 : 2;

// x lies at a multiple of 16. Each tile has a block for each token, and these lie behind one another. A thread sums
// every kParts-th chunk of its row; parts are added in their order.
template <class Form>
__global__ void __launch_bounds__(kThreads) packed_token_kernel(const float* x, int tokens, const PackedProducts all) {
  __shared__ float sums[kThreads];
  __shared__ float table[16];
  load_table<Form>(all.common, table);
  int tile = static_cast<int>(blockIdx.x) / tokens;
  const int token = static_cast<int>(blockIdx.x) % tokens;
  PackedProducts::One mine = all.of[0];
  int begin = 0;
  for (int i = 1; i < kMostProducts; ++i) {
    if (tile < all.of[i - 1].end) break;
    begin = all.of[i - 1].end;
    mine = all.of[i];
  }
  tile -= begin;
  PackedView w = all.common;
  w.data = mine.data;
  x += static_cast<std::int64_t>(token) * w.cols;
  const int lane = static_cast<int>(threadIdx.x) % kTileRows;
  const int part = static_cast<int>(threadIdx.x) / kTileRows;
  const int chunks = w.cols / kChunkColumns;
  constexpr int ahead = kAhead<Form>;
  constexpr std::make_integer_sequence<int, ahead> turns;
  float total = 0;
  for (int first = 0; first < chunks; first += ahead * kParts) {  // all threads of a warp come along
    ChunkOfRow<Form> loaded[ahead];
    const auto index_of = [&](int u) { return min(first + u * kParts + part, chunks - 1); };
    each_of(turns, [&](int u) {
      if (first + u * kParts < chunks) loaded[u] = ChunkOfRow<Form>(w, chunk_of(w, tile, index_of(u)), lane);
    });
    warp_barrier();  // keeps the compiler from moving loads down to their use, one after the other
    each_of(turns, [&](int u) {
      if (first + u * kParts >= chunks) return;
      const bool there = first + u * kParts + part < chunks;
      const float* const inputs = x + index_of(u) * kChunkColumns;
      float sum = loaded[u].template product<0>(w, lane, table, inputs);
      if constexpr (Form::groups == 2) sum += loaded[u].template product<1>(w, lane, table, inputs);
      if (there) total += sum;
    });
  }
  sums[threadIdx.x] = total;
  __syncthreads();
  const int row = tile * kTileRows + lane;
  if (part > 0 || row >= mine.rows) return;
  for (int other = 1; other < kParts; ++other) total += sums[other * kTileRows + lane];
  mine.y[static_cast<std::int64_t>(token) * mine.rows + row] = mine.bias ? total + mine.bias[row] : total;
}

// A thread has one chunk of one row: 64 bytes of f16.
template <class Form>
__global__ void __launch_bounds__(kThreads) unpack_rows_kernel(const PackedView w, int first, int rows, f16* out) {
  __shared__ float table[16];
  load_table<Form>(w, table);
  const int chunks = w.cols / kChunkColumns;
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const std::int64_t items = static_cast<std::int64_t>(tiles) * kTileRows * chunks;
  for (std::int64_t item = global_thread(); item < items; item += all_threads()) {
    const int lane = static_cast<int>(item % kTileRows);
    const std::int64_t place = item / kTileRows;
    const int tile = static_cast<int>(place / chunks), index = static_cast<int>(place % chunks);
    const int row = tile * kTileRows + lane;
    if (row >= rows) continue;
    const PackedChunk chunk = chunk_of(w, first / kTileRows + tile, index);
    const CodeWords<Form> words(chunk.codes, lane);
    f16* const to = out + static_cast<std::int64_t>(row) * w.cols + index * kChunkColumns;
    for (int g = 0; g < Form::groups; ++g) {
      const float scale = scale_of<Form>(w, chunk, g, lane), minimum = minimum_of<Form>(w, chunk, g, lane);
      for (int i = 0; i < Form::group; i += 8) {
        unsigned pairs[4];
        for (int j = 0; j < 4; ++j) {
          const int column = g * Form::group + i + 2 * j;
          pairs[j] = narrow_pair(scale * words.value(column, w.zero, table) + minimum,
                                 scale * words.value(column + 1, w.zero, table) + minimum);
        }
        store16(to + g * Form::group + i, {pairs[0], pairs[1], pairs[2], pairs[3]});
      }
    }
  }
}

// A thread has one chunk of one token's row.
template <class Form>
__global__ void __launch_bounds__(kThreads)
    embed_packed_kernel(const PackedView w, const std::int32_t* tokens, int count, float* out) {
  __shared__ float table[16];
  load_table<Form>(w, table);
  const int chunks = w.cols / kChunkColumns;
  const std::int64_t items = static_cast<std::int64_t>(count) * chunks;
  for (std::int64_t item = global_thread(); item < items; item += all_threads()) {
    const int row = tokens[item / chunks];
    const int lane = row % kTileRows;
    const PackedChunk chunk = chunk_of(w, row / kTileRows, static_cast<int>(item % chunks));
    const CodeWords<Form> words(chunk.codes, lane);
    for (int g = 0; g < Form::groups; ++g) {
      const float scale = scale_of<Form>(w, chunk, g, lane), minimum = minimum_of<Form>(w, chunk, g, lane);
      for (int i = g * Form::group; i < (g + 1) * Form::group; ++i) {
        out[item * kChunkColumns + i] = scale * words.value(i, w.zero, table) + minimum;
      }
    }
  }
}

PackedView view_of(const Matrix& w) {
  const Packing& packing = w.packing;
  PackedView view{static_cast<const unsigned char*>(w.data),
                  w.rows,
                  w.cols,
                  packing.tile_bytes(w.cols),
                  static_cast<int>(packing.chunk_bytes()),
                  static_cast<int>(packing.head_bytes()),
                  static_cast<int>(packing.scale_bytes()),
                  static_cast<float>(packing.zero),
                  packing.minimum,
                  packing.products,
                  {}};
  static_assert(sizeof view.table == sizeof packing.table);
  std::memcpy(view.table, packing.table.data(), sizeof view.table);
  return view;
}

// body(CodeForm) of a packing.
template <class Body>
void with_form(const Packing& packing, const Body& body) {
  switch (packing.bits) {
    case 2:
      return body(CodeForm<2, false>());
    case 3:
      return body(CodeForm<3, false>());
    case 4:
      return packing.by_table ? body(CodeForm<4, true>()) : body(CodeForm<4, false>());
    case 5:
      return body(CodeForm<5, false>());
    case 6:
      return body(CodeForm<6, false>());
    default:
      return body(CodeForm<8, false>());
  }
}

}  // namespace

void multiply_packed(const Context& context, std::span<const MatrixProduct> products, cudaStream_t stream) {
  std::vector<MatrixProduct> left(products.begin(), products.end());
  while (!left.empty()) {
    const MatrixProduct first = left.front();
    PackedProducts all{view_of(*first.w), {}};
    int count = 0, tiles = 0;
    const auto taken = [&](const MatrixProduct& next) {
      const bool alike = count < kMostProducts && next.x == first.x && next.T == first.T &&
                         next.w->cols == first.w->cols && next.w->packing == first.w->packing;
      if (!alike) return false;
      tiles += static_cast<int>(blocks_for(next.w->rows, kTileRows));
      all.of[count++] = {static_cast<const unsigned char*>(next.w->data), next.bias, next.y, next.w->rows, tiles};
      return true;
    };
    left.erase(std::remove_if(left.begin(), left.end(), taken), left.end());
    for (int i = count; i < kMostProducts; ++i) all.of[i].end = tiles;
    const float* x = first.x;
    std::optional<Scratch<float>> moved;
    if (reinterpret_cast<std::uintptr_t>(x) % 16 != 0) {
      const std::int64_t inputs = std::int64_t{first.T} * first.w->cols;
      moved.emplace(context, inputs, stream);
      x = moved->data();
      HAYLOFT_CUDA(cudaMemcpyAsync(moved->data(), first.x, static_cast<std::size_t>(inputs) * sizeof(float),
                                   cudaMemcpyDeviceToDevice, stream));
    }
    with_form(first.w->packing, [&]<class Form>(Form) {
      launch("matmul of a few tokens, packed", packed_token_kernel<Form>,
             {dim3(static_cast<unsigned>(tiles) * static_cast<unsigned>(first.T)), dim3(kThreads)}, stream, x, first.T,
             all);
    });
  }
}

void unpack_rows(const Context& context, const Matrix& w, int first, int rows, f16* out, cudaStream_t stream) {
  const std::int64_t items = static_cast<std::int64_t>(rows) * (w.cols / kChunkColumns);
  with_form(w.packing, [&]<class Form>(Form) {
    launch("unpack rows", unpack_rows_kernel<Form>, strided(context.multiprocessors, items), stream, view_of(w), first,
           rows, out);
  });
}

void embed_packed(const Context& context, const Matrix& w, const std::int32_t* tokens, int T, float* out,
                  cudaStream_t stream) {
  const std::int64_t items = static_cast<std::int64_t>(T) * (w.cols / kChunkColumns);
  with_form(w.packing, [&]<class Form>(Form) {
    launch("embed, packed", embed_packed_kernel<Form>, strided(context.multiprocessors, items), stream, view_of(w),
           tokens, T, out);
  });
}

}  // namespace hayloft::gpu::cuda
