#pragma once

#include "gpu/cuda/kernels/planes.cuh"
#include "gpu/cuda/kernels/rest/masses.cuh"

// The line from approximate scores to logits of each query head (runtime/attention/logit_lines.h).
namespace hayloft::gpu::cuda {

inline constexpr int kLineTokens = 512;   // the newest of the tail
inline constexpr int kLineSamples = 256;  // of these, at most; a thread each
static_assert(kLineSamples == kRestThreads);

struct LineFit {
  TailView tail;
  const float* q = nullptr;                  // f32 [Hq][d]
  float scale = 0;                           // 1 / sqrt(d)
  const std::int32_t* components = nullptr;  // [Hkv][r]
  const std::int32_t* planes = nullptr;      // [Hkv][r]; null: whole components
  const float* weights = nullptr;            // [Hq][r]
  int rank = 0;
  int group = 0;
  int head_dim = 0;
  // The positions selected, [Hkv][k], where lines are fitted over them as well, with their scores and logits.
  const std::int32_t* positions = nullptr;
  int k = 0;
  const float* scores = nullptr;  // [Hq][stride]
  std::int64_t stride = 0;
  const float* logits = nullptr;  // [Hq][k]
};

// Dynamic shared memory of fit_lines: weights f32 [group][d], queries likewise, then of planes 5 tables f32 [d].
inline unsigned line_shared_bytes(int group, int head_dim, bool planes) {
  return static_cast<unsigned>((2 * group + (planes ? 5 : 0)) * head_dim) * static_cast<unsigned>(sizeof(float));
}

// The keys that a search reads in place of the tail's: the first planes of component c over the range of the samples,
// as runtime/attention/logit_lines.cpp has them.
struct ReadKeys {
  float* by;
  float* plus;
  float* top;
  float* base;
  float* step;

