#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/packed.cuh"
#include "gpu/cuda/kernels/packed.h"
#include "gpu/cuda/kernels/packed_form.h"

// Products of packed weights with a few tokens. Inputs become whole numbers, 32 neighbours of which share a power of
// two, so that the largest of them has fifteen bits and a sign: an input is off by 2^-15 of that largest one at most.
// Products of these with codes are summed over a group as whole numbers, without error; one instruction makes two of
// them.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kParts = 32;  // a row's chunks are dealt out to: part p sums chunks p, p + 32 ...
constexpr int kQuads = kChunkColumns / 4;
constexpr unsigned kHighestBit = 14;  // of the largest of a chunk's inputs
constexpr unsigned kLargest = (2u << kHighestBit) - 1;
// Makes numbers of less than 2^22 whole: as a number it is 1.5 2^23, and what is added to it is rounded to its last
// bit.
constexpr unsigned kWhole = 0x4b400000;

// Says how many chunks a thread has under way: they come from device memory, and a matrix has few threads to wait.
template <class Form>
inline constexpr int kChunksAhead = Form::bits == 4 ? 4 : 2;

// Says for how many threads of a multiprocessor its registers are to be enough: chunks of five bits do not fit the 64
// of a thread that are left for each of more.
template <class Form>
inline constexpr int kResident = Form::bits == 5 ? 768 : 1024;

// Says of a product what the blocks of its tiles are to know.
struct ProductOfToken {
  const unsigned char* data;
  const float* x;
  const float* bias;
  float* y;
  int rows;
  int end;
};
using PackedProducts = ProductsOfLaunch<ProductOfToken>;

// Holds the inputs of kChunks chunks: of each a scale, the sum of every sixteen, and quads in the order of codes.
template <class Form, int kChunks>
struct WholeInputs {
  alignas(16) uint2 quads[kChunks * kQuads];
  alignas(8) int sums[kChunks * 2];
  float scales[kChunks];

  // Takes `chunks` of them; all threads of the block call it, and a barrier stands between this and the use.
  __device__ void take(const float* x, int chunks) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, quads_taken = chunks * kQuads;
    for (int from = static_cast<int>(threadIdx.x) - lane; from < quads_taken; from += static_cast<int>(blockDim.x)) {
      const int quad = from + lane;
      const bool there = quad < quads_taken;
      float v[4] = {0, 0, 0, 0};
      if (there) {
        const float* const first = x + CodeWords<Form>::column_of(quad, 0);
        for (int j = 0; j < 4; ++j) v[j] = first[CodeWords<Form>::column_of(0, j)];
      }
      unsigned largest = 0;  // of magnitudes, by their bits, which have NaN above infinity
      for (int j = 0; j < 4; ++j) largest = max(largest, bits_of(v[j]) & 0x7fffffffu);
      for (int mask = 1; mask < kQuads; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
      // All are zeros where it is below 2^-112. The scale is not finite where it is not, nor is what comes of it.
      const unsigned exponent = largest >> 23;
      const bool tiny = exponent <= kHighestBit;
      const float power = tiny ? 0 : float_of((254 + kHighestBit - exponent) << 23);
      const float scale = exponent == 255 ? float_of(largest) : tiny ? 0 : float_of((exponent - kHighestBit) << 23);
      unsigned whole[4], sum = 0u - 4 * kWhole;
      for (int j = 0; j < 4; ++j) {
        whole[j] = min(bits_of(v[j] * power + float_of(kWhole)), kWhole + kLargest);
        sum += whole[j];
      }
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      if (!there) continue;
      const int at = quad / kQuads;
      quads[quad] = {pick_bytes(whole[0], whole[1], 0x5410), pick_bytes(whole[2], whole[3], 0x5410)};
      if (lane % 4 == 0) sums[quad / 4] = static_cast<int>(sum);
      if (lane % kQuads == 0) scales[at] = scale;
    }
  }
};

// Holds the codes of a chunk of a row and the scales of its groups, which are loaded long before they are used.
template <class Form>
struct ChunkOfRow {
  CodeWords<Form> words;
  PackedFactors scale[Form::groups], minimum[Form::groups];

  ChunkOfRow() = default;
  __device__ explicit ChunkOfRow(PackedChunk chunk) : words(chunk) {
    for (int g = 0; g < Form::groups; ++g) {
      scale[g] = scale_factors<Form>(chunk, g);
      minimum[g] = minimum_factors<Form>(chunk, g);
    }
  }

  // Returns the products of these weights and chunk `at` of the inputs, summed.
  template <int kChunks>
  __device__ float product(const PackedView& w, const WholeInputs<Form, kChunks>& inputs, int at) const {
    int sums[Form::groups] = {};
    HAYLOFT_UNROLL for (int pair = 0; pair < kQuads / 2; ++pair) {
      const uint4 x = load16(inputs.quads + at * kQuads + 2 * pair);
      const int g = pair / (kQuads / 2 / Form::groups);
      const unsigned first = words.quad(2 * pair, w), second = words.quad(2 * pair + 1, w);
      sums[g] = add_products<0, Form::by_table>(x.x, first, sums[g]);
      sums[g] = add_products<2, Form::by_table>(x.y, first, sums[g]);
      sums[g] = add_products<0, Form::by_table>(x.z, second, sums[g]);
      sums[g] = add_products<2, Form::by_table>(x.w, second, sums[g]);
    }
    float total = 0;
    for (int g = 0; g < Form::groups; ++g) {
      const int of_inputs = Form::groups == 2 ? inputs.sums[2 * at + g] : inputs.sums[2 * at] + inputs.sums[2 * at + 1];
      total += scale[g].product() * static_cast<float>(sums[g] - w.zero * of_inputs);
      if constexpr (Form::minimum) total += minimum[g].product() * static_cast<float>(of_inputs);
    }
    return inputs.scales[at] * total;
  }
};

