#include "runtime/checkpoint/gguf/pack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "runtime/checkpoint/gguf/blocks.h"

namespace hayloft::runtime::gguf {
namespace {

using Table = std::array<std::int8_t, 16>;

constexpr Table around_zero = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

Table table_of(TensorType type) {
  Table table = {};
  switch (type) {
    case TensorType::q4_0:
    case TensorType::q3_k:
      return around_zero;
    case TensorType::iq4_nl:
    case TensorType::iq4_xs:
      std::copy(std::begin(iq4_table), std::end(iq4_table), table.begin());
      return table;
    case TensorType::mxfp4:
      std::copy(std::begin(mxfp4_table), std::end(mxfp4_table), table.begin());
      return table;
    default:
      return gpu::packed_identity;
  }
}

template <class Block>
gpu::Packing packing(TensorType type) {
  gpu::Packing packing;
  packing.bits = Block::bits <= 4 ? 4 : 8;
  packing.group = Block::group;
  packing.minimum = Block::has_minimum;
  if (packing.bits == 4) packing.table = table_of(type);
  return packing;
}

// From the value of a code to the bits that stand for it.
class Encoder {
 public:
  explicit Encoder(const gpu::Packing& packing) {
    for (int value = -128; value < 128; ++value) codes_[at(value)] = static_cast<std::uint8_t>(value);
    if (packing.bits == 8) return;
    for (int code = 15; code >= 0; --code) {
      codes_[at(packing.table[static_cast<std::size_t>(code)])] = static_cast<std::uint8_t>(code);
    }
  }
  std::uint32_t operator()(std::int8_t value) const { return codes_[at(value)]; }

 private:
  static std::size_t at(int value) { return static_cast<std::size_t>(value + 128); }
  std::array<std::uint8_t, 256> codes_;
};

bool put_half(float value, std::byte* at) {
  const f16 half = to_f16(value);
  std::memcpy(at, &half, sizeof half);
  return std::isfinite(to_float(half));
}

// One block of one row into the chunks from `chunk` on.
template <class Block>
bool pack_block(const Groups& groups, const Encoder& encode, const gpu::Packing& packing, int row, std::byte* chunk) {
  constexpr int bits = Block::bits <= 4 ? 4 : 8;
  constexpr int per_word = 32 / bits;
  bool fits = true;
  for (int g = 0; g < Block::elements / Block::group; ++g, chunk += packing.chunk_bytes()) {
    const std::int8_t* const codes = groups.code + g * Block::group;
    for (int w = 0; w < packing.words(); ++w) {
      std::uint32_t word = 0;
      for (int i = 0; i < per_word; ++i) word |= encode(codes[w * per_word + i]) << (i * bits);
      std::memcpy(chunk + 4 * (w * gpu::packed_tile_rows + row), &word, sizeof word);
    }
    std::byte* const scales = chunk + 4 * packing.words() * gpu::packed_tile_rows;
    fits &= put_half(groups.scale[g], scales + 2 * row);
    if constexpr (Block::has_minimum) {
      fits &= put_half(groups.minimum[g], scales + 2 * (gpu::packed_tile_rows + row));
    }
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
    std::byte* chunk = out;
    for (std::int64_t col = 0; col < cols; col += Block::elements, in += sizeof(Block)) {
      Block block;
      std::memcpy(&block, in, sizeof block);
      unpack(block, groups);
      fits &= pack_block<Block>(groups, encode, form, static_cast<int>(row), chunk);
      chunk += static_cast<std::size_t>(Block::elements / Block::group) * form.chunk_bytes();
    }
  }
  return fits;
}

}  // namespace

std::optional<gpu::Packing> packing_of(TensorType type) {
  std::optional<gpu::Packing> found;
  with_block(type, [&]<class Block>(Block) { found = packing<Block>(type); });
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
