#include <cstring>

#include "tests/gpu/cuda/backends.h"
#include "tests/support/parameter_name.h"

// Writing the cache: what the device writes is what the CPU writes, to the bit.
namespace hayloft::testing {
namespace {

using CacheWriteTest = CudaTest;
using offload::ColumnFormat;
using offload::RowFormat;

TEST_F(CacheWriteTest, AppendRoundsToF16BehindTheLiveSlotsAndTouchesNothingElse) {
  for (const int d : {8, 64, 80, 512}) {
    const int heads = 3, T = 20;
    const std::int64_t capacity = 40;
    std::vector<f16> rows(static_cast<std::size_t>(heads * capacity * 2 * d), f16{0x1234});
    const auto k = normal(static_cast<std::size_t>(T * heads * d), 14, 1e4f);   // some beyond f16's range
    const auto v = normal(static_cast<std::size_t>(T * heads * d), 15, 1e-6f);  // many below its normal numbers
    const gpu::Buffer tail = upload(*cuda, rows), keys = upload(*cuda, k), values = upload(*cuda, v);
    gpu::CacheView cache;
    cache.kv_heads = heads;
    cache.head_dim = d;
    cache.tail = {tail.as<f16>(), capacity, 5, 10, 100};
    cuda->append(cache, keys.as<float>(), values.as<float>(), T, cuda->stream());
    cache.tail.rows = rows.data();
    cpu->append(cache, k.data(), v.data(), T, {});
    EXPECT_EQ(download<f16>(*cuda, tail), rows);
  }
}

struct Spilled {
  int head_dim;
  int block_tokens;
  ColumnFormat columns;
  RowFormat rows = RowFormat::f16;
};

std::ostream& operator<<(std::ostream& out, const Spilled& s) {
  out << offload::name(s.columns) << " d=" << s.head_dim << " B=" << s.block_tokens;
  return s.rows == RowFormat::f16 ? out : out << " rows=" << offload::name(s.rows);
}

class SpillTest : public CudaTest, public ::testing::WithParamInterface<Spilled> {
 protected:
  static constexpr int heads = 3;
  static constexpr std::int64_t first = 5;

  // The tail's oldest `tokens` rows as a block, written by either backend; all zero before, as an arena's memory is.
  void expect_same_block(int tokens, const std::vector<f16>& rows, std::int64_t capacity, bool pinned = true) {
    const offload::BlockLayout layout(
        {1, heads, GetParam().head_dim, GetParam().block_tokens, GetParam().columns, GetParam().rows});
    gpu::CacheView cache;
    cache.kv_heads = heads;
    cache.head_dim = GetParam().head_dim;
    cache.tail = {const_cast<f16*>(rows.data()), capacity, first, capacity - first, 0};
    std::vector<std::byte> expected(layout.block_bytes);
    cpu->spill(cache, tokens, layout, expected.data(), {});

    const gpu::Buffer tail = upload(*cuda, rows);
    cache.tail.rows = tail.as<f16>();
    const offload::Topology topology;
    offload::ArenaOptions options;
    options.budget_bytes = std::uint64_t{64} << 20;
    if (pinned) options.listener = cuda->pinning();
    offload::Arena arena(topology, options);
    const offload::Extent block = arena.allocate(layout.block_bytes);
    cuda->spill(cache, tokens, layout, block.data(), cuda->stream());
    cuda->synchronize(cuda->stream());
    EXPECT_EQ(std::memcmp(block.data(), expected.data(), expected.size()), 0);
  }

