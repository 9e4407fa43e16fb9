#pragma once

#include "gpu/cuda/kernels/rest/masses.cuh"
#include "index/scan/rest_kernels.h"

// The line from approximate scores to logits of each query head (runtime/attention/logit_lines.h).
namespace hayloft::gpu::cuda {

static_assert(index::line_samples == kRestThreads);  // a thread each

struct LineFit {
  // The sample is that of runtime/attention/line_sample.h.
  const f16* keys = nullptr;                // [Hkv][d][line_row]
  const std::int32_t* positions = nullptr;  // [samples]
  int samples = 0;
  const float* q = nullptr;                  // f32 [Hq][d]
  float scale = 0;                           // 1 / sqrt(d)
  const std::int32_t* components = nullptr;  // [Hkv][r]
  const float* weights = nullptr;            // [Hq][r]
  int rank = 0;
  int group = 0;
  int head_dim = 0;
  const float* scores = nullptr;  // [Hq][stride], where planes rank; null: whole components, whose keys are there
  std::int64_t stride = 0;
};

// Grid: KV heads.
static __global__ __launch_bounds__(kRestThreads) void fit_lines(LineFit a, index::LogitLine* lines) {
  __shared__ double scratch[kRestThreads / kWarp];
  const int d = a.head_dim;
  const std::int64_t head = blockIdx.x, first = head * a.group;
  const int thread = static_cast<int>(threadIdx.x);
  const bool live = thread < a.samples;
  const f16* const keys = a.keys + head * d * index::line_row + (live ? thread : 0);
  const std::int32_t position = live ? a.positions[thread] : 0;
  const double count = a.samples;
  for (int h = 0; h < a.group; ++h) {
    const std::int64_t query = first + h;
    float approximate = 0, exact = 0;
    if (live) {
      for (int c = 0; c < d; ++c) exact += a.q[query * d + c] * a.scale * widen(keys[c * index::line_row]);
      if (a.scores != nullptr) {
        approximate = a.scores[query * a.stride + position];
      } else {
        for (int j = 0; j < a.rank; ++j) {
          const int c = a.components[head * a.rank + j];
          approximate += a.weights[query * a.rank + j] * widen(keys[c * index::line_row]);
        }
      }
    }
    const double mean_x = block_sum_of(approximate, scratch) / count;
    const double mean_y = block_sum_of(exact, scratch) / count;
    const double x = live ? approximate - mean_x : 0, y = live ? exact - mean_y : 0;
    const double xx = block_sum_of(x * x, scratch);
    const double xy = block_sum_of(x * y, scratch);
    const double yy = block_sum_of(y * y, scratch);
    if (thread != 0) continue;
    if (a.samples == 0) {
      lines[query] = {1, 0, 0};
      continue;
    }
    double slope = xx > 0 ? xy / xx : 1.0;
    slope = slope < 0.05 ? 0.05 : 1.2 < slope ? 1.2 : slope;
    const double residual = (yy - 2 * slope * xy + slope * slope * xx) / count;
    // Lowered by a quarter of the variance that it leaves, as on the host.
    const double left = residual > 0 ? residual : 0.0;
    const auto offset = static_cast<float>(mean_y - slope * mean_x) - static_cast<float>(left < 2 ? left : 2.0) / 4;
    lines[query] = {static_cast<float>(slope), offset, static_cast<float>(left)};
  }
}

}  // namespace hayloft::gpu::cuda
