#include "runtime/checkpoint/weights/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace hayloft::runtime {
namespace {

// A group's scale and minimum as they will be read back.
struct Range {
  f16 scale{};
  f16 minimum{};
};

Range range_of(const gpu::Packing& packing, std::span<const float> group) {
  const auto [least, most] = std::minmax_element(group.begin(), group.end());
  if (packing.bits == 8) return {to_f16(std::max(std::abs(*least), std::abs(*most)) / 127), {}};
  return {to_f16((*most - *least) / 15), to_f16(*least)};
}

std::uint8_t code_of(const gpu::Packing& packing, float x, float scale, float minimum) {
  const float steps = scale == 0 ? 0 : std::nearbyint((x - minimum) / scale);
  if (packing.bits == 8) return static_cast<std::uint8_t>(std::clamp(steps, -127.0f, 127.0f) + packing.zero);
  return static_cast<std::uint8_t>(std::clamp(steps, 0.0f, 15.0f));
}

}  // namespace

gpu::Packing packing_of_8_bits() {
  return {.bits = 8, .zero = 128};
}

gpu::Packing packing_of_4_bits() {
  return {.bits = 4, .minimum = true};
}

bool quantise_row(const gpu::Packing& packing, std::span<const float> row, int lane, std::byte* tile) {
  bool fits = true;
  std::byte* chunk = tile;
  for (std::size_t at = 0; at < row.size(); at += gpu::packed_chunk_columns, chunk += packing.chunk_bytes()) {
    const std::span<const float> group = row.subspan(at, gpu::packed_chunk_columns);
    const Range range = range_of(packing, group);
    const float scale = to_float(range.scale);
    const float minimum = to_float(range.minimum);
    fits &= std::isfinite(scale) && std::isfinite(minimum);
    if (!fits) break;
    std::uint8_t codes[gpu::packed_chunk_columns];
    std::transform(group.begin(), group.end(), codes, [&](float x) { return code_of(packing, x, scale, minimum); });
    gpu::put_codes(packing, codes, lane, chunk);
    std::byte* const scales = chunk + packing.code_bytes() + 2 * lane;
    std::memcpy(scales, &range.scale, sizeof(f16));
    if (packing.minimum) std::memcpy(scales + packing.scale_bytes(), &range.minimum, sizeof(f16));
  }
  return fits;
}

}  // namespace hayloft::runtime
