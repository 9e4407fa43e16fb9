#include <algorithm>

#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/warp.cuh"

// A chunk of tokens passes through a layer in four kernels: the convolution, pieces of time side by side; the lengths
// of queries and keys, and the factors of each token; the recurrence, token after token, with the state in registers;
// the gated norm. What a token gives is computed by the same operations in the same order wherever a chunk begins and
// ends.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kWarpsOfBlock = 8;  // where a warp has an item to itself
constexpr int kConvolveThreads = 128;
constexpr int kConvolvedTokens = 64;   // of the convolution
constexpr float kLeastSquare = 1e-6f;  // added to |q|^2 and |k|^2
constexpr int kMostKernel = DeltaShape::most_kernel;

// A block of the recurrence has so many columns of a head's state [dk][dv], eight to a warp: a column's rows are spread
// over the four lanes that hold it, row 16 i + 4 part + e to lane `part` as the e-th of its i-th four.
constexpr int kDeltaParts = 4;
constexpr int kColumnsOfWarp = kWarp / kDeltaParts;
constexpr int kPassWarps = 4;
constexpr int kDeltaColumns = kPassWarps * kColumnsOfWarp;
constexpr int kRowsOfFour = 4 * kDeltaParts;
constexpr int kStagedTokens = 8;  // in shared memory at a time

// Grid: (channels, pieces). The inputs of the kernel - 1 tokens before each piece, which the convolution of the piece
// before it writes over: saved [pieces][before][channels].
__global__ void delta_save_kernel(const float* inputs, const float* kept, std::int64_t channels, int before,
                                  float* saved) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kConvolveThreads + threadIdx.x;
  if (c >= channels) return;
  const int piece = static_cast<int>(blockIdx.y), first = piece * kConvolvedTokens - before;
  for (int i = 0; i < before; ++i) {
    const int t = first + i;
    float x = 0;
    if (t >= 0) {
      x = inputs[t * channels + c];
    } else if (kept != nullptr) {
      x = kept[(t + before) * channels + c];
    }
    saved[(static_cast<std::int64_t>(piece) * before + i) * channels + c] = x;
  }
}

// Grid: (channels, pieces). `saved` is null where there is one piece: what was before it is then in `kept` (null:
// zeros), which may be `keep`. A thread goes through the tokens of a piece with the newest inputs of its channel.
__global__ void delta_convolve_kernel(float* inputs, const float* convolution, int kernel, const float* kept,
                                      const float* saved, std::int64_t channels, int T, float* keep) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kConvolveThreads + threadIdx.x;
  if (c >= channels) return;
  const int piece = static_cast<int>(blockIdx.y), before = kernel - 1;
  const float* const old = saved != nullptr ? saved + static_cast<std::int64_t>(piece) * before * channels : kept;
  // The newest `kernel` of kMostKernel places are in use.
  float weights[kMostKernel], window[kMostKernel];
  for (int i = 0; i < kMostKernel; ++i) {
    const int own = i - (kMostKernel - kernel);
    weights[i] = own >= 0 ? convolution[c * kernel + own] : 0;
    // One place older than it will be when the first input has come.
    const int place = own - 1;
    window[i] = place >= 0 && old != nullptr ? old[place * channels + c] : 0;
  }
  const int begin = piece * kConvolvedTokens, end = min(begin + kConvolvedTokens, T);
  for (int t = begin; t < end; ++t) {
    for (int i = 0; i + 1 < kMostKernel; ++i) window[i] = window[i + 1];
    window[kMostKernel - 1] = inputs[t * channels + c];
    float sum = 0;
    for (int i = 0; i < kMostKernel; ++i) {
      if (i >= kMostKernel - kernel) sum = fmaf(weights[i], window[i], sum);
    }
    inputs[t * channels + c] = sum * sigmoid(sum);
  }
  if (end < T) return;
  for (int i = 1; i < kMostKernel; ++i) {
    const int place = i - (kMostKernel - before);
    if (place >= 0) keep[place * channels + c] = window[i];
  }
}

__device__ int global_warp() {
  return static_cast<int>(global_thread() / kWarp);
}

// A warp per token and head of queries or keys, [T][2 Hk]: x / sqrt(|x|^2 + kLeastSquare), queries also / sqrt(dk).
// Behind them threads for the factors: keep and beta [T][Hv].
__global__ void delta_normalise_kernel(float* inputs, const float* a, const float* b, const float* decay,
                                       const float* step_bias, DeltaShape shape, std::int64_t channels, int T,
                                       float* keep, float* beta) {
  const int heads = 2 * shape.key_heads, dk = shape.key_dim, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t item = global_warp(), items = static_cast<std::int64_t>(T) * heads;
  if (item >= items) {
    const std::int64_t i = (item - items) * kWarp + lane;
    if (i >= static_cast<std::int64_t>(T) * shape.value_heads) return;
    const int head = static_cast<int>(i % shape.value_heads);
    const float x = a[i] + step_bias[head];
    const float step = x > 20 ? x : log1pf(expf(x));
    keep[i] = expf(-decay[head] * step);
    beta[i] = sigmoid(b[i]);
    return;
  }
  const int head = static_cast<int>(item % heads);
  float* const x = inputs + item / heads * channels + static_cast<std::int64_t>(head) * dk;
  float squares = 0;
  for (int i = lane; i < dk; i += kWarp) squares = fmaf(x[i], x[i], squares);
  squares = warp_sum(squares) + kLeastSquare;
  const float factor = 1 / sqrtf(head < shape.key_heads ? squares * static_cast<float>(dk) : squares);
  for (int i = lane; i < dk; i += kWarp) x[i] *= factor;
}

