#include "runtime/checkpoint/gguf/pack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "runtime/checkpoint/gguf/blocks.h"

namespace hayloft::runtime::gguf {
namespace {

template <class Block>
gpu::Packing packing(TensorType type) {
  gpu::Packing packing;
  packing.bits = Block::bits;
  packing.zero = Block::zero;
  packing.minimum = Block::has_minimum;
  packing.products = Block::products;
  const auto take = [&](const std::int8_t(&table)[16]) {
    packing.by_table = true;
    std::copy(std::begin(table), std::end(table), packing.table.begin());
  };
  if (type == TensorType::iq4_nl || type == TensorType::iq4_xs) take(iq4_table);
  if (type == TensorType::mxfp4) take(mxfp4_table);
  return packing;
}

// From the value of a code to the bits that stand for it.
class Encoder {
 public:
  explicit Encoder(const gpu::Packing& packing) {
    for (int code = (1 << packing.bits) - 1; code >= 0; --code) {
      codes_[at(packing.value(static_cast<unsigned>(code)))] = static_cast<std::uint8_t>(code);
    }
  }
  std::uint8_t operator()(std::int8_t value) const { return codes_[at(value)]; }

 private:
  static std::uint8_t at(int value) { return static_cast<std::uint8_t>(value); }  // -128 comes behind 127
  std::array<std::uint8_t, 256> codes_{};
};

bool put_half(f16 half, std::byte* at) {
  std::memcpy(at, &half, sizeof half);
  return std::isfinite(to_float(half));
}

// The scales and minima of one chunk of a row, from group `first` of a block on.
template <class Block>
bool pack_scales(const Groups& groups, const gpu::Packing& packing, int first, int row, std::byte* scales) {
  std::byte* const minima = scales + packing.scale_bytes();
  bool fits = true;
  for (int g = 0; g < packing.groups(); ++g) {
    const int at = g * gpu::packed_tile_rows + row;
    if constexpr (Block::products) {
      std::memcpy(scales + at, groups.scale_integer + first + g, 1);
      if constexpr (Block::has_minimum) std::memcpy(minima + at, groups.minimum_integer + first + g, 1);
    } else {
      fits &= put_half(to_f16(groups.scale[first + g]), scales + 2 * at);
      if constexpr (Block::has_minimum) fits &= put_half(to_f16(groups.minimum[first + g]), minima + 2 * at);
    }
  }
  return fits;
}

// The block of one row that begins at `column` of a tile.
template <class Block>
bool pack_block(const Groups& groups, const Encoder& encode, const gpu::Packing& packing, int row, std::int64_t column,
                std::byte* tile) {
  bool fits = true;
  if constexpr (Block::products) {
    static_assert(Block::elements == gpu::packed_head_columns);
    std::byte* const head = tile + packing.head_offset(column) + 2 * row;
    fits &= put_half(groups.scale_factor, head);
    if (Block::has_minimum) fits &= put_half(groups.minimum_factor, head + 2 * gpu::packed_tile_rows);
  }
  std::byte* chunk = tile + packing.chunk_offset(column);
  for (int i = 0; i < Block::elements; i += gpu::packed_chunk_columns, chunk += packing.chunk_bytes()) {
    std::uint8_t codes[gpu::packed_chunk_columns];
    std::transform(groups.code + i, groups.code + i + gpu::packed_chunk_columns, codes, encode);
    gpu::put_codes(packing, codes, row, chunk);
    fits &= pack_scales<Block>(groups, packing, i / Block::group, row, chunk + packing.code_bytes());
  }
  return fits;
}

template <class Block>
bool pack_rows(TensorType type, std::span<const std::byte* const> rows, std::int64_t cols, std::byte* out) {
  const gpu::Packing form = packing<Block>(type);
  const Encoder encode(form);
  bool fits = true;
  Groups groups;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::byte* in = rows[row];
    for (std::int64_t col = 0; col < cols; col += Block::elements, in += sizeof(Block)) {
      Block block;
      std::memcpy(&block, in, sizeof block);
      unpack(block, groups);
      fits &= pack_block<Block>(groups, encode, form, static_cast<int>(row), col, out);
    }
  }
  return fits;
}

}  // namespace

std::optional<gpu::Packing> packing_of(TensorType type) {
  std::optional<gpu::Packing> found;
  with_block(type, [&]<class Block>(Block) {
    found = packing<Block>(type);
    static_assert(gpu::Packing{Block::bits}.group() == Block::group);
  });
  return found;
}

bool pack_tile(TensorType type, std::span<const std::byte* const> rows, std::int64_t cols, std::byte* out) {
  bool fits = true;
  with_block(type, [&]<class Block>(Block) {
    if (rows.size() < static_cast<std::size_t>(gpu::packed_tile_rows)) {
      std::memset(out, 0, packing<Block>(type).tile_bytes(cols));
    }
    fits = pack_rows<Block>(type, rows, cols, out);
  });
  return fits;
}

}  // namespace hayloft::runtime::gguf
