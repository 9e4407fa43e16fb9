#include "offload/host/pages.h"

#include <gtest/gtest.h>

// Tests which kind of page memory lies on.
namespace hayloft::offload {
namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
constexpr PageKind transparent{2 * MiB, true};

TEST(Pages, AnArenaTakesTheLargestExplicitOnesThatSuffice) {
  const std::vector<PagePool> pools{{1024 * MiB, 2}, {2 * MiB, 2048}};
  EXPECT_EQ(arena_pages(pools, 2048 * MiB, transparent), (PageKind{1024 * MiB, false}));
  EXPECT_EQ(arena_pages(pools, 2049 * MiB, transparent), (PageKind{2 * MiB, false}));
  EXPECT_EQ(arena_pages(pools, 4097 * MiB, transparent), transparent);
}

TEST(Pages, AnArenaTakesOrdinaryOnesWhereNoneAreSetAside) {
  EXPECT_EQ(arena_pages({}, 64 * MiB, transparent), transparent);
  EXPECT_EQ(arena_pages({}, 64 * MiB, {}), (PageKind{4096, false}));
}

TEST(Pages, TouchedMemoryLiesOnANodeOrTheSystemDoesNotSay) {
  const Pages pages = map_pages(4 * MiB, 4 * MiB, {});
  ASSERT_NE(pages.data, nullptr);
  pages.data[0] = std::byte{1};
  EXPECT_GE(node_of(pages.data), -1);
  unmap_pages(pages);
  EXPECT_EQ(node_of(nullptr), -1);
}

}  // namespace
}  // namespace hayloft::offload
