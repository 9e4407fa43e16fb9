#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/kernels/warp.cuh"
#include "offload/store/column_formats.h"

namespace hayloft::gpu::cuda {

// The bits of a column of one format, specialised in a file for each; planes, which are no run of keys, have kernels of
// their own (select/plane_scan.cuh, cache_write.cu). The scan loads eight tokens at a time and widens them to floats:
// an integer level times its scale has at most 19 bits and so is exact. A spill stores two tokens of a tile of 64 per
// lane.
template <offload::ColumnFormat format>
struct ColumnBits;

// A format's traits as kernels can name them.
template <offload::ColumnFormat format>
inline constexpr offload::ColumnTraits kTraits = traits_of(format);
template <offload::ColumnFormat format>
inline constexpr bool kScaled = is_scaled(format);

}  // namespace hayloft::gpu::cuda
