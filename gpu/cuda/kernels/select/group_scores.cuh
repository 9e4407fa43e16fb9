#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/kernels/select/components.h"
#include "gpu/cuda/kernels/select/top_positions.cuh"
#include "gpu/cuda/kernels/warp.cuh"

// From each query head's logits to one score per position and KV head, and from the selection to alpha.
namespace hayloft::gpu::cuda {

// One query head's softmax over the store and the tail.
struct HeadSoftmax {
  float max;
  float sum;       // of exp(s - max)
  float outside;   // the tail's part of it
  float reach;     // the largest logit of what may be selected
  double log_sum;  // of exp(s)
};

// Logits f32 [batch Hq][stride] of the store's positions, and the softmax of their chunks.
struct Logits {
  const float* logits = nullptr;
  std::int64_t stride = 0;
  PartialSoftmax partials;  // [batch Hq][partials.stride]: the store's chunks, then the tail's
  std::int64_t store_chunks = 0;
  std::int64_t tail_chunks = 0;
  int group = 0;
};

// One block per query head of the batch: its softmax from its partials, always in the same order, but for log_sum that
// of ranked_by, where there is one. `selectable` is the number of chunks before the limit.
__global__ __launch_bounds__(kSelectThreads) void normalise(Logits in, std::int64_t selectable, SoftmaxPart ranked_by,
                                                            HeadSoftmax* out) {
  __shared__ float scratch[kSelectThreads / kWarp + 1];
  constexpr float infinity = __builtin_inff();
  const std::int64_t chunks = in.store_chunks + in.tail_chunks;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * in.partials.stride;
  float max = -infinity, reach = -infinity;
  for (std::int64_t c = threadIdx.x; c < chunks; c += kSelectThreads) {
    const float x = in.partials.max[row + c];
    max = fmaxf(max, x);
    if (c < selectable) reach = fmaxf(reach, x);
  }
  max = block_max(max, scratch);
  reach = block_max(reach, scratch);
  float store = 0, tail = 0;
  for (std::int64_t c = threadIdx.x; c < chunks; c += kSelectThreads) {
    const float x = in.partials.max[row + c];
    const float part = x == max ? in.partials.sum[row + c] : in.partials.sum[row + c] * expf(x - max);
    (c < in.store_chunks ? store : tail) += part;
  }
  store = block_sum(store, scratch);
  tail = block_sum(tail, scratch);
  if (threadIdx.x != 0) return;
  const float sum = store + tail;
  const float by_max = ranked_by.max ? ranked_by.max[blockIdx.x] : max;
  const float by_sum = ranked_by.max ? ranked_by.sum[blockIdx.x] : sum;
  out[blockIdx.x] = {max, sum, tail, reach, by_max + log(static_cast<double>(by_sum))};
}

// Computes what is taken off each of the group's logits: the log-sum-exp, less a number that the group shares. A
// position's score is the sum over the group of exp(s - log-sum-exp); all of a group are scaled by one factor that
// brings the largest near 1: the order stays, and nothing underflows only because what dominates lies outside the store
// or at or after the limit. offsets: shared [group]; a barrier must follow.
__device__ inline void group_offsets(const HeadSoftmax* heads, int group, float* offsets) {
  double top = -static_cast<double>(__builtin_inff());
  for (int h = 0; h < group; ++h) top = fmax(top, heads[h].reach - heads[h].log_sum);
  for (int h = threadIdx.x; h < group; h += kSelectThreads) {
    offsets[h] = static_cast<float>(heads[h].log_sum + top);
  }
}

// The group's score of every position of [0, limit) as a key, the largest key of each chunk, and the histogram of the
// keys' top bits. sum_logits: the score is the sum of the logits (GroupRule::logits, and a group of one, for which the
// rules agree); else the sum of the softmaxes. exp is held at exp(-87), where f32 is about to run out of normal
// numbers, as on the CPU: ties there are ties everywhere. Grid: some blocks, KV heads of the batch. Dynamic shared
// memory: f32 [group].
__global__ __launch_bounds__(kSelectThreads) void rank_positions(Logits in, const HeadSoftmax* heads, bool sum_logits,
                                                                 std::int64_t limit, unsigned* keys,
                                                                 unsigned* key_chunk_max, unsigned* histogram) {
  __shared__ unsigned bins[kBins];
  float* const offsets = reinterpret_cast<float*>(dynamic_shared());
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t list = blockIdx.y, first = list * in.group;
  if (!sum_logits) group_offsets(heads + first, in.group, offsets);
  clear_bins(bins);
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kSelectThreads / kWarp);
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kSelectThreads / kWarp) + warp;
       chunk * kChunkKeys < limit; chunk += warps) {
    const std::int64_t position = chunk * kChunkKeys + lane * 8;
    float score[8] = {};
    for (int h = 0; h < in.group; ++h) {
      const float* s = in.logits + (first + h) * in.stride + position;
      const uint4 low = load16(s), high = load16(s + 4);
      const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      const float offset = sum_logits ? 0.0f : offsets[h];
      for (int i = 0; i < 8; ++i) {
        const float x = float_of(words[i]) - offset;
        score[i] += sum_logits ? x : expf(x < -87 ? -87.0f : x);
      }
    }
    unsigned key[8], most = 0;
    for (int i = 0; i < 8; ++i) {
      key[i] = key_of(score[i]);
      if (position + i < limit) {
        most = most > key[i] ? most : key[i];
        atomic_add(bins + (key[i] >> level_shift(0)), 1u);
      }
    }
    unsigned* to = keys + list * in.stride + position;
    store16(to, {key[0], key[1], key[2], key[3]});
    store16(to + 4, {key[4], key[5], key[6], key[7]});
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const unsigned other = shuffle_xor(most, mask);
      most = most > other ? most : other;
    }
    if (lane == 0) key_chunk_max[list * in.partials.stride + chunk] = most;
  }
  merge_bins(bins, histogram + list * kBins);
}

