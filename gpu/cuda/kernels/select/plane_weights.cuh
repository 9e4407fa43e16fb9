#pragma once

#include "gpu/cuda/kernels/select/column_scan.cuh"

// Scores of bit planes in whole numbers, to the bit what index/scan/columns/plane_weights.h says: that file has the
// definitions and their reasons.
namespace hayloft::gpu::cuda {

inline constexpr int kPlanes = offload::plane_count;

// The first through[p - 1] components have p planes or more that are read.
struct Depths {
  int through[kPlanes];

  __device__ int used() const { return through[0]; }
  __device__ int planes_of(int component) const {
    int planes = 0;
    for (int p = 0; p < kPlanes; ++p) planes += component < through[p] ? 1 : 0;
    return planes;
  }
  __device__ int planes_before(int component) const {
    int planes = 0;
    for (int p = 0; p < kPlanes; ++p) planes += min(component, through[p]);
    return planes;
  }
};

// Finds the depths of a KV head. `depths` is shared; contains barriers.
__device__ inline void find_depths(const ColumnScan& scan, int head, Depths& depths) {
  const std::int32_t* planes = scan.planes ? scan.planes + static_cast<std::int64_t>(head) * scan.rank : nullptr;
  if (threadIdx.x < kPlanes) depths.through[threadIdx.x] = planes ? 0 : scan.rank;
  __syncthreads();
  for (int j = threadIdx.x; planes && j < scan.rank; j += kScanThreads) {
    const int own = planes[j], next = j + 1 < scan.rank ? planes[j + 1] : 0;
    for (int p = next; p < own; ++p) depths.through[p] = j + 1;
  }
  __syncthreads();
}

// half * plane_step(planes) of a range as a block has it, centre and half; exact.
__device__ inline float plane_step_of(unsigned range, int planes) {
  const float step = planes == 1 ? 0.375f : planes == 2 ? 0.21875f : planes == 3 ? 0.125f : 0.0625f;
  return widen_pair(range).y * step;
}

// The scale of one query head in one quantisation group.
struct PlaneScale {
  float unit;
  float inverse;  // 1 / unit
  float base;
};

// ranges: those of the group, one for each component, `pitch` apart; weights likewise. units: ColumnScan::plane_units.
__device__ inline PlaneScale plane_scale(const unsigned* ranges, int ranges_pitch, const float* weights,
                                         int weights_pitch, const Depths& depths, float units) {
  float bound = 0, base = 0;
  int j = 0;
  for (int planes = kPlanes; planes > 0; --planes) {
    for (; j < depths.through[planes - 1]; ++j) {
      const unsigned range = ranges[j * ranges_pitch];
      const float w = weights[j * weights_pitch];
      const float a = w * plane_step_of(range, planes);
      bound = fmaf(fabsf(a), static_cast<float>((1 << planes) - 1), bound);
      base = fmaf(w, widen_pair(range).x, base);
    }
  }
  if (bound < 0x1p-100f) return {0, 0, base};
  if (!(bound < __builtin_inff())) return {bound - bound, 0, base};
  const float unit = float_of((bits_of(bound / units) + 0xffff) & 0xffff0000u);
  return {unit, 1 / unit, base};
}

// A_c.
__device__ inline int plane_weight(float weight, float step, float inverse) {
  return inverse == 0 ? 0 : static_cast<int>(rintf(weight * step * inverse));
}

}  // namespace hayloft::gpu::cuda
