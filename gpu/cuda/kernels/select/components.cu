#include "gpu/cuda/kernels/select/components.h"

#include <algorithm>

#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/select/place_runs.cuh"
#include "gpu/cuda/kernels/warp.cuh"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kTailThreads = kChunkTokens;
constexpr int kTailHeads = 4;                     // query heads that a key is loaded for at once
constexpr unsigned kMostWeightBytes = 32 * 1024;  // of a group, in shared memory

__device__ inline double warp_sum_double(double x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// chosen and all: |q[i1]|_1 and |q|_1.
__device__ inline float temperature_of(index::Temperature temperature, int head_dim, int rank, double chosen,
                                       double all) {
  if (temperature == index::Temperature::head_dim) return static_cast<float>(sqrt(static_cast<double>(head_dim)));
  if (temperature == index::Temperature::rank) return static_cast<float>(sqrt(static_cast<double>(rank)));
  return chosen > 0 ? static_cast<float>(sqrt(head_dim * chosen / all)) : 1.0f;
}

// The bits of numbers that are not negative have their order, and a total one if there is NaN.
__device__ inline unsigned magnitude_of(float x) {
  return bits_of(x) & 0x7fffffff;
}

// Whole components: the `rank` whose `matters` is largest, into chosen, ascending. Contains barriers; thread i has that
// of component i.
template <int threads>
__device__ inline void choose_whole(float matters, int head_dim, int rank, int* chosen) {
  __shared__ unsigned magnitude[threads];
  __shared__ unsigned taken_of_warp[threads / kWarp];
  const int i = threadIdx.x;
  const int lane = i % kWarp, warp = i / kWarp;
  if (i < head_dim) magnitude[i] = magnitude_of(matters);
  __syncthreads();
  bool taken = false;
  if (i < head_dim) {
    int before = 0;
    for (int c = 0; c < head_dim; ++c) {
      before += magnitude[c] > magnitude[i] || (magnitude[c] == magnitude[i] && c < i) ? 1 : 0;
    }
    taken = before < rank;
  }
  const unsigned votes = ballot(taken);
  if (lane == 0) taken_of_warp[warp] = votes;
  __syncthreads();
  if (taken) {
    int slot = count_bits(votes & ((1u << lane) - 1));
    for (int w = 0; w < warp; ++w) slot += count_bits(taken_of_warp[w]);
    chosen[slot] = i;
  }
  __syncthreads();
}

// The `bits` planes that are worth most: components into chosen and how many planes of each into planes, [rank], more
// before fewer; null: nobody is told. Returns of how many any are read. Contains barriers; thread i has what component
// i matters by.
template <int threads>
__device__ inline int choose_planes(float matters, int head_dim, int rank, int bits, int* chosen, int* planes) {
  __shared__ uint4 worth[threads];
  __shared__ int read[threads];
  const int i = threadIdx.x;
  const unsigned own[] = {magnitude_of(matters), magnitude_of(matters * 0.5f), magnitude_of(matters * 0.25f),
                          magnitude_of(matters * 0.125f)};
  static_assert(sizeof own == offload::plane_count * sizeof(unsigned));
  if (i < head_dim) worth[i] = {own[0], own[1], own[2], own[3]};
  __syncthreads();
  if (i < head_dim) {
    int before[offload::plane_count] = {0, 1, 2, 3};  // a component's own planes are worth less and less
    for (int c = 0; c < head_dim; ++c) {
      if (c == i) continue;
      const uint4 other = worth[c];
      const unsigned first = c < i ? 1 : 0;  // at a tie
      for (int p = 0; p < offload::plane_count; ++p) {
        before[p] += (other.x + first > own[p] ? 1 : 0) + (other.y + first > own[p] ? 1 : 0) +
                     (other.z + first > own[p] ? 1 : 0) + (other.w + first > own[p] ? 1 : 0);
      }
    }
    int count = 0;
    for (int p = 0; p < offload::plane_count; ++p) count += before[p] < bits ? 1 : 0;
    read[i] = count;
  }
  __syncthreads();
  int used = 0, slot = 0;
  const int count = i < head_dim ? read[i] : 0;
  for (int c = 0; c < head_dim; ++c) {
    used += read[c] > 0 ? 1 : 0;
    slot += read[c] > count || (read[c] == count && c < i) ? 1 : 0;
  }
  if (i < head_dim && slot < rank) {
    chosen[slot] = i;
    if (planes) planes[slot] = count;
  }
  __syncthreads();
  return used;
}

// Scores a chunk of the tail, a row per thread, for all of a KV head's queries, and writes their partial softmaxes:
// rows are in device memory and few. components and weights are the KV head's, partials from its first query head on.
// Contains barriers. scratch: block_sum()'s.
__device__ inline void score_tail_chunk(const TailView& tail, int head_dim, int head, const std::int32_t* components,
                                        const float* weights, int rank, int group, PartialSoftmax partials, int chunk,
                                        float* scratch) {
  constexpr float infinity = __builtin_inff();
  const std::int64_t token = static_cast<std::int64_t>(chunk) * kTailThreads + threadIdx.x;
  const bool live = threadIdx.x < kTailThreads && token < tail.tokens;
  const f16* key = tail.rows + (head * tail.capacity + tail.first + (live ? token : 0)) * 2 * head_dim;
  for (int first_of_few = 0; first_of_few < group; first_of_few += kTailHeads) {
    const float* const weight = weights + static_cast<std::int64_t>(first_of_few) * rank;
    float scores[kTailHeads];
    HAYLOFT_UNROLL
    for (int i = 0; i < kTailHeads; ++i) scores[i] = live ? 0 : -infinity;
    for (int j = 0; live && j < rank; ++j) {
      const float k = widen(key[components[j]]);
      HAYLOFT_UNROLL
      for (int i = 0; i < kTailHeads; ++i) {
        if (first_of_few + i < group) scores[i] = fmaf(weight[i * rank + j], k, scores[i]);
      }
    }
    HAYLOFT_UNROLL
    for (int i = 0; i < kTailHeads; ++i) {
      const int h = first_of_few + i;
      if (h >= group) continue;
      const float s = scores[i];
      const float max = block_max(s, scratch);
      const float sum = block_sum(s == -infinity ? 0.0f : expf(s - max), scratch);
      if (threadIdx.x == 0) {
        partials.max[h * partials.stride + chunk] = max;
        partials.sum[h * partials.stride + chunk] = sum;
      }
    }
  }
}

// Returns the partials from one KV head on.
__device__ inline PartialSoftmax behind(const PartialSoftmax& partials, std::int64_t query_heads) {
  return {partials.max + query_heads * partials.stride, partials.sum + query_heads * partials.stride, partials.stride};
}

// All blocks of the grid clear some each.
__device__ inline void clear_words(const Cleared& cleared, unsigned* stop, int threads) {
  const int turn = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (stop && turn == 0) *stop = 1;
  const int all = static_cast<int>(gridDim.y * gridDim.x) * threads;
  for (int word = turn; word < cleared.count; word += all) cleared.words[word] = 0;
}

// Grid: (chunks of the tail, or one, and behind them, from `first_placing` on, blocks that place; KV heads), with a
// thread for each component that a head may have. Every block of a KV head chooses, and its first one tells; then those
// of the first tail.heads score a chunk of the tail each, and a warp of the others places what is chosen in one block
// of the store after the other. Dynamic shared memory: f32 [group][rank] where there is a tail to score.
template <int threads>
__global__ __launch_bounds__(threads, threads > 256 ? 1 : 4) void choose_components_kernel(
    const float* q, int group, int head_dim, ComponentChoice choice, TailScores tail, std::int32_t* components,
    std::int32_t* planes, float* weights, const Cleared cleared, const RunPlacing placing, int first_placing) {
  static_assert(threads >= kTailThreads, "a chunk of the tail has a thread for each row");
  __shared__ int chosen[threads];
  __shared__ float scratch[threads / kWarp + 1];
  __shared__ ReadRuns<threads> reads;
  const int head = blockIdx.y, i = threadIdx.x;
  const int lane = i % kWarp, warp = i / kWarp;
  const int rank = choice.rank;
  clear_words(cleared, choice.stop, threads);
  const bool tells = blockIdx.x == 0, scores = head < tail.heads;
  float* const own_weights = reinterpret_cast<float*>(dynamic_shared());
  q += static_cast<std::int64_t>(head) * group * head_dim;
  weights += static_cast<std::int64_t>(head) * group * rank;

  float matters = 0;
  if (i < head_dim) {
    for (int h = 0; h < group; ++h) matters += fabsf(q[h * head_dim + i]);
    if (choice.spread) matters *= choice.spread[head * head_dim + i];
  }
  int used = rank;
  if (choice.bits > 0) {
    used = choose_planes<threads>(matters, head_dim, rank, choice.bits, chosen, tells ? planes + head * rank : nullptr);
  } else {
    choose_whole<threads>(matters, head_dim, rank, chosen);
  }
  if (tells && i < rank) components[head * rank + i] = chosen[i];
  if (tells && i < rank && choice.left) choice.left[head * rank + i] = chosen[i];
  if (const int turn = static_cast<int>(blockIdx.x) - first_placing; turn >= 0) {
    if (i < rank) reads.runs[i] = static_cast<std::uint16_t>(chosen[i]);
    __syncthreads();
    mark_runs(rank, i, threads, reads);
    __syncthreads();
    constexpr int warps = threads / kWarp;
    const int stride = (static_cast<int>(gridDim.x) - first_placing) * warps;
    for (std::int64_t block = turn * warps + warp; block < placing.blocks; block += stride) {
      place_runs_of(placing, block, head, reads, [=] { return rank; });
    }
    return;
  }

  for (int h = warp; h < group; h += threads / kWarp) {
    const float* query = q + h * head_dim;
    double all = 0, part = 0;
    for (int c = lane; c < head_dim; c += kWarp) all += fabsf(query[c]);
    for (int j = lane; j < used; j += kWarp) part += fabsf(query[chosen[j]]);
    all = warp_sum_double(all);
    part = warp_sum_double(part);
    const float tau = temperature_of(choice.temperature, head_dim, used, part, all);
    for (int j = lane; j < rank; j += kWarp) {
      const float weight = j < used ? query[chosen[j]] / tau : 0.0f;
      if (tells) weights[h * rank + j] = weight;
      if (scores) own_weights[h * rank + j] = weight;
    }
  }
  if (!scores) return;
  __syncthreads();
  score_tail_chunk(tail.tail, head_dim, head, chosen, own_weights, rank, group,
                   behind(tail.partials, static_cast<std::int64_t>(head) * group), static_cast<int>(blockIdx.x),
                   scratch);
}

// Grid: (chunks of the tail, KV heads from `first` on).
__global__ __launch_bounds__(kTailThreads) void sum_tail_kernel(TailView tail, int head_dim,
                                                                const std::int32_t* components, const float* weights,
                                                                int rank, int group, int first,
                                                                PartialSoftmax partials) {
  __shared__ float scratch[kTailThreads / kWarp + 1];
  const int head = first + static_cast<int>(blockIdx.y);
  score_tail_chunk(tail, head_dim, head, components + static_cast<std::int64_t>(head) * rank,
                   weights + static_cast<std::int64_t>(head) * group * rank, rank, group,
                   behind(partials, static_cast<std::int64_t>(blockIdx.y) * group), static_cast<int>(blockIdx.x),
                   scratch);
}

}  // namespace

