#include "gpu/cuda/kernels/packed.cuh"

#include "gpu/cuda/kernels/elementwise.cuh"

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/packed.h"
#include "gpu/cuda/kernels/packed_form.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kUnpackThreads = 256;

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

// A thread has one chunk of one row: 64 bytes of f16.
template <class Form>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_rows_kernel(const PackedView w, int first, int rows, f16* out) {
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
    const PackedChunk chunk = chunk_of<Form>(w, first / kTileRows + tile, index, lane);
    const CodeWords<Form> words(chunk);
    f16* const to = out + static_cast<std::int64_t>(row) * w.cols + index * kChunkColumns;
    for (int g = 0; g < Form::groups; ++g) {
      const float scale = scale_factors<Form>(chunk, g).product(), minimum = minimum_factors<Form>(chunk, g).product();
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
__global__ void __launch_bounds__(kUnpackThreads)
    embed_packed_kernel(const PackedView w, const std::int32_t* tokens, int count, float* out) {
  __shared__ float table[16];
  load_table<Form>(w, table);
  const int chunks = w.cols / kChunkColumns;
  const std::int64_t items = static_cast<std::int64_t>(count) * chunks;
  for (std::int64_t item = global_thread(); item < items; item += all_threads()) {
    const int row = tokens[item / chunks];
    const int lane = row % kTileRows;
    const PackedChunk chunk = chunk_of<Form>(w, row / kTileRows, static_cast<int>(item % chunks), lane);
    const CodeWords<Form> words(chunk);
    for (int g = 0; g < Form::groups; ++g) {
      const float scale = scale_factors<Form>(chunk, g).product(), minimum = minimum_factors<Form>(chunk, g).product();
      for (int i = g * Form::group; i < (g + 1) * Form::group; ++i) {
        out[item * kChunkColumns + i] = scale * words.value(i, w.zero, table) + minimum;
      }
    }
  }
}

}  // namespace

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
