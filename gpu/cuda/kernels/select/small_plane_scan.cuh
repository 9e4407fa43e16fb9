#pragma once

#include "gpu/cuda/kernels/select/plane_weights.cuh"

// The scan of plane_scan.cuh where blocks have fewer than 256 tokens, so that a chunk has up to 16 quantisation groups:
// a thread per token, which asks for single bytes. Such blocks are for small models and tests.
namespace hayloft::gpu::cuda {

static_assert(kScanThreads == kChunkTokens);
inline constexpr int kSmallestGroup = 16;
inline constexpr int kMostGroups = kChunkTokens / kSmallestGroup;

// Dynamic shared memory: ranges u32 [r][groups], weights f32 [r][G], scales [groups][G], depths.
template <int G>
__host__ __device__ constexpr unsigned small_plane_shared_bytes(int rank) {
  return static_cast<unsigned>(rank) * (kMostGroups * sizeof(unsigned) + G * sizeof(float)) +
         kMostGroups * G * sizeof(PlaneScale) + sizeof(Depths);
}

// Grid as of scan_columns, in tiles of one chunk.
template <int G>
__global__ __launch_bounds__(kScanThreads) void scan_small_planes(ColumnSource source, ColumnScan scan) {
  constexpr float infinity = __builtin_inff();
  unsigned* const ranges = reinterpret_cast<unsigned*>(dynamic_shared());
  float* const weights = reinterpret_cast<float*>(ranges + scan.rank * kMostGroups);
  PlaneScale* const scales = reinterpret_cast<PlaneScale*>(weights + scan.rank * G);
  Depths& depths = *reinterpret_cast<Depths*>(scales + kMostGroups * G);
  const int head = scan.head + static_cast<int>(blockIdx.y);
  const int source_head = source.gathered ? 0 : head;
  const int first = static_cast<int>(blockIdx.z) * G;  // of the group
  const int heads = scan.group - first < G ? scan.group - first : G;
  const int groups = kChunkTokens >> source.scale_shift;
  const std::int64_t row = static_cast<std::int64_t>(head - scan.first_head) * scan.group + first;
  const std::int32_t* components = scan.components + static_cast<std::int64_t>(head) * scan.rank;
  load_weights<G>(scan, head, first, scan.rank, weights);
  find_depths(scan, head, depths);

  for (std::int64_t start = scan.begin + static_cast<std::int64_t>(blockIdx.x) * kChunkTokens; start < scan.end;
       start += static_cast<std::int64_t>(gridDim.x) * kChunkTokens) {
    __syncthreads();  // the last chunk is still in use
    for (int i = threadIdx.x; i < depths.used() * groups; i += kScanThreads) {
      const int j = i / groups;
      const std::int64_t position = start + (static_cast<std::int64_t>(i % groups) << source.scale_shift);
      ranges[i] = position < scan.end ? load4_once(source.head(position, source_head) + source.scales_offset +
                                                   (source.gathered ? j : components[j]) * source.scale_bytes +
                                                   (source.slot(position) >> source.scale_shift) * sizeof(unsigned))
                                      : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < groups * G; i += kScanThreads) {
      scales[i] = plane_scale(ranges + i / G, groups, weights + i % G, G, depths, scan.plane_units);
    }
    __syncthreads();

    const std::int64_t position = start + threadIdx.x;
    const bool live = position < scan.end;
    const int group = static_cast<int>(threadIdx.x) >> source.scale_shift;
    int sums[G] = {};
    if (live) {
      const std::byte* const columns = source.head(position, source_head) + source.columns_offset;
      const std::int64_t slot = source.slot(position);
      int before = 0;
      for (int j = 0; j < depths.used(); ++j) {
        const int planes = depths.planes_of(j);
        const std::byte* const column =
            columns + (source.gathered ? before * source.plane_bytes : components[j] * source.column_bytes) + slot / 8;
        int code = 0;
        for (int p = 0; p < planes; ++p) {
          code = 2 * code + (static_cast<int>(column[p * source.plane_bytes]) >> (slot % 8) & 1);
        }
        const float step = plane_step_of(ranges[j * groups + group], planes);
        for (int h = 0; h < G; ++h) {
          sums[h] +=
              plane_weight(weights[j * G + h], step, scales[group * G + h].inverse) * (2 * code + 1 - (1 << planes));
        }
        before += planes;
      }
    }
    float* const logits = scan.logits + row * scan.stride + start;
    for (int h = 0; h < G; ++h) {
      if (h >= heads) continue;
      const PlaneScale scale = scales[group * G + h];
      logits[h * scan.stride + threadIdx.x] =
          live ? fmaf(scale.unit, static_cast<float>(sums[h]), scale.base) : -infinity;
    }
    __syncthreads();
    for (int h = static_cast<int>(threadIdx.x) / kWarp; h < heads; h += kScanThreads / kWarp) {
      const int lane = threadIdx.x % kWarp;
      float s[kLaneTokens];
      for (int i = 0; i < kLaneTokens; ++i) s[i] = logits[h * scan.stride + i * kWarp + lane];
      const Part part = part_of(s);
      if (lane == 0) {
        const std::int64_t slot = (row + h) * scan.partials.stride + start / kChunkTokens;
        scan.partials.max[slot] = part.max;
        scan.partials.sum[slot] = part.sum;
      }
    }
  }
}

}  // namespace hayloft::gpu::cuda
