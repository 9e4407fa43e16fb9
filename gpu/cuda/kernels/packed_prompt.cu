#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/cuda/kernels/inputs_f16.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/packed.cuh"
#include "gpu/cuda/kernels/packed.h"
#include "gpu/cuda/kernels/packed_form.h"
#include "gpu/cuda_memory.h"

// Products of packed weights with the tokens of a prompt, by tensor cores. Each lane unpacks, in registers, the weights
// that it brings to them, so that packed weights are all that comes from memory. The columns of a chunk are dealt out
// to the four lanes that share a row in the order in which their codes are unpacked most easily; inputs lie in the same
// order (InputOrder), and a sum does not ask for one.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kPromptWarps = 8;
constexpr int kPromptThreads = kPromptWarps * kWarp;
constexpr int kTokensOfProduct = 8;  // columns of what tensor cores give at a time
constexpr int kAtOnce = 2;           // of these
// Inputs are read for so many tokens at a time, of a chunk's last ones behind its end.
constexpr int kReadBehind = (kAtOnce * kTokensOfProduct - 1) * kChunkColumns;
constexpr int kVectorsOfChunk = kChunkColumns * 2 / 16;  // of a token's inputs
constexpr int kVectorsOfProduct = kTokensOfProduct * kVectorsOfChunk;

// Says what a block does. Where tokens or rows are few it has one tile of weights, whose chunks its warps share, so
// that a matrix has many blocks; inputs come from memory, where other blocks have just read them.
struct FewTokens {
  static constexpr bool many = false;
  static constexpr int block_tiles = 1;
  static constexpr int products = 8;  // of tensor cores, a warp's at a time
  static constexpr int tokens = products * kTokensOfProduct;
};
// Says it where both are many: each warp has a tile of its own, and inputs of two chunks at a time lie in shared
// memory.
struct ManyTokens {
  static constexpr bool many = true;
  static constexpr int block_tiles = kPromptWarps;
  static constexpr int products = 16;
  static constexpr int tokens = products * kTokensOfProduct;
  static constexpr int chunks = 2;
  static constexpr int ring = 2 * chunks;  // while those are multiplied, as many more come
};

// Says of a product what its blocks are to know.
struct ProductOfPrompt {
  const unsigned char* data;
  const uint4* x;  // [cols / 32][stride][4]
  const float* scales;
  const float* bias;
  float* y;
  int stride;
  int tokens;
  int rows;
  int end;
};
using PromptProducts = ProductsOfLaunch<ProductOfPrompt>;

// Holds what a lane has of a row's chunk, codes of two quads and the scale of the group that both are of, as they are
// loaded long before they are used.
template <class Form>
struct LaneOfRow {
  static constexpr bool two_words = Form::low_bits == 8;
  unsigned low[two_words ? 2 : 1], high;
  PackedFactors scale, minimum;

  LaneOfRow() = default;
  __device__ LaneOfRow(PackedChunk chunk, int quarter) {
    const int word = quarter * Form::low_bits / 4;
    for (int i = 0; i < (two_words ? 2 : 1); ++i) low[i] = load4_once(chunk.words + 4 * (word + i) * kTileRows);
    if constexpr (Form::low_bits == 2) low[0] >>= 2 * Form::low_bits * (quarter % 2);
    if constexpr (Form::high_bits > 0) {
      const int bit = CodeWords<Form>::column_of(2 * quarter, 0) * Form::high_bits;
      high = load4_once(chunk.words + 4 * (Form::low_bits + bit / 32) * kTileRows) >> (bit % 32);
    }
    const int g = Form::groups == 2 ? quarter / 2 : 0;
    scale = scale_factors<Form>(chunk, g);
    minimum = minimum_factors<Form>(chunk, g);
  }

  // Writes the weights of four pairs of columns, one of each quad.
  __device__ void unpack(const PackedView& w, unsigned (&pairs)[4]) const {
    unsigned quads[2];
    for (int i = 0; i < 2; ++i) {
      const unsigned codes = two_words ? low[two_words ? i : 0] : low[0] >> (Form::by_table ? 16 : Form::low_bits) * i;
      quads[i] = CodeWords<Form>::quad_of(codes, Form::high_bits > 0 ? high >> Form::high_bits * i : 0, w);
      if constexpr (Form::by_table) quads[i] ^= 0x80808080u;  // 128 more, which has no sign
    }
    const int zero = Form::by_table ? 128 : w.zero;
    const float from = 8388608.0f + static_cast<float>(zero), by = scale.product();
    const float above = Form::minimum ? minimum.product() : 0;
    HAYLOFT_UNROLL
    for (int j = 0; j < 4; ++j) {
      float weights[2];
      for (int i = 0; i < 2; ++i) {
        // As the mantissa of a number from 2^23 on, a code is that number's whole part.
        const float code = float_of(pick_bytes(quads[i], 0x4b000000u, 0x7440u | static_cast<unsigned>(j))) - from;
        weights[i] = by * code + above;
      }
      pairs[j] = narrow_pair(weights[0], weights[1]);
    }
  }
};

