#pragma once

#include "gpu/cuda/kernels/quantised_rows.cuh"
#include "gpu/cuda/kernels/rest/masses.cuh"
#include "gpu/cuda/memory/device_store.h"

// From what is attended exactly to the estimate of all: by the values drawn, or by the mean value
// (runtime/attention/rest_estimate.cpp has the same for the host).
namespace hayloft::gpu::cuda {

// Brings V of the positions drawn to values f16 [Hkv][found][d]: those of which the chance is not 0. A warp takes a
// row, a lane eight components of it. Grid: (groups of rows, KV heads).
static __global__ __launch_bounds__(kRestThreads) void fetch_values(DeviceStore store, const std::int32_t* positions,
                                                                    const float* chances, int found, f16* values) {
  const int d = store.head_dim;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x) * (kRestThreads / kWarp) + warp;
  if (i >= found) return;
  const std::int64_t at = static_cast<std::int64_t>(kv_head) * found + i;
  if (chances[at] == 0) return;
  const std::int64_t position = positions[at];
  for (int octet = lane; octet < d / 8; octet += kWarp) {
    uint4 eight;
    if (store.row_format == RowFormat::f16) {
      eight = load16_once(store.row(kv_head, position) + d + octet * 8);
    } else {
      const auto* const row = reinterpret_cast<const unsigned char*>(store.integer_row(kv_head, position));
      eight = store.row_format == RowFormat::int8 ? read_octet<RowFormat::int8>(row, nullptr, d, d / 8 + octet)
                                                  : read_octet<RowFormat::int4>(row, nullptr, d, d / 8 + octet);
    }
    store16(values + at * d + octet * 8, eight);
  }
}

// The exact part of the attention, and where the results go.
struct RestOutput {
  const float* weighted = nullptr;  // [Hq][d]
  const float* max = nullptr;       // [Hq]
  const float* sum = nullptr;       // [Hq]
  float* out = nullptr;             // [Hq][d]
  float* error = nullptr;           // [Hq]
  float* share = nullptr;           // [Hq]
  int head_dim = 0;
  int group = 0;
};

// By the values drawn, f16 [Hkv][found][d]. Grid: query heads; of heads of up to `most` components thread c has
// component c and each kRestThreads further.
template <int most>
static __global__ __launch_bounds__(kRestThreads) void add_drawn_values(RestOutput to, const index::LogitLine* lines,
                                                                        const float* chances, const float* weights,
                                                                        const f16* values, int found) {
  __shared__ double scratch[kRestThreads / kWarp];
  __shared__ float y[most];
  constexpr int each = most / kRestThreads;
  const int d = to.head_dim;
  const std::int64_t h = blockIdx.x, list = h / to.group;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  chances += list * found;
  weights += h * found;
  values += list * found * d;

  float rest = 0, added[each] = {}, exact[each];
  for (int i = 0; i < found; ++i) {
    const float weight = weights[i];
    if (weight == 0) continue;  // of NaN not
    rest += weight;
    for (int n = 0; n < each; ++n) {
      const int c = thread + n * kRestThreads;
      if (c < d) added[n] += weight * widen(values[static_cast<std::int64_t>(i) * d + c]);
    }
  }
  const bool known = rest - rest == 0;  // a number
  for (int n = 0; n < each; ++n) {
    const int c = thread + n * kRestThreads;
    exact[n] = c < d && to.sum[h] != 0 ? to.weighted[h * d + c] / to.sum[h] : 0.0f;
    const float own = known ? (exact[n] + added[n]) / (1 + rest) : exact[n];
    y[c] = c < d ? own : 0.0f;
    if (c < d) to.out[h * d + c] = own;
  }
  __syncthreads();
  if (!known || rest == 0) {
    if (thread == 0) {
      to.share[h] = 1;
      to.error[h] = known ? 0.0f : __builtin_inff();
    }
    return;
  }

  const double residual = lines[h].residual;
  const double spread = exp(residual < 1.5 ? residual : 1.5) - 1;
  double variance = 0;
  for (int i = warp; i < found; i += kRestThreads / kWarp) {
    if (weights[i] == 0) continue;
    double far = 0;
    for (int j = lane; j < d; j += kWarp) {
      const double apart = static_cast<double>(widen(values[static_cast<std::int64_t>(i) * d + j])) - y[j];
      far += apart * apart;
    }
    far = warp_sum_of(far);
    const double chance = chances[i], weight = static_cast<double>(weights[i]) / (1 + static_cast<double>(rest));
    if (lane == 0) variance += weight * weight * (1 - chance + spread * chance) * far;
  }
  variance = block_sum_of(variance, scratch);
  double gaps = 0, lengths = 0;
  for (int n = 0; n < each; ++n) {
    const int c = thread + n * kRestThreads;
    const double gap = c < d ? static_cast<double>(added[n]) / rest - exact[n] : 0.0;
    const double of_length = static_cast<double>(y[c]) * y[c];
    gaps += gap * gap;
    lengths += of_length;
  }
  const double between = sqrt(block_sum_of(gaps, scratch));
  const double length = sqrt(block_sum_of(lengths, scratch));
  if (thread != 0) return;
  const double rho = static_cast<double>(rest) / (1 + static_cast<double>(rest));
  const double shift = index::share_by_line * rho * (1 - rho) * between;
  to.share[h] = 1 / (1 + rest);
  to.error[h] =
      static_cast<float>(sqrt(index::alike_values * variance + shift * shift) / (length > 1e-30 ? length : 1e-30));
}

