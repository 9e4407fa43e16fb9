#include <filesystem>
#include <random>

#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"

// Tests how many copies it takes to bring in the chosen columns: issuing each costs more than a few KiB on the link.
namespace hayloft::simt {
namespace {

using runtime::Model;
using runtime::Session;

class ColumnCopiesTest : public ::testing::Test {
 protected:
  static constexpr int rank = 4, B = 16;

  static constexpr int tokens = 10 * B + 12;

  // Counts the copies of a step of sparq behind so many tokens, which were appended `piece` at a time. A few blocks lie
  // in memory that is pinned as one piece.
  std::int64_t copies_of_a_step(int piece, std::uint64_t least_copy_bytes = 0,
                                runtime::PrefillOptions::Order order = runtime::PrefillOptions::Order::chunk) {
    const auto cuda = testing::make_cuda({.link = gpu::Link::copy, .least_copy_bytes = least_copy_bytes});
    const Model model(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models/llama", *cuda);
    runtime::SessionOptions options;
    options.cache.block_tokens = B;
    options.cache.window = 8;
    options.chunk_tokens = 24;
    options.prefill.order = order;
    const offload::BlockLayout layout(runtime::store_shape(model.config(), options.cache));
    offload::ArenaOptions memory;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = 2 * layout.block_bytes;
    memory.listener = cuda->pinning();
    const offload::Topology topology;
    offload::Arena arena(topology, memory);
    Session session(model, arena, options);
    std::vector<std::int32_t> text(tokens);
    std::mt19937 random(3);
    for (auto& token : text) token = static_cast<std::int32_t>(random() % 100);
    for (int at = 0; at < tokens; at += piece) {
      session.append(std::span(text).subspan(static_cast<std::size_t>(at),
                                             static_cast<std::size_t>(std::min(piece, tokens - at))));
    }
    const auto sparq = runtime::make_method(runtime::parse_method("sparq:r=4:k=32", {}), model.config().head_dim);
    columns = model.config().global_layers() * model.config().kv_heads * rank;
    const std::int64_t before = calls("cudaMemcpy2DAsync");
    session.set_method(sparq).step(1);
    return calls("cudaMemcpy2DAsync") - before;
  }

  std::int64_t columns = 0;
};

TEST_F(ColumnCopiesTest, OneBringsInAColumnOfAPromptWhicheverWayItWasRead) {
  using Order = runtime::PrefillOptions::Order;
  for (const Order order : {Order::chunk, Order::layer}) {
    const std::int64_t copies = copies_of_a_step(tokens, 0, order);
    EXPECT_EQ(copies, columns);
  }
}

TEST_F(ColumnCopiesTest, WhereManyWouldBeNeededTheColumnsAreReadInPlace) {
  // Block by block the layers take turns.
  const std::int64_t forced = copies_of_a_step(B);
  EXPECT_GE(forced, 5 * columns);
  constexpr std::uint64_t four_blocks = 4 * B * sizeof(f16);
  EXPECT_EQ(copies_of_a_step(B, four_blocks), 0);
  EXPECT_EQ(copies_of_a_step(tokens, four_blocks), columns);
}

}  // namespace
}  // namespace hayloft::simt