// Holds a warp's sums with a tile: of the eight tokens n, lane l has those of rows l / 4 and, behind them, l / 4 + 8
// and of tokens 2 (l % 4) and the next.
template <class Work, class Form>
struct PromptWarp {
  float sums[Work::products][4];
  LaneOfRow<Form> next[2];  // of rows l / 4 and l / 4 + 8

  __device__ PromptWarp() {
    HAYLOFT_UNROLL
    for (int n = 0; n < Work::products; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  }

  // Asks for a chunk's weights.
  __device__ void load(PackedChunk chunk, int lane) {
    next[0] = LaneOfRow<Form>(chunk, lane % 4);
    next[1] = LaneOfRow<Form>(chunk.template rows_below<Form>(kTileRows / 2), lane % 4);
  }

  // Unpacks what was asked for, asks for more by ask(), and adds products with the inputs, of `tokens` from the warp's
  // first on, that the lane finds at x.
  template <class Ask>
  __device__ void multiply(const PackedView& w, int tokens, const Ask& ask, const uint4* x) {
    unsigned upper[4], lower[4];
    next[0].unpack(w, upper);
    next[1].unpack(w, lower);
    ask();
    HAYLOFT_UNROLL
    for (int first = 0; first < Work::products; first += kAtOnce) {
      if (first * kTokensOfProduct >= tokens) break;
      warp_barrier();  // keeps the compiler from loading more than registers hold
      uint4 b[kAtOnce];
      HAYLOFT_UNROLL
      for (int n = 0; n < kAtOnce; ++n) b[n] = load16(x + (first + n) * kVectorsOfProduct);
      HAYLOFT_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        add_product(sums[first + n], {upper[0], lower[0], upper[1], lower[1]}, b[n].x, b[n].y);
      }
      HAYLOFT_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        add_product(sums[first + n], {upper[2], lower[2], upper[3], lower[3]}, b[n].z, b[n].w);
      }
    }
  }
};

// Writes the sums that a lane has with a tile, of tokens from the block's first on.
struct OutputsOfLane {
  const float* scales;
  float* y;
  int rows;
  int tokens;
  int rows_there;  // of the lane's two
  float bias[2] = {0, 0};

  __device__ OutputsOfLane(const ProductOfPrompt& of, int tile, int token, int lane)
      : scales(of.scales + token + 2 * (lane % 4)), rows(of.rows), tokens(of.tokens - token - 2 * (lane % 4)) {
    const int row = tile * kTileRows + lane / 4;
    y = of.y + (token + 2 * (lane % 4)) * std::int64_t{rows} + row;
    rows_there = (row < rows ? 1 : 0) + (row + kTileRows / 2 < rows ? 1 : 0);
    HAYLOFT_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (of.bias && i < rows_there) bias[i] = of.bias[row + i * kTileRows / 2];
    }
  }

  // Writes the sum i of the eight tokens n.
  __device__ void put(int n, int i, float sum) const {
    const int token = n * kTokensOfProduct + i % 2;
    if (token >= tokens || i / 2 >= rows_there) return;
    y[std::int64_t{token} * rows + i / 2 * (kTileRows / 2)] = scales[token] * sum + (i < 2 ? bias[0] : bias[1]);
  }
};

// Brings the inputs of some chunks of the block's tokens from `token` on to shared memory, [ring][tokens][4], where a
// chunk lies at its number modulo the ring.
template <class Work>
__device__ inline void bring_inputs(const ProductOfPrompt& of, int token, int chunk, int chunks, uint4* to) {
  constexpr int vectors = Work::tokens * kVectorsOfChunk;
  for (const int end = min(chunk + Work::chunks, chunks); chunk < end; ++chunk) {
    const uint4* const from = of.x + (static_cast<std::int64_t>(chunk) * of.stride + token) * kVectorsOfChunk;
    HAYLOFT_UNROLL
    for (int pass = 0; pass < vectors; pass += kPromptThreads) {
      warp_barrier();  // as in multiply(), where copies are not in the background
      const int i = pass + static_cast<int>(threadIdx.x);
      if (token + i / kVectorsOfChunk < of.tokens) copy16_later(to + chunk % Work::ring * vectors + i, from + i);
    }
  }
}

