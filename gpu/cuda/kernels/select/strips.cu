#include "gpu/cuda/kernels/select/strips.h"

#include <algorithm>

#include "gpu/cuda/kernels/last_block.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/select/group_rank.cuh"
#include "gpu/cuda/memory/column_source.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr int kListThreads = 1024;
constexpr float kBoundMargin = 1.0f + 0x1p-20f;

__device__ inline bool is_finite(float x) {
  return fabsf(x) < __builtin_inff();
}

// Says of what strips are bounded and listed.
struct Bounding {
  const float* max = nullptr;  // [lists][group][stride], or with sums [lists][stride]
  const HeadSoftmax* heads = nullptr;
  int group = 0;
  bool sums = false;
  int below = 0;       // strips before the limit
  int all = 0;         // strips
  int past_strip = 0;  // positions before the limit behind these strips
  int k = 0;
  unsigned* lower = nullptr;  // [lists][stride]
  unsigned* upper = nullptr;
  unsigned* bounded = nullptr;  // [lists] blocks that have made their bounds, 0 before
  Strips out;
};

// Makes keys of the bounds of strips [0, below) of a list, by all blocks of it.
//
// Where scores are sums of logits, the scan has the best one itself. Where they are sums of softmaxes, terms are
// positive: a query head's largest logit belongs to a position whose score is at least that term, and no position's
// score is above the sum of all heads' largest terms. expf need not be monotone, and is off by 2 units in the last
// place at most, so that the upper bound's terms are enlarged by more than twice that; that roundings are monotone does
// the rest. Largest logits leave out what is not a number, so where a head's sum says that there may be such, or the
// group's scores are not numbers, nothing is known. offsets: shared [group].
__device__ inline void bound_strips(const Bounding& a, std::int64_t list, float* offsets) {
  const std::int64_t first = list * a.group, stride = a.out.stride;
  if (!a.sums) group_offsets(a.heads + first, a.group, offsets);
  __syncthreads();
  bool known = true;
  for (int h = 0; !a.sums && h < a.group; ++h) {
    const float sum = a.heads[first + h].sum;
    known = known && is_finite(sum) && sum > 0 && is_finite(offsets[h]);
  }
  const int threads = static_cast<int>(gridDim.x) * kListThreads;
  for (int strip = (static_cast<int>(blockIdx.x) * kListThreads + static_cast<int>(threadIdx.x)) * 4; strip < a.below;
       strip += threads * 4) {
    float least[4] = {}, most[4] = {};
    for (int h = 0; h < (a.sums ? 1 : a.group); ++h) {
      const uint4 four = load16(a.max + (a.sums ? list : first + h) * stride + strip);
      const unsigned words[4] = {four.x, four.y, four.z, four.w};
      for (int i = 0; i < 4; ++i) {
        const float x = float_of(words[i]);
        if (a.sums) {
          least[i] = most[i] = x;
        } else {
          const float share = share_of(x, offsets[h]);
          least[i] = fmaxf(least[i], share);
          most[i] += share * kBoundMargin;
        }
      }
    }
    unsigned low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      low[i] = known ? key_of(least[i]) : 0;
      high[i] = known ? key_of(most[i]) : UINT32_MAX;
    }
    store16(a.lower + list * stride + strip, {low[0], low[1], low[2], low[3]});
    store16(a.upper + list * stride + strip, {high[0], high[1], high[2], high[3]});
  }
}

