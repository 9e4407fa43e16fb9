// Walks tiles of packed weights (gpu/packed.h), for the kernels that multiply them. Included once per SIMD target.
#if defined(HAYLOFT_GPU_CPU_PACKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_GPU_CPU_PACKED_INL_H_
#undef HAYLOFT_GPU_CPU_PACKED_INL_H_
#else
#define HAYLOFT_GPU_CPU_PACKED_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/cpu/simd-inl.h"
#include "gpu/packed.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

using U32 = hn::RebindToUnsigned<F32>;
using U32Vec = hn::Vec<U32>;
constexpr int kRows = packed_tile_rows;
constexpr int kColumns = packed_chunk_columns;

HWY_INLINE F32Vec load_halves(F32 d, const std::byte* p) {
  return widen_half(d, load_bits(p));
}
HWY_INLINE F32Vec load_integers(F32 d, const std::byte* p) {
  const hn::Rebind<std::int8_t, F32> d8;
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<F32>(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
}

// The factors of a chunk's scales, where they are products.
struct Factors {
  F32Vec scale;
  F32Vec minimum;
};

// Vectors of rows that products with one token take at once, so that they share its inputs.
constexpr int kVectorsAtOnce = kRows / static_cast<int>(hn::MaxLanes(F32())) >= 2 ? 2 : 1;

// Asks for what lies some way behind a chunk: the processor's own prefetching leaves a third of the rate at which one
// thread reads. Bytes, and long vectors, are read faster from farther ahead, out of the second-level cache, but where
// heads stand between chunks.
template <int kBits>
HWY_INLINE void prefetch_ahead(const std::byte* chunk, const Packing& packing) {
  constexpr std::uintptr_t kLine = 64;
  constexpr bool kFar = kBits == 8 || HWY_MAX_BYTES >= 64;
  const bool far = kFar && !packing.products;
  const auto begin = reinterpret_cast<std::uintptr_t>(chunk) + (far ? 128 : 64) * kLine;
  const auto end = begin + packing.chunk_bytes();
  for (std::uintptr_t line = (begin + kLine - 1) / kLine * kLine; line < end; line += kLine) {
    const auto* const at = reinterpret_cast<const void*>(line);
    far ? __builtin_prefetch(at, 0, 2) : __builtin_prefetch(at, 0, 3);
  }
}

// body(first column, chunk, factors) for each chunk of the columns [begin, end) of a tile; V vectors of rows.
template <int V, class Body>
HWY_INLINE void each_chunk(F32 d, const Packing& packing, const std::byte* tile, int lane, int begin, int end,
                           const Body& body) {
  const std::byte* chunk = tile + packing.chunk_offset(begin);
  const int lanes = static_cast<int>(hn::Lanes(d));
  Factors factors[V];
  for (Factors& start : factors) start = {hn::Zero(d), hn::Zero(d)};
  for (int column = begin; column < end; column += kColumns, chunk += packing.chunk_bytes()) {
    if (packing.products && (column == begin || column % packed_head_columns == 0)) {
      if (column != begin) chunk += packing.head_bytes();
      const std::byte* const head = tile + packing.head_offset(column) + 2 * lane;
      for (int v = 0; v < V; ++v) {
        factors[v].scale = load_halves(d, head + 2 * v * lanes);
        if (packing.minimum) factors[v].minimum = load_halves(d, head + 2 * (kRows + v * lanes));
      }
    }
    body(column, chunk, factors);
  }
}
template <class Body>
HWY_INLINE void each_chunk(F32 d, const Packing& packing, const std::byte* tile, int lane, int begin, int end,
                           const Body& body) {
  each_chunk<1>(d, packing, tile, lane, begin, end,
                [&](int column, const std::byte* chunk, const Factors(&factors)[1])
                    HAYLOFT_KERNEL_LAMBDA { body(column, chunk, factors[0]); });
}

// The numbers of group g of a chunk, of those that begin at `first`.
HWY_INLINE F32Vec load_scales(F32 d, const Packing& packing, const std::byte* first, int g, int lane, F32Vec factor) {
  const int index = g * kRows + lane;
  if (packing.products) return hn::Mul(factor, load_integers(d, first + index));
  return load_halves(d, first + 2 * index);
}

// step(integral_constant<int, column>) for the columns [kBegin, kEnd).
template <int kBegin, int kEnd, class Step>
HWY_INLINE void each_column(const Step& step) {
  if constexpr (kBegin < kEnd) {
    step(std::integral_constant<int, kBegin>());
    each_column<kBegin + 1, kEnd>(step);
  }
}

// step(integral_constant<int, group>) for the groups of a chunk.
template <int kGroups, class Step>
HWY_INLINE void each_group(const Step& step) {
  step(std::integral_constant<int, 0>());
  if constexpr (kGroups == 2) step(std::integral_constant<int, 1>());
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