// One block per query head of the batch: alpha, the softmax mass of the selected positions [lists][k], of those at and
// after the limit, and of the tail. Rounding alone can take it past one.
__global__ __launch_bounds__(kSelectThreads) void weigh_selection(Logits in, const HeadSoftmax* heads,
                                                                  const std::int32_t* positions, int k,
                                                                  std::int64_t limit, std::int64_t tokens,
                                                                  float* alpha) {
  __shared__ float scratch[kSelectThreads / kWarp + 1];
  const std::int64_t h = blockIdx.x;
  const HeadSoftmax head = heads[h];
  const float* s = in.logits + h * in.stride;
  positions += h / in.group * k;
  double mass = 0;
  for (int i = threadIdx.x; i < k; i += kSelectThreads) mass += expf(s[positions[i]] - head.max);
  for (std::int64_t t = limit + threadIdx.x; t < tokens; t += kSelectThreads) mass += expf(s[t] - head.max);
  const float share = (block_sum(static_cast<float>(mass), scratch) + head.outside) / head.sum;
  if (threadIdx.x == 0) alpha[h] = share > 1 ? 1.0f : share;
}

// One block per query head of the batch: of a search in parts what SparqPart says of the part, whose pointers are those
// of the batch.
__global__ __launch_bounds__(kSelectThreads) void tell_part(Logits in, const HeadSoftmax* heads,
                                                            const std::int32_t* positions, int k, std::int64_t limit,
                                                            std::int64_t tokens, SparqPart part) {
  __shared__ float scratch[kSelectThreads / kWarp + 1];
  const std::int64_t h = blockIdx.x;
  const HeadSoftmax head = heads[h];
  const float* s = in.logits + h * in.stride;
  positions += h / in.group * k;
  for (int i = threadIdx.x; i < k; i += kSelectThreads) part.logits[h * k + i] = s[positions[i]];
  double late = 0;
  for (std::int64_t t = limit + threadIdx.x; t < tokens; t += kSelectThreads) late += expf(s[t] - head.max);
  const float attended = block_sum(static_cast<float>(late), scratch) + head.outside;
  if (threadIdx.x != 0) return;
  part.all.max[h] = head.max;
  part.all.sum[h] = head.sum;
  part.attended.max[h] = head.max;
  part.attended.sum[h] = attended;
}

// For a store that holds nothing: the tail is attended whole.
__global__ void attend_all(int query_heads, float* alpha) {
  const int h = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (h < query_heads) alpha[h] = 1;
}

}  // namespace hayloft::gpu::cuda