// Grid: some blocks, lists. All of them make bounds; the last one of a list then lists: 22 leading bits of the k-th
// largest lower bound, the strips below the limit whose upper bound is not below that, and the others. A warp takes a
// run of strips, so that they stay in order. Dynamic shared memory: f32 [group].
__global__ __launch_bounds__(kListThreads) void list_strips(const Bounding a) {
  constexpr int warps = kListThreads / kWarp, step = 4 * kWarp;
  __shared__ unsigned bins[kBins];
  __shared__ unsigned scratch[warps];
  __shared__ Cut cut;
  __shared__ bool last;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, below = a.below;
  const std::int64_t list = blockIdx.y;
  bound_strips(a, list, reinterpret_cast<float*>(dynamic_shared()));
  if (!is_last_block(a.bounded + list, gridDim.x, last)) return;
  const unsigned* const lower = a.lower + list * a.out.stride;
  const unsigned* const upper = a.upper + list * a.out.stride;
  // The four keys from `at` on, which count below `below`.
  const auto load = [&](const unsigned* keys, int at, unsigned(&four)[4]) {
    const uint4 x = at < below ? load16(keys + at) : uint4{};
    four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
    return below - at < 4 ? below - at : 4;
  };
  for (int level = 0; level < 2; ++level) {
    for (int i = threadIdx.x; i < kBins; i += kListThreads) bins[i] = 0;
    __syncthreads();
    const Cut before = level == 0 ? Cut{0, static_cast<unsigned>(a.k)} : cut;
    for (int at = 4 * static_cast<int>(threadIdx.x); at < below; at += 4 * kListThreads) {
      unsigned key[4];
      const int live = load(lower, at, key);
      for (int i = 0; i < live; ++i) {
        if (level == 1 && key[i] >> level_shift(0) != before.prefix) continue;
        atomic_add(bins + (key[i] >> level_shift(level) & ((1u << level_bits(level)) - 1)), 1u);
      }
    }
    __syncthreads();
    narrow<kListThreads>(bins, level, before, scratch, cut);
    __syncthreads();
  }
  const unsigned threshold = cut.prefix << level_shift(1);

  const int run = (below + kListThreads * 4 - 1) / (kListThreads * 4) * step;
  const int begin = warp * run, end = begin + run < below ? begin + run : below;
  unsigned count = 0;
  for (int at = begin + 4 * lane; at < end; at += step) {
    unsigned key[4];
    const int live = load(upper, at, key);
    for (int i = 0; i < live; ++i) count += key[i] >= threshold ? 1 : 0;
  }
  unsigned total;
  unsigned to = block_prefix<kListThreads>(count, scratch, total);
  to = shuffle(to, 0);  // of the warps before
  std::int32_t* const listed = a.out.listed + list * a.out.stride;
  for (int first = begin; first < end; first += step) {
    const int at = first + 4 * lane;
    unsigned key[4], own = 0;
    const int live = load(upper, at, key);
    for (int i = 0; i < live; ++i) own += key[i] >= threshold ? 1 : 0;
    const unsigned before = warp_prefix(own);
    unsigned next = to + before;
    for (int i = 0; i < live; ++i) {
      if (key[i] >= threshold) listed[next++] = at + i;
    }
    to += shuffle(before + own, kWarp - 1);
  }
  for (int at = below + static_cast<int>(threadIdx.x); at < a.all; at += kListThreads) listed[total + at - below] = at;
  if (threadIdx.x != 0) return;
  a.out.counts[list] = static_cast<std::int32_t>(total) + a.all - below;
  a.out.limits[list] = static_cast<std::int32_t>(total) * kStripTokens + a.past_strip;
}

}  // namespace

StripBounds::StripBounds(const Context& context, int heads, int group, bool sums, std::int64_t tokens, int k,
                         cudaStream_t stream)
    : context_(context),
      stream_(stream),
      group_(group),
      sums_(sums),
      strips_(strips_of(tokens)),
      stride_(strips_of(chunks_of(tokens) * kChunkTokens)),
      max_(context, std::int64_t{heads} * (sums ? 1 : group) * stride_, stream),
      bounds_(context, 2 * std::int64_t{heads} * stride_, stream),
      listed_(context, heads * (stride_ + 2), stream),
      places_(context, std::int64_t{heads} * k, stream),
      heads_(heads) {}

Strips StripBounds::list(const HeadSoftmax* softmax, int lists, int k, std::int64_t limit, unsigned* counters) const {
  Bounding a;
  a.max = max_;
  a.heads = softmax;
  a.group = group_;
  a.sums = sums_;
  a.below = static_cast<int>(limit / kStripTokens);
  a.all = static_cast<int>(strips_);
  a.past_strip = static_cast<int>(limit % kStripTokens);
  a.k = k;
  a.lower = bounds_;
  a.upper = a.lower + heads_ * stride_;
  a.bounded = counters;
  a.out.listed = listed_;
  a.out.counts = a.out.listed + heads_ * stride_;
  a.out.limits = a.out.counts + heads_;
  a.out.stride = stride_;
  const unsigned blocks = std::min(blocks_for(a.below, 4 * kListThreads),
                                   static_cast<unsigned>(std::max(1, 2 * context_.multiprocessors / lists)));
  const Shape shape{dim3(blocks, static_cast<unsigned>(lists)), kListThreads,
                    static_cast<unsigned>(group_ * static_cast<int>(sizeof(float)))};
  launch("list_strips", list_strips, shape, stream_, a);
  return a.out;
}

}  // namespace hayloft::gpu::cuda