// Says what a block has. Blocks of the same weights lie behind one another, so that all but one find them in the L2
// cache.
template <class Work>
struct BlockOfPrompt {
  int product;
  int token;  // the first one
  int tile;   // likewise

  __device__ BlockOfPrompt(const PromptProducts& all, int block) : product(all.owner_of(block)) {
    const int turns = (all.of[product].tokens + Work::tokens - 1) / Work::tokens;
    token = block % turns * Work::tokens, tile = block / turns * Work::block_tiles;
  }
};

template <class Work, class Form>
__global__ void __launch_bounds__(kPromptThreads, 2) packed_prompt_kernel(const PromptProducts all) {
  const BlockOfPrompt<Work> place(all, static_cast<int>(blockIdx.x));
  const ProductOfPrompt& mine = all.of[place.product];
  PackedView w = all.common;
  w.data = mine.data;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token = place.token, tokens = mine.tokens - token, chunks = w.cols / kChunkColumns;
  PromptWarp<Work, Form> own;
  if constexpr (!Work::many) {
    __shared__ float sums[kPromptWarps][Work::products * 4 * kWarp];
    const auto chunk_at = [&](int chunk) { return chunk_of<Form>(w, place.tile, chunk, lane / 4); };
    const uint4* const x = mine.x + token * kVectorsOfChunk + lane;
    if (warp < chunks) own.load(chunk_at(warp), lane);
    for (int chunk = warp; chunk < chunks; chunk += kPromptWarps) {
      const auto ask = [&] {
        if (chunk + kPromptWarps < chunks) own.load(chunk_at(chunk + kPromptWarps), lane);
      };
      own.multiply(w, tokens, ask, x + static_cast<std::int64_t>(chunk) * mine.stride * kVectorsOfChunk);
    }
    HAYLOFT_UNROLL
    for (int n = 0; n < Work::products; ++n) {
      HAYLOFT_UNROLL
      for (int i = 0; i < 4; ++i) sums[warp][(n * 4 + i) * kWarp + lane] = own.sums[n][i];
    }
    __syncthreads();
    const OutputsOfLane out(mine, place.tile, token, lane);
    for (int at = warp; at < Work::products * 4; at += kPromptWarps) {
      float sum = 0;
      for (int part = 0; part < kPromptWarps; ++part) sum += sums[part][at * kWarp + lane];
      out.put(at / 4, at % 4, sum);
    }
  } else {
    __shared__ uint4 inputs[Work::ring * Work::tokens * kVectorsOfChunk];
    const int tile = min(place.tile + warp, (mine.rows - 1) / kTileRows);  // another's, for those that have none
    const auto chunk_at = [&](int chunk) { return chunk_of<Form>(w, tile, chunk, lane / 4); };
    bring_inputs<Work>(mine, place.token, 0, chunks, inputs);
    own.load(chunk_at(0), lane);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk % Work::chunks == 0) {
        copies_arrived();
        __syncthreads();
        bring_inputs<Work>(mine, place.token, chunk + Work::chunks, chunks, inputs);
      }
      const auto ask = [&] { own.load(chunk_at(min(chunk + 1, chunks - 1)), lane); };
      own.multiply(w, tokens, ask, inputs + chunk % Work::ring * Work::tokens * kVectorsOfChunk + lane);
    }
    const BlockOfPrompt<Work> again(all, opaque(static_cast<int>(blockIdx.x)));  // so that no register keeps it
    const OutputsOfLane out(all.of[again.product], again.tile + warp, again.token, lane);
    HAYLOFT_UNROLL
    for (int n = 0; n < Work::products; ++n) {
      HAYLOFT_UNROLL
      for (int i = 0; i < 4; ++i) out.put(n, i, own.sums[n][i]);
    }
  }
}

// Says which inputs of a product are rounded, and where they lie afterwards.
struct InputsOfPrompt {
  const float* x;
  int tokens;
  int first;       // among all tokens
  int run_first;   // of those that lie together
  int run_tokens;  // likewise
};

// Holds the rounded inputs of products with as many columns.
class PromptInputs {
 public:
  PromptInputs(const Context& context, std::vector<InputsOfPrompt> inputs, int cols, InputOrder order,
               cudaStream_t stream)
      : inputs_(std::move(inputs)),
        cols_(cols),
        values_(context, std::int64_t{inputs_.back().first + inputs_.back().tokens} * cols + kReadBehind, stream),
        scales_(context, inputs_.back().first + inputs_.back().tokens, stream) {
    // Inputs that follow each other in memory, as those of experts do, are rounded together.
    for (auto begin = inputs_.begin(); begin != inputs_.end();) {
      int tokens = 0;
      auto end = begin;
      while (end != inputs_.end() && end->x == begin->x + std::int64_t{tokens} * cols) tokens += end++->tokens;
      for (auto each = begin; each != end; ++each) each->run_first = begin->first, each->run_tokens = tokens;
      round_to_f16(begin->x, tokens, cols, order, values_ + std::int64_t{begin->first} * cols, scales_ + begin->first,
                   stream);
      begin = end;
    }
  }