// The memory that the recurrence reads and writes.
struct Pass {
  DeltaShape shape;
  std::int64_t channels;
  std::int64_t values;
  const float* inputs;  // [T][channels], of which q and k are of unit length
  const float* keep;    // [T][Hv]
  const float* beta;    // [T][Hv]
  const float* before;  // [Hv][dk][dv], or null
  float* after;
  float* out;  // [T][values]
  int T;
};

// Sums four sums in each of the lanes that hold a column; all of these get the result.
__device__ float sum_of_parts(const float (&sums)[4]) {
  float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (int mask = kWarp / 2; mask >= kColumnsOfWarp; mask /= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

// Grid: (parts of dv, Hv). Fours: rows of a column that a lane has, in fours; rows from dk on are zeros.
template <int Fours>
__global__ void __launch_bounds__(kPassWarps* kWarp) delta_pass_kernel(Pass pass) {
  constexpr int kRows = Fours * kRowsOfFour;
  __shared__ __align__(16) float q[kStagedTokens][kRows];
  __shared__ __align__(16) float k[kStagedTokens][kRows];
  __shared__ float v[kStagedTokens][kDeltaColumns];
  __shared__ float factors[kStagedTokens][2];  // keep, beta
  const DeltaShape& shape = pass.shape;
  const int dk = shape.key_dim, dv = shape.value_dim, Hk = shape.key_heads, Hv = shape.value_heads;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int key_head = shape.heads_in_turns ? head % Hk : head / (Hv / Hk);
  const int part = thread % kWarp / kColumnsOfWarp;
  const int own = thread / kWarp * kColumnsOfWarp + thread % kColumnsOfWarp;  // column of the block's
  const int first = static_cast<int>(blockIdx.x) * kDeltaColumns, column = first + own;
  const std::int64_t state = static_cast<std::int64_t>(head) * dk * dv + column;

  float s[Fours][4];
  for (int i = 0; i < Fours; ++i) {
    for (int e = 0; e < 4; ++e) {
      const int row = i * kRowsOfFour + part * 4 + e;
      const bool there = pass.before != nullptr && row < dk && column < dv;
      s[i][e] = there ? pass.before[state + static_cast<std::int64_t>(row) * dv] : 0;
    }
  }
  for (int begin = 0; begin < pass.T; begin += kStagedTokens) {
    const int tokens = min(kStagedTokens, pass.T - begin);
    for (int t = 0; t < tokens; ++t) {
      const float* const token = pass.inputs + (begin + t) * pass.channels;
      for (int i = thread; i < kRows; i += kPassWarps * kWarp) {
        q[t][i] = i < dk ? token[key_head * dk + i] : 0;
        k[t][i] = i < dk ? token[(Hk + key_head) * dk + i] : 0;
      }
    }
    for (int i = thread; i < tokens * kDeltaColumns; i += kPassWarps * kWarp) {
      const int t = i / kDeltaColumns, j = first + i % kDeltaColumns;
      const float* const values = pass.inputs + (begin + t) * pass.channels + 2 * Hk * dk;
      v[t][i % kDeltaColumns] = j < dv ? values[static_cast<std::int64_t>(head) * dv + j] : 0;
    }
    if (thread < 2 * tokens) {
      const std::int64_t at = static_cast<std::int64_t>(begin + thread / 2) * Hv + head;
      factors[thread / 2][thread % 2] = thread % 2 == 0 ? pass.keep[at] : pass.beta[at];
    }
    __syncthreads();
    for (int t = 0; t < tokens; ++t) {
      const float keep = factors[t][0];
      float sums[4] = {0, 0, 0, 0};
      for (int i = 0; i < Fours; ++i) {
        float keys[4];
        load_four(&k[t][i * kRowsOfFour + part * 4], keys);
        for (int e = 0; e < 4; ++e) {
          s[i][e] *= keep;
          sums[e] = fmaf(s[i][e], keys[e], sums[e]);
        }
      }
      const float change = factors[t][1] * (v[t][own] - sum_of_parts(sums));
      for (int e = 0; e < 4; ++e) sums[e] = 0;
      for (int i = 0; i < Fours; ++i) {
        float keys[4], queries[4];
        load_four(&k[t][i * kRowsOfFour + part * 4], keys);
        load_four(&q[t][i * kRowsOfFour + part * 4], queries);
        for (int e = 0; e < 4; ++e) {
          s[i][e] = fmaf(keys[e], change, s[i][e]);
          sums[e] = fmaf(s[i][e], queries[e], sums[e]);
        }
      }
      const float given = sum_of_parts(sums);
      if (part == 0 && column < dv) {
        pass.out[(begin + t) * pass.values + static_cast<std::int64_t>(head) * dv + column] = given;
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < Fours; ++i) {
    for (int e = 0; e < 4; ++e) {
      const int row = i * kRowsOfFour + part * 4 + e;
      if (row < dk && column < dv) pass.after[state + static_cast<std::int64_t>(row) * dv] = s[i][e];
    }
  }
}

// A warp per token and head: x = x / sqrt(mean(x^2) + eps) norm silu(gate), over rows of n.
__global__ void delta_norm_kernel(float* x, const float* gate, const float* norm, float eps, std::int64_t rows, int n) {
  const std::int64_t row = global_warp();
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float squares = 0;
  for (int i = lane; i < n; i += kWarp) squares = fmaf(x[row * n + i], x[row * n + i], squares);
  const float scale = 1 / sqrtf(warp_sum(squares) / static_cast<float>(n) + eps);
  for (int i = lane; i < n; i += kWarp) {
    const float g = gate[row * n + i];
    x[row * n + i] = x[row * n + i] * scale * norm[i] * (g * sigmoid(g));
  }
}

void convolve(const Context& context, const DeltaLayer& layer, const DeltaState& state, float* inputs, int T,
              cudaStream_t stream) {
  const DeltaShape& shape = layer.shape;
  const std::int64_t channels = shape.channels(), own = shape.state_floats();
  const int before = shape.kernel - 1;
  const unsigned blocks = blocks_for(channels, kConvolveThreads), pieces = blocks_for(T, kConvolvedTokens);
  const float* const kept = state.before != nullptr ? state.before + own : nullptr;
  const auto run = [&](const float* saved) {
    launch("delta_convolve", delta_convolve_kernel, {dim3(blocks, pieces), dim3(kConvolveThreads)}, stream, inputs,
           layer.convolution, shape.kernel, kept, saved, channels, T, state.after + own);
  };
  if (pieces == 1 || before == 0) return run(nullptr);
  const Scratch<float> saved(context, std::int64_t{pieces} * before * channels, stream);
  launch("delta_save", delta_save_kernel, {dim3(blocks, pieces), dim3(kConvolveThreads)}, stream, inputs, kept,
         channels, before, saved);
  run(saved);
}

void pass_tokens(const Pass& pass, cudaStream_t stream) {
  const DeltaShape& shape = pass.shape;
  const Shape grid{dim3(blocks_for(shape.value_dim, kDeltaColumns), static_cast<unsigned>(shape.value_heads)),
                   dim3(kPassWarps * kWarp)};
  static_assert(DeltaShape::most_key_dim == 16 * kRowsOfFour);
  auto* const kernel = shape.key_dim <= 4 * kRowsOfFour   ? delta_pass_kernel<4>
                       : shape.key_dim <= 8 * kRowsOfFour ? delta_pass_kernel<8>
                                                          : delta_pass_kernel<16>;
  launch("delta_pass", kernel, grid, stream, pass);
}

}  // namespace

void CudaBackend::gated_delta(const DeltaLayer& layer, const DeltaState& state, float* inputs, const float* a,
                              const float* b, const float* gate, int T, float* out, Stream queue) {
  const DeltaShape& shape = layer.shape;
  require_delta_shape(shape);
  const cudaStream_t stream = native(queue);
  if (T <= 0) return;
  convolve(context_, layer, state, inputs, T, stream);
  const std::int64_t factors = std::int64_t{T} * shape.value_heads, norms = std::int64_t{T} * 2 * shape.key_heads;
  const Scratch<float> scratch(context_, 2 * factors, stream);
  float* const keep = scratch;
  float* const beta = keep + factors;
  launch("delta_normalise", delta_normalise_kernel,
         {dim3(blocks_for(norms + blocks_for(factors, kWarp), kWarpsOfBlock)), dim3(kWarpsOfBlock * kWarp)}, stream,
         inputs, a, b, layer.decay, layer.step_bias, shape, shape.channels(), T, keep, beta);
  pass_tokens({shape, shape.channels(), shape.values(), inputs, keep, beta, state.before, state.after, out, T}, stream);
  launch("delta_norm", delta_norm_kernel, {dim3(blocks_for(factors, kWarpsOfBlock)), dim3(kWarpsOfBlock * kWarp)},
         stream, out, gate, layer.norm, layer.eps, factors, shape.value_dim);
}

}  // namespace hayloft::gpu::cuda