// Calls body(0), body(1) ... without a loop, so that each finds its array elements in registers.
template <int... kTurns, class Body>
__device__ inline void each_of(std::integer_sequence<int, kTurns...>, const Body& body) {
  (body(kTurns), ...);
}

// Each tile has a block for each token, and these lie behind one another. A thread has one row of the tile and one or
// two parts; what comes of a row is the same however many threads a block has.
template <class Form, int kThreads>
__global__ void __launch_bounds__(kThreads, kResident<Form> / kThreads)
    packed_token_kernel(int tokens, const PackedProducts all) {
  constexpr int columns_of_threads = kThreads / kTileRows, parts = kParts / columns_of_threads;
  constexpr int ahead = kChunksAhead<Form>, at_once = ahead * columns_of_threads;  // chunks
  constexpr std::make_integer_sequence<int, ahead> turns;
  __shared__ WholeInputs<Form, at_once> inputs[2];
  __shared__ float sums[kParts / 2][kTileRows + 1];
  int tile = static_cast<int>(blockIdx.x) / tokens;
  const int token = static_cast<int>(blockIdx.x) % tokens;
  const ProductOfToken mine = all.of[all.owner_of(tile)];
  PackedView w = all.common;
  w.data = mine.data;
  const float* const x = mine.x + static_cast<std::int64_t>(token) * w.cols;
  const int lane = static_cast<int>(threadIdx.x) % kTileRows;
  const int column = static_cast<int>(threadIdx.x) / kTileRows;
  const int chunks = w.cols / kChunkColumns;
  const PackedChunk begun = chunk_of<Form>(w, tile, column, lane);
  // From a thread's chunk to the next one, both of a whole number of heads.
  constexpr int stride = columns_of_threads * Form::chunk_bytes + columns_of_threads / kChunksOfHead * Form::head_bytes;
  int passed = 0;
  float totals[parts] = {};
  for (int first = 0, turn = 0; first < chunks; first += at_once, turn ^= 1) {
    ChunkOfRow<Form> loaded[ahead];
    each_of(turns, [&](int u) {
      const int index = first + u * columns_of_threads + column;
      if (index < chunks) loaded[u] = ChunkOfRow<Form>(begun.behind(passed));
      passed += stride;
    });
    WholeInputs<Form, at_once>& taken =
        inputs[turn];  // those of the turn before may still be in use, not of that before
    taken.take(x + first * kChunkColumns, min(at_once, chunks - first));
    __syncthreads();
    each_of(turns, [&](int u) {
      const int at = u * columns_of_threads + column;
      if (first + at < chunks) totals[u % parts] += loaded[u].product(w, taken, at);
    });
  }
  // The parts p and p + 1, then p and p + 2 of what is left, and so on.
  for (int part = 0; part < parts; ++part) {
    const float both = totals[part] + shuffle_xor(totals[part], kTileRows);
    if (static_cast<int>(threadIdx.x) % kWarp < kTileRows) {
      sums[(part * columns_of_threads + column) / 2][lane] = both;
    }
  }
  __syncthreads();
  if (threadIdx.x >= kParts / 2 * kTileRows) return;
  float total = sums[lane][column];  // of row `column`
  for (int mask = 1; mask < kParts / 2; mask *= 2) total += shuffle_xor(total, mask);
  const int row = tile * kTileRows + column;
  if (lane > 0 || row >= mine.rows) return;
  mine.y[static_cast<std::int64_t>(token) * mine.rows + row] = mine.bias ? total + mine.bias[row] : total;
}

// Launches wide blocks where a matrix has too few tiles to fill the device with others.
template <class Form>
void multiply(int multiprocessors, int tokens, int tiles, const PackedProducts& all, cudaStream_t stream) {
  const char* const name = "matmul of a few tokens, packed";
  const dim3 blocks(static_cast<unsigned>(tiles) * static_cast<unsigned>(tokens));
  if (static_cast<int>(blocks.x) <= 2 * multiprocessors) {
    launch(name, packed_token_kernel<Form, 512>, {blocks, dim3(512)}, stream, tokens, all);
  } else {
    launch(name, packed_token_kernel<Form, 256>, {blocks, dim3(256)}, stream, tokens, all);
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
      const bool alike = count < kMostProducts && next.T == first.T && next.w->cols == first.w->cols &&
                         next.w->packing == first.w->packing;
      if (!alike) return false;
      tiles += static_cast<int>(blocks_for(next.w->rows, kTileRows));
      all.of[count++] = {
          static_cast<const unsigned char*>(next.w->data), next.x, next.bias, next.y, next.w->rows, tiles};
      return true;
    };
    left.erase(std::remove_if(left.begin(), left.end(), taken), left.end());
    with_form(first.w->packing,
              [&]<class Form>(Form) { multiply<Form>(context.multiprocessors, first.T, tiles, all, stream); });
  }
}

}  // namespace hayloft::gpu::cuda
