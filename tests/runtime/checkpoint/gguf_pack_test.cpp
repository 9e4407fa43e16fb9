#include "runtime/checkpoint/gguf/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "gpu/cpu/packed.h"
#include "runtime/checkpoint/gguf/blocks.h"
#include "runtime/checkpoint/gguf/file.h"

// What a packed matrix holds, beside what its blocks dequantise to.
namespace hayloft::runtime::gguf {
namespace {

constexpr float smallest_normal_half = 0x1p-14f;

bool scales_are_halves(TensorType type) {
  switch (type) {
    case TensorType::q4_0:
    case TensorType::q4_1:
    case TensorType::q5_0:
    case TensorType::q5_1:
    case TensorType::q8_0:
    case TensorType::iq4_nl:
      return true;
    default:
      return false;
  }
}

// How far rounding a scale or minimum to f16 can move it.
float half_step(float x) {
  return std::max(std::abs(x), smallest_normal_half) * 0x1p-11f;
}

// The bound that pack.h states, element by element.
std::vector<float> bounds(TensorType type, std::span<const std::byte> row) {
  std::vector<float> out;
  if (scales_are_halves(type)) return std::vector<float>(row.size() * 2, 0.0f);
  with_block(type, [&]<class Block>(Block) {
    for (std::size_t at = 0; at < row.size(); at += sizeof(Block)) {
      Block block;
      std::memcpy(&block, row.data() + at, sizeof block);
      Groups groups;
      unpack(block, groups);
      for (int i = 0; i < Block::elements; ++i) {
        const int g = i / Block::group;
        float bound = half_step(groups.scale[g]) * std::abs(static_cast<float>(groups.code[i]));
        if (Block::has_minimum) {
          // And the sum of the two is rounded to f32, in either form.
          const float sum = std::abs(groups.scale[g] * groups.code[i]) + std::abs(groups.minimum[g]);
          bound += half_step(groups.minimum[g]) + sum * 0x1p-22f;
        }
        out.push_back(bound * 1.0001f);
      }
    }
  });
  return out;
}

class GgufPack : public ::testing::Test {
 protected:
  File file_{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/gguf/types.gguf"};
};

TEST_F(GgufPack, WeightsAreThoseOfTheBlocksWithinTheBound) {
  int packed = 0;
  for (const TypeTraits& traits : supported_types()) {
    const auto packing = packing_of(traits.type);
    if (!packing) continue;
    SCOPED_TRACE(traits.name);
    const Tensor& tensor = *file_.find(traits.name);
    const std::int64_t cols = tensor.shape[1];
    const std::size_t row_bytes = tensor.data.size() / 2;
    // The second row first, and nothing behind: tiles take rows in any order, as many as there are.
    const std::byte* rows[] = {tensor.data.data() + row_bytes, tensor.data.data()};
    std::vector<std::byte> tile(packing->tile_bytes(cols));
    if (!pack_tile(traits.type, rows, cols, tile.data())) {
      // Random scales of the types without f16 ones may be beyond it; the golden file has a row of each that is not.
      EXPECT_FALSE(scales_are_halves(traits.type));
      continue;
    }
    ++packed;
    const gpu::Matrix matrix{tile.data(), gpu::DType::packed, 16, static_cast<int>(cols), *packing};
    for (int r = 0; r < 2; ++r) {
      const std::span<const std::byte> row(rows[r], row_bytes);
      std::vector<float> expected(static_cast<std::size_t>(cols)), got(expected.size());
      dequantise(traits.type, row, expected.data());
      gpu::unpack_row(matrix, r, got.data());
      const std::vector<float> bound = bounds(traits.type, row);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_LE(std::abs(got[i] - expected[i]), bound[i]) << r << ' ' << i;
    }
    std::vector<float> none(static_cast<std::size_t>(cols), 1.0f);
    gpu::unpack_row(matrix, 2, none.data());
    EXPECT_EQ(none, std::vector<float>(none.size(), 0.0f));
  }
  EXPECT_GE(packed, 10);
}

TEST_F(GgufPack, PlainNumbersAreNotPacked) {
  EXPECT_FALSE(packing_of(TensorType::f32));
  EXPECT_FALSE(packing_of(TensorType::f16));
  EXPECT_FALSE(packing_of(TensorType::bf16));
}

}  // namespace
}  // namespace hayloft::runtime::gguf
