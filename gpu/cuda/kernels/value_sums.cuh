#pragma once

#include <cstdint>

#include "gpu/cuda/kernels/intrinsics.cuh"
#include "gpu/cuda/memory/dense_rows.h"

namespace hayloft::gpu::cuda {

inline constexpr int kMeanRows = 64;   // rows per partial sum of values
inline constexpr int kMeanAhead = 16;  // of them whose loads are under way together

// Says where the sums of the tail's values go, of which SparQ's mean value is made, over kMeanRows rows each.
struct ValueSums {
  DenseRows tail;
  std::int64_t tokens = 0;
  float* sums = nullptr;  // f32 [Hkv][parts][d]
  int parts = 0;
};

// Adds up one part of a KV head's, by all threads of a block.
__device__ inline void sum_values(const ValueSums& a, int head, int part, int d) {
  const std::int64_t begin = static_cast<std::int64_t>(part) * kMeanRows;
  const int n = a.tokens - begin < kMeanRows ? static_cast<int>(a.tokens - begin) : kMeanRows;
  float* const to = a.sums + (static_cast<std::int64_t>(head) * a.parts + part) * d;
  for (int pair = static_cast<int>(threadIdx.x); pair < d / 2; pair += static_cast<int>(blockDim.x)) {
    const f16* row = a.tail.row(head, a.tail.position + begin, d) + d;
    float2 sum{0.0f, 0.0f};
    for (int i = 0; i < n; i += kMeanAhead) {
      unsigned values[kMeanAhead];
      for (int u = 0; u < kMeanAhead; ++u, row += 2 * d) {
        values[u] = i + u < n ? reinterpret_cast<const unsigned*>(row)[pair] : 0;
      }
      for (int u = 0; u < kMeanAhead; ++u) {
        const float2 v = widen_pair(values[u]);  // of rows that are not there 0
        sum.x += v.x;
        sum.y += v.y;
      }
    }
    reinterpret_cast<float2*>(to)[pair] = sum;
  }
}

}  // namespace hayloft::gpu::cuda