  std::vector<f16> random_rows(std::int64_t capacity) const {
    const auto values = normal(static_cast<std::size_t>(heads * capacity * 2 * GetParam().head_dim), 21);
    std::vector<f16> rows(values.size());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = to_f16(values[i]);
    return rows;
  }
};

TEST_P(SpillTest, WritesTheBlockThatTheCpuWritesBitForBit) {
  const std::int64_t capacity = first + GetParam().block_tokens + 3;
  const auto rows = random_rows(capacity);
  for (const bool pinned : {true, false}) {
    expect_same_block(GetParam().block_tokens, rows, capacity, pinned);
  }
}

TEST_P(SpillTest, WritesARaggedBlockWithZerosBehindIt) {
  const std::int64_t capacity = first + GetParam().block_tokens + 3;
  const auto rows = random_rows(capacity);
  for (const int tokens : {1, GetParam().block_tokens / 2 + 1, GetParam().block_tokens - 1}) {
    SCOPED_TRACE(tokens);
    expect_same_block(tokens, rows, capacity);
  }
}

TEST_P(SpillTest, QuantisesEveryMagnitudeAsTheCpuDoes) {
  // Infinity, NaN, subnormals and zeros among the keys; the values stay finite, whose sum is then exact.
  const int d = GetParam().head_dim;
  const std::int64_t capacity = first + GetParam().block_tokens;
  auto rows = random_rows(capacity);
  const f16 special[] = {{0x7c00}, {0xfc00}, {0x7e00}, {0x0001}, {0x8001}, {0x8000}, {0x7bff}, {0x03ff}, {0x0000}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto component = static_cast<int>(i % static_cast<std::size_t>(2 * d));
    if (component >= d) continue;
    if (component == 0) rows[i] = {0};
    if (component == 1) rows[i].bits &= 0x83ff;
    if (component % 4 == 2) rows[i] = special[i / 7 % 9];
  }
  expect_same_block(GetParam().block_tokens, rows, capacity);
}

using SpillIntegerRowsTest = SpillTest;

TEST_P(SpillIntegerRowsTest, QuantisesAnyBitsAsTheCpuDoes) {
  const int d = GetParam().head_dim;
  const std::int64_t capacity = first + GetParam().block_tokens;
  auto rows = random_rows(capacity);
  std::mt19937 random(31);
  const f16 special[] = {{0x7c00}, {0xfc00}, {0x7e00}, {0x0001}, {0x8001}, {0x8000}, {0x7bff}, {0x03ff}, {0x0000}};
  const auto row = static_cast<std::size_t>(2 * d);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t token = i / row;
    // The sums of values are exact in any order as long as these are finite and of moderate size.
    const bool value = i % row >= row / 2;
    switch (token % 5) {
      case 0:  // zeros of either sign
        rows[i].bits = random() % 2 ? 0x8000 : 0;
        break;
      case 1:  // subnormal
        rows[i].bits &= 0x83ff;
        break;
      case 2:
        rows[i] = value ? rows[i] : special[random() % 9];
        break;
      case 3:
        rows[i].bits = static_cast<std::uint16_t>(value ? random() & 0xc7ff : random());
        break;
      default:
        break;
    }
  }
  for (const int tokens : {GetParam().block_tokens, GetParam().block_tokens / 2 + 3}) {
    expect_same_block(tokens, rows, capacity);
  }
}

const auto integer_rows = ::testing::Values(
    Spilled{8, 16, ColumnFormat::f16, RowFormat::int8}, Spilled{8, 64, ColumnFormat::int4, RowFormat::int4},
    Spilled{80, 64, ColumnFormat::int8, RowFormat::int8}, Spilled{80, 128, ColumnFormat::f16, RowFormat::int4},
    Spilled{88, 64, ColumnFormat::planes, RowFormat::int8}, Spilled{128, 256, ColumnFormat::int4, RowFormat::int8},
    Spilled{128, 256, ColumnFormat::planes, RowFormat::int4}, Spilled{256, 32, ColumnFormat::int8, RowFormat::int4},
    Spilled{256, 64, ColumnFormat::f16, RowFormat::int8}, Spilled{8, 2048, ColumnFormat::int8, RowFormat::int8},
    Spilled{16, 4096, ColumnFormat::planes, RowFormat::int4}, Spilled{264, 64, ColumnFormat::int8, RowFormat::int4},
    Spilled{512, 64, ColumnFormat::int4, RowFormat::int8});
std::vector<Spilled> in_every_format() {
  std::vector<Spilled> all;
  for (const ColumnFormat columns : offload::all_column_formats()) {
    for (const auto& [d, B] : {std::pair(8, 32), std::pair(80, 64), std::pair(96, 16), std::pair(128, 256)}) {
      all.push_back({d, B, columns});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Formats, SpillTest, ::testing::ValuesIn(in_every_format()), test::by_value);
INSTANTIATE_TEST_SUITE_P(Rows, SpillTest, integer_rows, test::by_value);
INSTANTIATE_TEST_SUITE_P(Rows, SpillIntegerRowsTest, integer_rows, test::by_value);
INSTANTIATE_TEST_SUITE_P(Shapes, SpillTest,
                         ::testing::Values(Spilled{64, 64, ColumnFormat::f16}, Spilled{80, 128, ColumnFormat::f16},
                                           Spilled{128, 16, ColumnFormat::f16}, Spilled{256, 256, ColumnFormat::f16},
                                           Spilled{64, 128, ColumnFormat::int8}, Spilled{80, 128, ColumnFormat::int8},
                                           Spilled{256, 64, ColumnFormat::int8}, Spilled{96, 64, ColumnFormat::int4},
                                           Spilled{64, 128, ColumnFormat::int4}, Spilled{128, 16, ColumnFormat::planes},
                                           Spilled{96, 256, ColumnFormat::planes},
                                           Spilled{256, 1024, ColumnFormat::planes},
                                           Spilled{264, 32, ColumnFormat::f16}, Spilled{512, 128, ColumnFormat::f16},
                                           Spilled{512, 256, ColumnFormat::planes}),
                         test::by_value);

}  // namespace
}  // namespace hayloft::testing
