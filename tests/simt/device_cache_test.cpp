#include <filesystem>
#include <random>

#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Sessions on a device that keeps columns and rows decode as on one that does not, and count what they read there.
namespace hayloft::simt {
namespace {

using runtime::Counters;
using runtime::Kind;
using runtime::Model;
using runtime::Place;
using runtime::Session;

constexpr Kind kinds[] = {Kind::columns, Kind::scales, Kind::rows};

class DeviceCacheTest : public ::testing::Test {
 protected:
  DeviceCacheTest() { reset(); }

  struct Run {
    std::vector<std::vector<float>> logits;
    Counters counters;  // of all sessions
  };

  // Two forks of one context in turns, the first of which then goes on by itself past the end of a block.
  Run decode(const gpu::CudaOptions& device, const std::string& method_text, offload::ColumnFormat columns,
             offload::RowFormat rows) const {
    const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda(device);
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    memory.listener = cuda->pinning();
    offload::Arena arena(topology, memory);
    const Model model(testing::golden_models() / "llama", *cuda);
    runtime::SessionOptions options;
    options.cache.block_tokens = 256;
    options.cache.window = 16;
    options.cache.columns = columns;
    options.cache.rows = rows;
    Session book(model, arena, options);
    std::vector<std::int32_t> tokens(256 * 2 + 20);
    std::mt19937 random(3);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 100);
    book.append(tokens);
    book.set_method(runtime::make_method(runtime::parse_method(method_text, {}), model.config().head_dim));
    Session forks[2] = {book.fork(), book.fork()};
    Run run;
    for (std::int32_t i = 0; i < 12; ++i) run.logits.push_back(forks[i % 2].step(i / 4));
    for (std::int32_t i = 0; i < 10; ++i) run.logits.push_back(forks[0].step(7));
    for (const Session& fork : forks) run.counters += fork.counters();
    return run;
  }

  const offload::Topology topology;
};

TEST_F(DeviceCacheTest, TokensAreThoseWithoutAndBytesMoveFromTheLinkToTheDevice) {
  using offload::ColumnFormat, offload::RowFormat;
  const gpu::CudaOptions keeping{.column_cache_bytes = gpu::column_cache_rest, .row_cache_bytes = gpu::row_cache_rest};
  for (const auto& [method, columns, rows] : {std::tuple("sparq:r=4:k=32", ColumnFormat::int4, RowFormat::int8),
                                              std::tuple("planes:bits=12:k=32", ColumnFormat::planes, RowFormat::f16),
                                              std::tuple("topk:k=32", ColumnFormat::f16, RowFormat::int4)}) {
    SCOPED_TRACE(method);
    const Run with = decode(keeping, method, columns, rows);
    const Run without = decode({}, method, columns, rows);
    EXPECT_EQ(with.logits, without.logits);
    for (const Kind kind : kinds) {
      EXPECT_EQ(with.counters.at(Place::link, kind) + with.counters.at(Place::device, kind),
                without.counters.at(Place::link, kind) + without.counters.at(Place::device, kind))
          << runtime::name(kind);
      EXPECT_LE(with.counters.at(Place::link, kind), without.counters.at(Place::link, kind));
    }
    EXPECT_LT(with.counters.at(Place::link, Kind::rows), without.counters.at(Place::link, Kind::rows) * 3 / 4);
    if (columns != ColumnFormat::f16) {
      EXPECT_LT(with.counters.at(Place::link, Kind::columns), without.counters.at(Place::link, Kind::columns) / 2);
    }
    EXPECT_EQ(with.counters.elements, without.counters.elements);
    EXPECT_EQ(with.counters.rows_fetched, without.counters.rows_fetched);
  }
}

// Room for no column: what the last token chose comes before the next one asks for it, as far as the device gets with
// it, and is counted apart.
TEST_F(DeviceCacheTest, ColumnsFetchedAheadChangeNoTokenAndNothingThatIsCounted) {
  using offload::ColumnFormat, offload::RowFormat;
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::int4}) {
    SCOPED_TRACE(offload::name(columns));
    const Run with = decode({.column_cache_bytes = 1}, "sparq:r=4:k=32", columns, RowFormat::f16);
    const Run without = decode({}, "sparq:r=4:k=32", columns, RowFormat::f16);
    EXPECT_EQ(with.logits, without.logits);
    EXPECT_EQ(with.counters.bytes, without.counters.bytes);
    const auto read = with.counters.at(Place::link, Kind::columns) + with.counters.at(Place::link, Kind::scales);
    EXPECT_GT(with.counters.ahead_used, 0u);
    EXPECT_LT(with.counters.ahead_used, read);
    EXPECT_GE(with.counters.ahead_fetched, with.counters.ahead_used);
    EXPECT_EQ(without.counters.ahead_used + without.counters.ahead_fetched, 0u);
  }
}

}  // namespace
}  // namespace hayloft::simt
