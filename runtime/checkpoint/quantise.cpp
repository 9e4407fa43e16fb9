#include "runtime/checkpoint/quantise.h"

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

std::uint32_t code_of(const gpu::Packing& packing, float x, float scale, float minimum) {
  const float steps = scale == 0 ? 0 : std::nearbyint((x - minimum) / scale);
  if (packing.bits == 8) return static_cast<std::uint8_t>(static_cast<int>(std::clamp(steps, -127.0f, 127.0f)));
  return static_cast<std::uint32_t>(std::clamp(steps, 0.0f, 15.0f));
}

}  // namespace

gpu::Packing packing_of_8_bits() {
  return {8, 32, false, {}};
}

gpu::Packing packing_of_4_bits() {
  return {4, 32, true, gpu::packed_identity};
}

bool quantise_row(const gpu::Packing& packing, std::span<const float> row, int lane, std::byte* tile) {
  const int per_word = 32 / packing.bits;
  bool fits = true;
  for (std::size_t at = 0; at < row.size(); at += packing.group, tile += packing.chunk_bytes()) {
    const std::span<const float> group = row.subspan(at, packing.group);
    const Range range = range_of(packing, group);
    const float scale = to_float(range.scale);
    const float minimum = to_float(range.minimum);
    fits &= std::isfinite(scale) && std::isfinite(minimum);
    for (int w = 0; fits && w < packing.words(); ++w) {
      std::uint32_t word = 0;
      for (int i = 0; i < per_word; ++i) {
        const float x = group[static_cast<std::size_t>(w * per_word + i)];
        word |= code_of(packing, x, scale, minimum) << (i * packing.bits);
      }
      std::memcpy(tile + 4 * (w * gpu::packed_tile_rows + lane), &word, sizeof word);
    }
    std::byte* const halves = tile + 4 * packing.words() * gpu::packed_tile_rows;
    std::memcpy(halves + 2 * lane, &range.scale, sizeof(f16));
    if (packing.minimum) std::memcpy(halves + 2 * (gpu::packed_tile_rows + lane), &range.minimum, sizeof(f16));
  }
  return fits;
}

}  // namespace hayloft::runtime
