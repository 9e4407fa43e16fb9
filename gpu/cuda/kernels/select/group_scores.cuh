#pragma once

#include <cstdint>

#include "gpu/backend.h"
#include "gpu/cuda/kernels/select/alpha.cuh"
#include "gpu/cuda/kernels/select/normalise.cuh"
#include "gpu/cuda/kernels/warp.cuh"

// From each query head's logits to one score per position and KV head.
namespace hayloft::gpu::cuda {

// One block per query head of the batch.
__global__ __launch_bounds__(kSelectThreads) void normalise(PartialSoftmax partials, Normalising a) {
  __shared__ float scratch[kSelectThreads / kWarp];
  normalise_heads<1>(a, partials, blockIdx.x, 1, scratch);
}

// The group's score of every position of [0, limit) as a key, the largest key of each chunk, and the histogram of the
// keys' top bits. sum_logits: the score is the sum of the logits (GroupRule::logits, and a group of one, for which the
// rules agree); else the sum of the softmaxes. Grid: some blocks, KV heads of the batch. Dynamic shared memory: f32
// [group].
__global__ __launch_bounds__(kSelectThreads) void rank_positions(Logits in, const HeadSoftmax* heads, bool sum_logits,
                                                                 std::int64_t limit, unsigned* keys,
                                                                 unsigned* key_chunk_max, std::int64_t chunk_stride,
                                                                 unsigned* histogram) {
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
        score[i] += sum_logits ? float_of(words[i]) : share_of(float_of(words[i]), offset);
      }
    }
    keep_keys(score, limit - position, keys + list * in.stride + position, key_chunk_max + list * chunk_stride + chunk,
              bins);
  }
  merge_bins(bins, histogram + list * kBins);
}

// Writes alpha of a selection of none, a block that of a KV head of the batch.
__global__ __launch_bounds__(kSelectThreads) void weigh_selection(Weighing a) {
  __shared__ float sums[kWeighedHeads * (kSelectThreads / kWarp)];
  weigh_list<kSelectThreads>(a, static_cast<int>(blockIdx.x), nullptr, 0, sums);
}

// One block per query head of the batch: of a search in parts what SparqPart says of the part, whose pointers are those
// of the batch; logits of what is selected lie at places [lists][k].
__global__ __launch_bounds__(kSelectThreads) void tell_part(Logits in, const HeadSoftmax* heads,
                                                            const std::int32_t* places, int k, std::int64_t limit,
                                                            std::int64_t tokens, SparqPart part) {
  __shared__ float scratch[kSelectThreads / kWarp + 1];
  const std::int64_t h = blockIdx.x;
  const HeadSoftmax head = heads[h];
  const float* s = in.logits + h * in.stride;
  places += h / in.group * k;
  const std::int64_t shift = in.shift(h / in.group, limit);
  for (int i = threadIdx.x; i < k; i += kSelectThreads) part.logits[h * k + i] = s[places[i]];
  double late = 0;
  for (std::int64_t t = limit + threadIdx.x; t < tokens; t += kSelectThreads) late += expf(s[t + shift] - head.max);
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