  __device__ ReadKeys(float* tables, int d) : by(tables), plus(by + d), top(plus + d), base(top + d), step(base + d) {}
  __device__ void set(int c, float lo, float hi, int planes) const {
    const KeyRange range = plane_range(lo, hi);
    const float half = widen(range.half), centre = widen(range.centre);
    const auto cells = static_cast<float>(1 << planes);
    const float unit = half * step_of(planes);
    by[c] = half > 0 ? cells / 2 / half : 0;
    plus[c] = cells / 2 - centre * by[c];
    top[c] = cells - 1;
    step[c] = 2 * unit;
    base[c] = centre + unit * (1 - cells);
  }
  __device__ static float step_of(int planes) {  // offload::plane_step()
    return planes == 1 ? 0.375f : planes == 2 ? 0.21875f : planes == 3 ? 0.125f : planes == 4 ? 0.0625f : 0.0f;
  }
  __device__ float operator()(int c, float key) const {
    float cell = key * by[c] + plus[c];
    cell = cell < 0 ? 0 : cell;
    cell = top[c] < cell ? top[c] : cell;
    return base[c] + step[c] * static_cast<float>(static_cast<int>(cell));
  }
};

// x . y of d components, in eight sums, as runtime/attention/lanes.h has it.
template <class X>
__device__ inline float dot_of_lanes(const X& x, const float* y, int d) {
  float sums[8] = {};
  for (int c = 0; c < d; c += 8) {
    for (int i = 0; i < 8; ++i) sums[i] += x(c + i) * y[c + i];
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += sums[i];
  return sum;
}

// Grid: KV heads.
static __global__ __launch_bounds__(kRestThreads) void fit_lines(LineFit a, index::LogitLine* lines) {
  __shared__ double scratch[kRestThreads / kWarp];
  const int d = a.head_dim;
  const std::int64_t head = blockIdx.x, first = head * a.group;
  const int thread = static_cast<int>(threadIdx.x);
  float* const weights = reinterpret_cast<float*>(dynamic_shared());
  float* const queries = weights + a.group * d;
  const ReadKeys read(queries + a.group * d, d);
  const std::int64_t newest = a.tail.tokens < kLineTokens ? a.tail.tokens : kLineTokens;
  const std::int64_t apart = newest <= kLineSamples ? 1 : (newest + kLineSamples - 1) / kLineSamples;
  const int samples = static_cast<int>((newest + apart - 1) / apart);
  const std::int64_t newest_slot = samples > 0 ? a.tail.first + a.tail.tokens - 1 : 0;
  const f16* const last = a.tail.rows + (head * a.tail.capacity + newest_slot) * 2 * d;
  const auto key_of_sample = [&](int t) { return last - t * apart * 2 * d; };

  for (int i = thread; i < a.group * d; i += kRestThreads) {
    weights[i] = 0;
    queries[i] = a.q[first * d + i] * a.scale;
  }
  __syncthreads();
  for (int i = thread; i < a.group * a.rank; i += kRestThreads) {
    const int h = i / a.rank, j = i % a.rank;
    weights[h * d + a.components[head * a.rank + j]] = a.weights[(first + h) * a.rank + j];
  }
  if (a.planes && samples > 0) {
    for (int c = thread; c < d; c += kRestThreads) read.set(c, 0, 0, 0);
    __syncthreads();
    for (int j = thread; j < a.rank; j += kRestThreads) {
      const int c = a.components[head * a.rank + j];
      float lo = widen(key_of_sample(0)[c]), hi = lo;
      for (int t = 1; t < samples; ++t) {
        const float x = widen(key_of_sample(t)[c]);
        lo = x < lo ? x : lo;
        hi = hi < x ? x : hi;
      }
      read.set(c, lo, hi, a.planes[head * a.rank + j]);
    }
  }
  __syncthreads();

  const bool live = thread < samples;
  const f16* const key = key_of_sample(live ? thread : 0);
  const int more = a.positions ? a.k : 0;
  const double count = samples + more;
  for (int h = 0; h < a.group; ++h) {
    const std::int64_t query = first + h;
    float of_tail = 0, exact = 0;
    if (live) {
      const auto own = [&](int c) { return widen(key[c]); };
      const auto as_read = [&](int c) { return read(c, widen(key[c])); };
      of_tail = a.planes ? dot_of_lanes(as_read, weights + h * d, d) : dot_of_lanes(own, weights + h * d, d);
      exact = dot_of_lanes(own, queries + h * d, d);
    }
    const auto score = [&](int i) { return a.scores[query * a.stride + a.positions[head * a.k + i]]; };
    double x = live ? of_tail : 0, y = live ? exact : 0;
    for (int i = thread; i < more; i += kRestThreads) {
      x += score(i);
      y += a.logits[query * a.k + i];
    }
    const double mean_x = block_sum_of(x, scratch) / count, mean_y = block_sum_of(y, scratch) / count;
    double xx = 0, xy = 0, yy = 0;
    const auto add = [&](double of_x, double of_y) {
      of_x -= mean_x;
      of_y -= mean_y;
      xx += of_x * of_x;
      xy += of_x * of_y;
      yy += of_y * of_y;
    };
    if (live) add(of_tail, exact);
    for (int i = thread; i < more; i += kRestThreads) add(score(i), a.logits[query * a.k + i]);
    xx = block_sum_of(xx, scratch);
    xy = block_sum_of(xy, scratch);
    yy = block_sum_of(yy, scratch);
    if (thread != 0) continue;
    if (count == 0) {
      lines[query] = {1, 0, 0};
      continue;
    }
    double slope = xx > 0 ? xy / xx : 1.0;
    slope = slope < 0.05 ? 0.05 : 1.2 < slope ? 1.2 : slope;
    const double residual = (yy - 2 * slope * xy + slope * slope * xx) / count;
    // Lowered by half of the variance that it leaves, as on the host.
    const double left = residual > 0 ? residual : 0.0;
    const auto offset = static_cast<float>(mean_y - slope * mean_x) - static_cast<float>(left < 2 ? left : 2.0) / 2;
    lines[query] = {static_cast<float>(slope), offset, static_cast<float>(left)};
  }
}

}  // namespace hayloft::gpu::cuda
