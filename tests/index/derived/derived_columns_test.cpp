#include "index/derived/derived_columns.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace hayloft::index {
namespace {

constexpr int heads = 2, columns = 3, block = 16;

// Any bits, to be told from those of every other place and writer.
f16 entry(int writer, int head, int c, std::int64_t i) {
  return {static_cast<std::uint16_t>(writer * 10000 + head * 3000 + c * 1000 + i)};
}

// Appends `count` entries.
void append(DerivedColumns& derived, int count, int writer) {
  while (count > 0) {
    const std::int64_t first = derived.size();
    const DerivedColumns::Space space = derived.space(count);
    for (int head = 0; head < heads; ++head) {
      for (int c = 0; c < columns; ++c) {
        for (int i = 0; i < space.entries; ++i) {
          space.column(head, c)[i] = entry(writer, head, c, first + i);
        }
      }
    }
    derived.commit(space.entries);
    count -= space.entries;
  }
}

f16 at(const DerivedColumns& derived, int head, int c, std::int64_t i) {
  const offload::LayerView view = derived.view();
  const std::byte* column = view.layout->column(view.blocks[static_cast<std::size_t>(i / block)], head, c);
  return reinterpret_cast<const f16*>(column)[i % block];
}

void expect_written(const DerivedColumns& derived, std::int64_t begin, std::int64_t end, int writer) {
  for (int head = 0; head < heads; ++head) {
    for (int c = 0; c < columns; ++c) {
      for (std::int64_t i = begin; i < end; ++i) {
        ASSERT_EQ(at(derived, head, c, i).bits, entry(writer, head, c, i).bits);
      }
    }
  }
}

TEST(DerivedColumns, HoldWhatWasAppendedInPiecesOfAnySize) {
  DerivedColumns derived(heads, columns, block);
  EXPECT_EQ(derived.view().tokens, 0);
  for (const int count : {1, 15, 20, 3, 32}) append(derived, count, 1);
  EXPECT_EQ(derived.size(), 71);
  EXPECT_EQ(derived.view().tokens, 71);
  expect_written(derived, 0, 71, 1);
  EXPECT_EQ(derived.bytes(), 5u * heads * columns * block * sizeof(f16));
}

TEST(DerivedColumns, RoomThatIsNotCommittedIsNotThere) {
  DerivedColumns derived(heads, columns, block);
  append(derived, 16, 1);
  derived.space(5);
  EXPECT_EQ(derived.view().blocks.size(), 1u);
  EXPECT_EQ(DerivedColumns(derived).size(), 16);
  append(derived, 5, 1);
  expect_written(derived, 0, 21, 1);
}

TEST(DerivedColumns, CopiesGoTheirOwnWaysFromWhereTheyPart) {
  for (const int common : {0, 7, 16, 37}) {
    DerivedColumns first(heads, columns, block);
    append(first, common, 1);
    DerivedColumns second(first);
    append(first, 20, 2);
    append(second, 30, 3);
    expect_written(first, 0, common, 1);
    expect_written(first, common, common + 20, 2);
    expect_written(second, 0, common, 1);
    expect_written(second, common, common + 30, 3);
  }
}

TEST(DerivedColumns, CopiesShareFullBlocks) {
  DerivedColumns first(heads, columns, block);
  append(first, 40, 1);
  const DerivedColumns second(first);
  EXPECT_EQ(first.view().blocks[0], second.view().blocks[0]);
  EXPECT_EQ(first.view().blocks[1], second.view().blocks[1]);
  EXPECT_NE(first.view().blocks[2], second.view().blocks[2]);
}

}  // namespace
}  // namespace hayloft::index