// The variance of V over the newest tokens of the tail about the mean [Hq][d], of each KV head. Grid: KV heads.
template <int most>
static __global__ __launch_bounds__(kRestThreads) void spread_values(TailView tail, std::int64_t newest, int head_dim,
                                                                     int group, const float* mean, double* spread) {
  __shared__ double scratch[kRestThreads / kWarp];
  const std::int64_t head = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int n = 0; n < most / kRestThreads; ++n) {
    const int c = thread + n * kRestThreads;
    if (c >= head_dim) break;
    const double centre = mean[head * group * head_dim + c];
#ifdef __CUDACC__
#pragma unroll 1  // more of them at a time do not fit the registers
#endif
    for (std::int64_t t = tail.tokens - newest; t < tail.tokens; ++t) {
      const f16* const row = tail.rows + (head * tail.capacity + tail.first + t) * 2 * head_dim;
      const double apart = static_cast<double>(widen(row[head_dim + c])) - centre;
      sum += apart * apart;
    }
  }
  sum = block_sum_of(sum, scratch);
  if (thread == 0) spread[head] = newest > 0 ? sum / static_cast<double>(newest) : 0.0;
}

// By the mean value [Hq][d]. Grid: query heads; components as in add_drawn_values().
template <int most>
static __global__ __launch_bounds__(kRestThreads) void add_mean_value(RestOutput to, const index::LogitLine* lines,
                                                                      const double* sums, const double* squares,
                                                                      int parts, const double* spread,
                                                                      const float* mean) {
  __shared__ double scratch[kRestThreads / kWarp];
  const int d = to.head_dim;
  const std::int64_t h = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  double rest = 0, square = 0;
  for (int i = 0; i < parts; ++i) {
    rest += sums[h * kSumBlocks + i];
    square += squares[h * kSumBlocks + i];
  }
  const bool known = rest - rest == 0;
  const float share = known ? static_cast<float>(1 / (1 + rest)) : 1.0f;
  double gaps = 0, lengths = 0;
  for (int n = 0; n < most / kRestThreads; ++n) {
    const int c = thread + n * kRestThreads;
    const float exact = c < d && to.sum[h] != 0 ? to.weighted[h * d + c] / to.sum[h] : 0.0f;
    const float value = c < d ? mean[h * d + c] : 0.0f;
    const float own = known ? share * exact + (1 - share) * value : exact;
    if (c < d) to.out[h * d + c] = own;
    const double apart = static_cast<double>(exact) - value;
    const double of_gap = c < d ? apart * apart : 0.0, of_length = c < d ? static_cast<double>(own) * own : 0.0;
    gaps += of_gap;
    lengths += of_length;
  }
  const double gap = block_sum_of(gaps, scratch);
  const double length = sqrt(block_sum_of(lengths, scratch));
  if (thread != 0) return;
  to.share[h] = share;
  if (!known || rest == 0) {
    to.error[h] = known ? 0.0f : __builtin_inff();
    return;
  }
  const double residual = lines[h].residual;
  const double rows = rest * rest / (square > 1e-300 ? square : 1e-300);
  const double of_rows = spread[h / to.group] * fmin(1.0, exp(residual) / rows);
  const double of_line = gap * (residual < 1 ? residual : 1.0) / 4;
  to.error[h] = static_cast<float>((1 - static_cast<double>(share)) * sqrt(index::alike_values * (of_rows + of_line)) /
                                   (length > 1e-30 ? length : 1e-30));
}

}  // namespace hayloft::gpu::cuda
