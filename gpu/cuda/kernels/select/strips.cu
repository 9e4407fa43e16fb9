#include "gpu/cuda/kernels/select/strips.h"

#include <algorithm>

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

// The bounds of strips [0, count) as keys. Grid: some blocks, lists. Dynamic shared memory: f32 [group].
//
// Where scores are sums of logits, the scan has the best one itself. Where they are sums of softmaxes, terms are
// positive: a query head's largest logit belongs to a position whose score is at least that term, and no position's
// score is above the sum of all heads' largest terms. expf need not be monotone, and is off by 2 units in the last
// place at most, so that the upper bound's terms are enlarged by more than twice that; that roundings are monotone does
// the rest. Largest logits leave out what is not a number, so where a head's sum says that there may be such, or the
// group's scores are not numbers, nothing is known.
__global__ __launch_bounds__(kSelectThreads) void bound_strips(const float* max, std::int64_t stride,
                                                               const HeadSoftmax* heads, int group, bool sums,
                                                               int count, unsigned* lower, unsigned* upper) {
  float* const offsets = reinterpret_cast<float*>(dynamic_shared());
  const std::int64_t list = blockIdx.y, first = list * group;
  if (!sums) group_offsets(heads + first, group, offsets);
  __syncthreads();
  bool known = true;
  for (int h = 0; !sums && h < group; ++h) {
    const float sum = heads[first + h].sum;
    known = known && is_finite(sum) && sum > 0 && is_finite(offsets[h]);
  }
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kSelectThreads;
  for (std::int64_t strip = (blockIdx.x * static_cast<std::int64_t>(kSelectThreads) + threadIdx.x) * 8; strip < count;
       strip += threads * 8) {
    float least[8] = {}, most[8] = {};
    for (int h = 0; h < (sums ? 1 : group); ++h) {
      const float* const from = max + (sums ? list : first + h) * stride + strip;
      const uint4 low = load16(from), high = load16(from + 4);
      const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      for (int i = 0; i < 8; ++i) {
        const float x = float_of(words[i]);
        if (sums) {
          least[i] = most[i] = x;
        } else {
          const float share = share_of(x, offsets[h]);
          least[i] = fmaxf(least[i], share);
          most[i] += share * kBoundMargin;
        }
      }
    }
    unsigned low[8], high[8];
    for (int i = 0; i < 8; ++i) {
      low[i] = known ? key_of(least[i]) : 0;
      high[i] = known ? key_of(most[i]) : UINT32_MAX;
    }
    unsigned* const to = lower + list * stride + strip;
    store16(to, {low[0], low[1], low[2], low[3]});
    store16(to + 4, {low[4], low[5], low[6], low[7]});
    unsigned* const above = upper + list * stride + strip;
    store16(above, {high[0], high[1], high[2], high[3]});
    store16(above + 4, {high[4], high[5], high[6], high[7]});
  }
}

// One block per list: 22 leading bits of the k-th largest lower bound of the first `below` strips, those of them whose
// upper bound is not below that, and the others up to `all`. A warp takes a run of strips, so that they stay in order.
__global__ __launch_bounds__(kListThreads) void list_strips(const unsigned* lower, const unsigned* upper, int below,
                                                            int all, int k, int past_strip, Strips out) {
  constexpr int warps = kListThreads / kWarp, step = 4 * kWarp;
  __shared__ unsigned bins[kBins];
  __shared__ unsigned scratch[warps];
  __shared__ Cut cut;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t list = blockIdx.x;
  lower += list * out.stride;
  upper += list * out.stride;
  // The four keys from `at` on, which count below `below`.
  const auto load = [&](const unsigned* keys, int at, unsigned(&four)[4]) {
    const uint4 x = at < below ? load16(keys + at) : uint4{};
    four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
    return below - at < 4 ? below - at : 4;
  };
  for (int level = 0; level < 2; ++level) {
    for (int i = threadIdx.x; i < kBins; i += kListThreads) bins[i] = 0;
    __syncthreads();
    const Cut before = level == 0 ? Cut{0, static_cast<unsigned>(k)} : cut;
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
  std::int32_t* const listed = out.listed + list * out.stride;
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
  for (int at = below + static_cast<int>(threadIdx.x); at < all; at += kListThreads) listed[total + at - below] = at;
  if (threadIdx.x != 0) return;
  out.counts[list] = static_cast<std::int32_t>(total) + all - below;
  out.limits[list] = static_cast<std::int32_t>(total) * kStripTokens + past_strip;
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

Strips StripBounds::list(const HeadSoftmax* softmax, int lists, int k, std::int64_t limit) const {
  const auto all = static_cast<unsigned>(lists);
  const auto below = static_cast<int>(limit / kStripTokens);
  unsigned* const lower = bounds_;
  unsigned* const upper = lower + heads_ * stride_;
  Strips strips;
  strips.listed = listed_;
  strips.counts = strips.listed + heads_ * stride_;
  strips.limits = strips.counts + heads_;
  strips.stride = stride_;
  const unsigned blocks = std::min(blocks_for(below, 8 * kSelectThreads),
                                   static_cast<unsigned>(std::max(1, 4 * context_.multiprocessors / lists)));
  const unsigned offsets = static_cast<unsigned>(group_) * sizeof(float);
  launch("bound_strips", bound_strips, {dim3(blocks, all), kSelectThreads, offsets}, stream_, max_, stride_, softmax,
         group_, sums_, below, lower, upper);
  launch("list_strips", list_strips, {all, kListThreads}, stream_, lower, upper, below, static_cast<int>(strips_), k,
         static_cast<int>(limit % kStripTokens), strips);
  return strips;
}

}  // namespace hayloft::gpu::cuda
