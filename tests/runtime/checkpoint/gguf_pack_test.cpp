#include "runtime/checkpoint/gguf/pack.h"

#include <gtest/gtest.h>

#include <map>

#include "gpu/table_row.h"
#include "runtime/checkpoint/gguf/blocks.h"
#include "runtime/checkpoint/gguf/file.h"

// Tests what a packed matrix holds, beside what its blocks dequantise to.
namespace hayloft::runtime::gguf {
namespace {

class GgufPack : public ::testing::Test {
 protected:
  File file_{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/gguf/types.gguf"};
};

TEST_F(GgufPack, WeightsAreThoseOfTheBlocksToTheBit) {
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
      EXPECT_EQ(traits.type, TensorType::mxfp4);  // random powers of two may be beyond f16
      continue;
    }
    ++packed;
    const gpu::Matrix matrix{tile.data(), gpu::DType::packed, 16, static_cast<int>(cols), *packing};
    for (int r = 0; r < 2; ++r) {
      const std::span<const std::byte> row(rows[r], row_bytes);
      std::vector<float> expected(static_cast<std::size_t>(cols)), got(expected.size());
      dequantise(traits.type, row, expected.data());
      gpu::read_row(matrix, r, got.data());
      ASSERT_EQ(got, expected) << r;
    }
    std::vector<float> none(static_cast<std::size_t>(cols), 1.0f);
    gpu::read_row(matrix, 2, none.data());
    EXPECT_EQ(none, std::vector<float>(none.size(), 0.0f));
  }
  EXPECT_GE(packed, 12);
}

// Bytes in memory beside bytes in the file, of a matrix without a row too few for a tile.
TEST_F(GgufPack, MatricesTakeAboutTheBytesOfTheFile) {
  const std::map<std::string, double> growth = {{"Q2_K", 100.0 / 84},  {"Q3_K", 114.0 / 110},   {"Q4_K", 148.0 / 144},
                                                {"Q5_K", 180.0 / 176}, {"IQ4_XS", 138.0 / 136}, {"MXFP4", 18.0 / 17}};
  for (const TypeTraits& traits : supported_types()) {
    const auto packing = packing_of(traits.type);
    if (!packing) continue;
    const double file = 64.0 * 1024 / traits.block_elements * traits.block_bytes;
    const auto found = growth.find(traits.name);
    const double expected = found == growth.end() ? 1 : found->second;
    EXPECT_DOUBLE_EQ(static_cast<double>(packing->matrix_bytes(64, 1024)) / file, expected) << traits.name;
  }
}

TEST_F(GgufPack, PlainNumbersAreNotPacked) {
  EXPECT_FALSE(packing_of(TensorType::f32));
  EXPECT_FALSE(packing_of(TensorType::f16));
  EXPECT_FALSE(packing_of(TensorType::bf16));
}

}  // namespace
}  // namespace hayloft::runtime::gguf
