#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "gpu/backend.h"
#include "gpu/device_options.h"
#include "offload/store/rows.h"

// Counts what the CUDA backend takes of a device besides what it is asked to allocate: known here to the backend and to
// those who plan for devices that are not there. Who has the backend asks Backend::scratch_bytes() and DeviceMemory.
namespace hayloft::gpu {

inline constexpr std::uint64_t cuda_mebibyte = std::uint64_t{1} << 20;  // bytes

// The memory that CUDA takes before anything is allocated, its context, the kernels and cuBLAS' code, is between a
// quarter and half a gigabyte on the devices known to us, and cannot be asked for.
inline constexpr std::uint64_t cuda_context_bytes = 640 * cuda_mebibyte;
inline constexpr std::uint64_t cuda_workspace_bytes = 32 * cuda_mebibyte;  // of cuBLAS, as NVIDIA advises at most

// Returns what pinned memory takes of the device: an entry of 8 bytes in its page tables for every page of 4 KiB.
inline std::uint64_t cuda_page_table_bytes(std::uint64_t pinned_bytes) {
  return pinned_bytes / 512;
}

// The ranges of integer rows in so many blocks of every layer, which the device has of the whole store; 0 where rows
// are f16.
inline std::uint64_t cuda_range_bytes(const offload::StoreShape& shape, std::int64_t blocks) {
  if (shape.rows == offload::RowFormat::f16) return 0;
  const int ranges = shape.block_tokens / offload::tokens_per_range(shape.block_tokens);
  return static_cast<std::uint64_t>(blocks * ranges * shape.layers) * static_cast<std::uint64_t>(shape.kv_heads) *
         static_cast<std::uint64_t>(shape.head_dim) * sizeof(offload::ChannelRange);
}

// Columns that a device keeps of a block, in slots for so many runs, whole columns or planes, of each KV head: they
// take what gpu/cuda/memory/cached_block.h lays out.
inline constexpr int cuda_least_cached_block = 256;  // tokens: of smaller blocks nothing is kept
// Runs of a KV head, all of them.
inline int cuda_runs(const offload::BlockLayout& layout) {
  return layout.plane_bytes > 0 ? offload::plane_count * layout.head_dim : layout.head_dim;
}
// Returns the bytes of one block, with so many slots of each KV head.
inline std::uint64_t cuda_cached_block_bytes(const offload::BlockLayout& layout, int slots) {
  const auto aligned = [](std::uint64_t bytes) { return (bytes + 15) / 16 * 16; };
  const auto heads = static_cast<std::uint64_t>(layout.kv_heads), all = static_cast<std::uint64_t>(slots);
  const std::uint64_t runs = heads * static_cast<unsigned>(cuda_runs(layout));
  const std::uint64_t run_bytes = layout.plane_bytes > 0 ? layout.plane_bytes : layout.column_bytes;
  return aligned(4 * runs) + aligned(2 * runs) + aligned(2 * heads * all) +
         heads * all * aligned(run_bytes + layout.scale_bytes);
}
// Slots of each KV head that so many bytes have room for.
inline int cuda_cached_slots(const offload::BlockLayout& layout, std::uint64_t bytes) {
  int slots = cuda_runs(layout);
  while (slots > 0 && cuda_cached_block_bytes(layout, slots) > bytes) --slots;
  return slots;
}

inline constexpr int cuda_strip_tokens = 32;                 // whose largest logits a scan keeps in place of all
inline constexpr std::int64_t cuda_strips_per_selected = 8;  // about half of which are listed, or fewer
inline constexpr int cuda_most_scanned = 16;                 // query heads of a KV head that one block scores
// Returns whether SparQ's selection of k positions below the limit keeps bounds of strips in place of logits
// (gpu/cuda/kernels/select/strips.h): where bounds leave a fraction of the strips (docs/internals/cuda.md).
inline bool cuda_wants_strips(std::int64_t limit, int k, int group, offload::ColumnFormat columns) {
  return k > 0 && limit / cuda_strip_tokens >= cuda_strips_per_selected * k && group <= cuda_most_scanned &&
         !in_planes(columns);
}
// So many partial softmaxes of a KV head, one of each chunk of the store and the tail, the last block of its scan takes
// at most: it alone takes longer for more than a launch does.
inline constexpr std::int64_t cuda_most_normalised = 8192;
inline constexpr int cuda_most_normalised_heads = 8;  // of a KV head; scans of more have no registers left for it
// Returns whether most of what is left is read from the device again: a cache with room for twice the columns of a step
// has nine tenths of those (docs/device-cache.md). slots: of a KV head that every block has.
inline bool cuda_keeps_strips(int slots, int columns, int head_dim) {
  return slots >= std::min(2 * columns, head_dim);
}

// Returns what of a budget is set aside for operations: enough for the prompt of a small model, and from 2.3 GiB on for
// all that cuda_scratch_bytes() counts at the shape of Llama-3-8B.
inline std::uint64_t cuda_step_bytes(std::uint64_t budget_bytes) {
  constexpr std::uint64_t step = 32 * cuda_mebibyte;  // that the driver's pools grow by
  return std::clamp(budget_bytes / 8 / step * step, 2 * step, 9 * step);
}

// So many tokens meet the weights in f32, each summed by itself, and are verified in one pass. More go through tensor
// cores: the instructions of single tokens then take longer than unpacking every weight once.
inline constexpr int cuda_tokens_as_alone = 16;
// More tokens than these meet packed weights in panels where tensor cores want more than warps by themselves bring them
// (compute capability 8.0 and 9.0 to 11.0). Predicted of an H100: unpacking moves 4.6 bytes a weight, 1.4 ps, and the
// library's products of 512 tokens take 1.5 ps a weight; mma.sync, at six tenths of that rate, takes 2.6.
inline constexpr int cuda_tokens_in_registers = 512;

// Scratch of operations, at most; they make do with less where the budget is small.
inline constexpr std::uint64_t cuda_selection_bytes = 256 * cuda_mebibyte;  // logits and keys of SparQ's selection
inline constexpr std::uint64_t cuda_stream_bytes = 32 * cuda_mebibyte;      // of one of two buffers of dense rows
inline constexpr std::uint64_t cuda_spill_bytes = 32 * cuda_mebibyte;       // of blocks on their way out
inline constexpr std::uint64_t cuda_panel_bytes =
    32 * cuda_mebibyte;  // packed weights unpacked for a prompt, or its inputs
// One layer's columns that are fetched ahead (Backend::fetch_ahead) take so small a part of what is free, at most.
inline constexpr std::uint64_t cuda_ahead_part = 4;
// The least that a prompt is read with: buffers of a few rows would take many times as long.
inline constexpr std::uint64_t cuda_least_stream_bytes = cuda_mebibyte;

// CUDA's Backend::scratch_bytes(): the most that is taken at a time, by one operation, which is selection, or prefill's
// attention (queries in f16, states of every query in f32) with its stream of rows and the masses and lists of keys, or
// the activations of a matrix product in 16 bits, with a scale for each token and a panel of packed weights, or those
// of several products; and by a spill beside it.
inline std::uint64_t cuda_scratch_bytes(const ScratchShape& shape) {
  const auto tokens = static_cast<std::uint64_t>(shape.tokens);
  const std::uint64_t states =
      tokens * static_cast<std::uint64_t>(shape.query_heads) * (6 * static_cast<std::uint64_t>(shape.head_dim) + 12);
  const std::uint64_t attention = states + 2 * cuda_stream_bytes + 2 * cuda_mass_bytes;
  const std::uint64_t activations = tokens * (static_cast<std::uint64_t>(shape.widest) * 2 + 4) + cuda_panel_bytes;
  return cuda_spill_bytes + std::max({cuda_selection_bytes, attention, activations});
}

}  // namespace hayloft::gpu