  ProductOfPrompt of(const MatrixProduct& product) const {
    const auto& inputs = *std::find_if(inputs_.begin(), inputs_.end(), [&](const InputsOfPrompt& each) {
      return each.x == product.x && each.tokens == product.T;
    });
    const f16* const run = values_ + std::int64_t{inputs.run_first} * cols_;
    return {static_cast<const unsigned char*>(product.w->data),
            reinterpret_cast<const uint4*>(run) + std::int64_t{inputs.first - inputs.run_first} * kVectorsOfChunk,
            scales_ + inputs.first,
            product.bias,
            product.y,
            inputs.run_tokens,
            product.T,
            product.w->rows,
            0};
  }

 private:
  std::vector<InputsOfPrompt> inputs_;
  int cols_;
  Scratch<f16> values_;
  Scratch<float> scales_;
};

template <class Work>
int blocks_of(const MatrixProduct& product) {
  return static_cast<int>(blocks_for(product.T, Work::tokens) *
                          blocks_for(product.w->rows, Work::block_tiles * kTileRows));
}

// Returns whether blocks of many tokens are enough to fill the device. It goes by the product alone, whose sums are the
// same then whatever it goes with.
bool fills(const Context& context, const MatrixProduct& product) {
  return blocks_of<ManyTokens>(product) >= context.multiprocessors;
}

template <class Work>
void multiply_prompts(std::span<const MatrixProduct> products, const PromptInputs& inputs, cudaStream_t stream) {
  PromptProducts all{view_of(*products.front().w), {}};
  int count = 0, blocks = 0;
  for (const MatrixProduct& product : products) {
    blocks += blocks_of<Work>(product);
    all.of[count] = inputs.of(product);
    all.of[count++].end = blocks;
  }
  with_form(products.front().w->packing, [&]<class Form>(Form) {
    launch("matmul of a prompt, packed", packed_prompt_kernel<Work, Form>,
           {dim3(static_cast<unsigned>(blocks)), dim3(kPromptThreads)}, stream, all);
  });
}

// Takes out of `products` those that take(product) wants.
template <class Take>
std::vector<MatrixProduct> taken_from(std::vector<MatrixProduct>& products, const Take& take) {
  std::vector<MatrixProduct> taken;
  std::erase_if(products, [&](const MatrixProduct& product) {
    const bool wanted = take(product, taken.size());
    if (wanted) taken.push_back(product);
    return wanted;
  });
  return taken;
}

}  // namespace

void multiply_packed_prompts(const Context& context, std::span<const MatrixProduct> products, cudaStream_t stream) {
  std::vector<MatrixProduct> left(products.begin(), products.end());
  while (!left.empty()) {
    const int cols = left.front().w->cols;
    const InputOrder order{quads_of_word(left.front().w->packing)};
    const auto fitting = static_cast<std::int64_t>(cuda_panel_bytes / sizeof(f16)) / cols;
    std::vector<InputsOfPrompt> inputs;
    int tokens = 0;
    std::vector<MatrixProduct> with_inputs = taken_from(left, [&](const MatrixProduct& next, std::size_t) {
      if (next.w->cols != cols || quads_of_word(next.w->packing) != order.quads_of_word) return false;
      const bool known = std::any_of(inputs.begin(), inputs.end(), [&](const InputsOfPrompt& each) {
        return each.x == next.x && each.tokens == next.T;
      });
      if (known) return true;
      if (!inputs.empty() && tokens + next.T > fitting) return false;
      inputs.push_back({next.x, next.T, tokens, 0, 0});
      tokens += next.T;
      return true;
    });
    const PromptInputs rounded(context, std::move(inputs), cols, order, stream);
    while (!with_inputs.empty()) {
      const Packing packing = with_inputs.front().w->packing;
      const bool many = fills(context, with_inputs.front());
      const auto alike = taken_from(with_inputs, [&](const MatrixProduct& next, std::size_t taken) {
        return taken < kMostProducts && next.w->packing == packing && fills(context, next) == many;
      });
      many ? multiply_prompts<ManyTokens>(alike, rounded, stream) : multiply_prompts<FewTokens>(alike, rounded, stream);
    }
  }
}

}  // namespace hayloft::gpu::cuda
