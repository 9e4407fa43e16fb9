#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/backend.h"

// What the CUDA backend takes of a device besides what it is asked to allocate: known here to the backend and to those
// who plan for devices that are not there. Who has the backend asks Backend::scratch_bytes() and DeviceMemory.
namespace hayloft::gpu {

inline constexpr std::uint64_t cuda_mebibyte = std::uint64_t{1} << 20;  // bytes

// What CUDA takes before anything is allocated, its context, the kernels and cuBLAS' code, is between a quarter and
// half a gigabyte on the devices known to us, and cannot be asked for.
inline constexpr std::uint64_t cuda_context_bytes = 640 * cuda_mebibyte;
inline constexpr std::uint64_t cuda_workspace_bytes = 32 * cuda_mebibyte;  // of cuBLAS, as NVIDIA advises at most

// Scratch of operations, at most; they make do with less where the budget is small.
inline constexpr std::uint64_t cuda_selection_bytes = 256 * cuda_mebibyte;  // logits and keys of SparQ's selection
inline constexpr std::uint64_t cuda_stream_bytes = 32 * cuda_mebibyte;      // of one of two buffers of dense rows
inline constexpr std::uint64_t cuda_spill_bytes = 32 * cuda_mebibyte;       // of blocks on their way out
inline constexpr std::uint64_t cuda_tile_bytes = 32 * cuda_mebibyte;        // products of prefill's attention
inline constexpr std::uint64_t cuda_panel_bytes = 32 * cuda_mebibyte;       // packed weights unpacked for a prompt

// CUDA's Backend::scratch_bytes(): the most that is taken at a time, by one operation, which is selection, or prefill's
// attention (queries in f16, states of every query in f32) with its stream of rows, or the activations of a matrix
// product in 16 bits, with a scale for each token and a panel of packed weights; and by a spill beside it.
inline std::uint64_t cuda_scratch_bytes(const ScratchShape& shape) {
  const auto tokens = static_cast<std::uint64_t>(shape.tokens);
  const std::uint64_t states =
      tokens * static_cast<std::uint64_t>(shape.query_heads) * (6 * static_cast<std::uint64_t>(shape.head_dim) + 12);
  const std::uint64_t attention = states + cuda_tile_bytes + 2 * cuda_stream_bytes;
  const std::uint64_t activations = tokens * (static_cast<std::uint64_t>(shape.widest) * 2 + 4) + cuda_panel_bytes;
  return cuda_spill_bytes + std::max({cuda_selection_bytes, attention, activations});
}

}  // namespace hayloft::gpu
