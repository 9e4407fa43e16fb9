#include "gpu/cuda/kernels/packed.cuh"

#include <cstring>

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

__device__ inline void load_inputs(const float* x, bool aligned, float* to) {
  if (aligned) {
    const uint4 bits = load16(x);
    to[0] = float_of(bits.x), to[1] = float_of(bits.y), to[2] = float_of(bits.z), to[3] = float_of(bits.w);
  } else {
    for (int i = 0; i < 4; ++i) to[i] = x[i];
  }
}

// The sum of a group's inputs, which are those of sixteen threads, or twice sixteen.
template <class Form>
__device__ inline float input_sum(const float* x, int g, int lane) {
  float sum = x[g * Form::group + lane];
  if constexpr (Form::group == 32) sum += x[kTileRows + lane];
  for (int mask = kTileRows / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

// Returns what group kGroup of a chunk adds to a row's sum. A function for each, so that every code's place is known.
template <class Form, int kGroup>
__device__ inline float group_product(const PackedView& w, PackedChunk chunk, const CodeWords<Form>& words, int lane,
                                      const float* table, const float* x, bool aligned) {
  constexpr int first = kGroup * Form::group;
  float sums[4] = {0, 0, 0, 0};
  for (int i = first; i < first + Form::group; i += 4) {
    float v[4];
    load_inputs(x + i, aligned, v);
    for (int j = 0; j < 4; ++j) sums[j] += words.value(i + j, w.zero, table) * v[j];
  }
  const float product = scale_of<Form>(w, chunk, kGroup, lane) * ((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (!w.minimum) return product;
  return product + minimum_of<Form>(w, chunk, kGroup, lane) * input_sum<Form>(x, kGroup, lane);
}

// One block per tile and token, those of all tokens for a tile behind one another. A thread sums every kParts-th chunk
// of its row; parts are added in their order.
template <class Form>
__global__ void __launch_bounds__(kThreads)
    packed_token_kernel(const float* x, int tokens, bool aligned, const PackedView w, const float* bias, float* y) {
  __shared__ float sums[kThreads];
  __shared__ float table[16];
  load_table<Form>(w, table);
  const int tile = static_cast<int>(blockIdx.x) / tokens, token = static_cast<int>(blockIdx.x) % tokens;
  x += static_cast<std::int64_t>(token) * w.cols;
  y += static_cast<std::int64_t>(token) * w.rows;
  const int lane = static_cast<int>(threadIdx.x) % kTileRows;
  const int part = static_cast<int>(threadIdx.x) / kTileRows;
  const int chunks = w.cols / kChunkColumns;
  float total = 0;
  for (int first = 0; first < chunks; first += kParts) {  // all threads of a warp come along
    const bool there = first + part < chunks;
    const int index = there ? first + part : chunks - 1;
    const PackedChunk chunk = chunk_of(w, tile, index);
    const CodeWords<Form> words(chunk.codes, lane);
    const float* const inputs = x + index * kChunkColumns;
    float sum = group_product<Form, 0>(w, chunk, words, lane, table, inputs, aligned);
    if constexpr (Form::groups == 2) sum += group_product<Form, 1>(w, chunk, words, lane, table, inputs, aligned);
    if (there) total += sum;
  }
  sums[threadIdx.x] = total;
  __syncthreads();
  const int row = tile * kTileRows + lane;
  if (part > 0 || row >= w.rows) return;
  for (int other = 1; other < kParts; ++other) total += sums[other * kTileRows + lane];
  y[row] = bias ? total + bias[row] : total;
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

void multiply_packed(const float* x, int T, const Matrix& w, const float* bias, float* y, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  with_form(w.packing, [&]<class Form>(Form) {
    launch("matmul of one token, packed", packed_token_kernel<Form>,
           {dim3(blocks_for(w.rows, kTileRows) * static_cast<unsigned>(T)), dim3(kThreads)}, stream, x, T, aligned,
           view_of(w), bias, y);
  });
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
