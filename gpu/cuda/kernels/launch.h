#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>

#include "gpu/backend.h"
#include "gpu/cuda/api/check.h"
#include "gpu/cuda/api/step_graphs.h"

// The one door for kernels.
namespace hayloft::gpu::cuda {

struct Shape {
  dim3 blocks;
  dim3 threads;
  unsigned shared_bytes = 0;  // dynamic; more than 48 KiB only after allow_shared()
};

// Launches in stream order, or holds the kernel back until the step launches several; an empty grid launches nothing.
// Throws Error naming the kernel. Arguments are converted to the kernel's parameter types.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Shape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  if (shape.blocks.x == 0 || shape.blocks.y == 0 || shape.blocks.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  if (StepGraphs* const step = StepGraphs::of_step(stream)) {
    return step->add(name, kernel, config, static_cast<Parameters>(arguments)...);
  }
  in_order(stream);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

// Raises the kernel's limit of dynamic shared memory, and never lowers it, for one that is held back may need what it
// was. Throws Error when the device has less.
template <class... Parameters>
void allow_shared(const char* name, void (*kernel)(Parameters...), unsigned bytes) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const auto* const function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes now{};
  check(cudaFuncGetAttributes(&now, function), name);
  if (now.maxDynamicSharedSizeBytes >= static_cast<int>(bytes)) return;
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
}

inline unsigned blocks_for(std::int64_t items, int per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

inline constexpr int kStridedThreads = 256;

// For kernels that treat every item alike: enough blocks to fill the device a few times over; a kernel walks the items
// in strides of all threads.
inline Shape strided(int multiprocessors, std::int64_t items) {
  const std::int64_t blocks = (items + kStridedThreads - 1) / kStridedThreads;
  const std::int64_t most = std::int64_t{16} * multiprocessors;
  return {dim3(static_cast<unsigned>(std::min(blocks, most))), dim3(kStridedThreads)};
}

// Calls body with a number as a type: how many components the kernels have room for that heads of so many want. Heads
// of up to 256 have kernels of their own, as they are the most frequent.
template <class Body>
void with_most_components(int head_dim, const Body& body) {
  if (head_dim <= 256) return body(std::integral_constant<int, 256>());
  body(std::integral_constant<int, offload::most_head_dim>());
}

// Calls body with a typed null pointer that stands for the element type: `body(static_cast<const f16*>(nullptr))`.
template <class Body>
void with_type(DType type, const Body& body) {
  switch (type) {
    case DType::f32:
      return body(static_cast<const float*>(nullptr));
    case DType::f16:
      return body(static_cast<const f16*>(nullptr));
    case DType::packed:  // gpu/cuda/kernels/packed.h
      break;
    case DType::bf16:
      return body(static_cast<const bf16*>(nullptr));
  }
}

}  // namespace hayloft::gpu::cuda