bool choose_components(const float* q, int kv_heads, int group, int head_dim, const ComponentChoice& choice,
                       const TailScores& tail, std::int32_t* components, std::int32_t* planes, float* weights,
                       cudaStream_t stream, const RunPlacing& placing, int place_blocks, const Cleared& cleared) {
  const unsigned bytes = static_cast<unsigned>(group * choice.rank) * sizeof(float);
  const bool scores = tail.heads > 0 && tail.tail.tokens > 0 && bytes <= kMostWeightBytes;
  const unsigned chunks = scores ? static_cast<unsigned>(chunks_of(tail.tail.tokens)) : 1;
  with_most_components(head_dim, [&](auto most) {
    constexpr int threads = decltype(most)::value;
    const unsigned places = std::min(blocks_for(placing.blocks, threads / kWarp), static_cast<unsigned>(place_blocks));
    const dim3 grid(chunks + places, static_cast<unsigned>(kv_heads));
    launch("choose_components", choose_components_kernel<threads>, {grid, threads, scores ? bytes : 0}, stream, q,
           group, head_dim, choice, scores ? tail : TailScores(), components, planes, weights, cleared, placing,
           static_cast<int>(chunks));
  });
  return scores;
}

void sum_tail(const TailView& tail, int head_dim, const std::int32_t* components, const float* weights, int rank,
              int group, int first, int heads, const PartialSoftmax& partials, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(chunks_of(tail.tokens)), static_cast<unsigned>(heads));
  launch("sum_tail", sum_tail_kernel, {grid, kTailThreads}, stream, tail, head_dim, components, weights, rank, group,
         first, partials);
}

}  // namespace hayloft::gpu::cuda
