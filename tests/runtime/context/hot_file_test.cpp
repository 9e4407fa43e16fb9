#include "runtime/context/hot_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>

#include "offload/snapshot/format.h"

// The file of hints beside a saved context: what was written is read, and whatever else it holds says nothing.
namespace hayloft::runtime {
namespace {

HotSubject subject() {
  HotSubject subject;
  subject.fingerprint[3] = 7;
  subject.tokens = 300;
  subject.stored_tokens = 256;
  subject.kv_heads = 2;
  subject.runs = 3;
  return subject;
}

std::vector<gpu::HotReads> layers() {
  return {{{1, 0, 0.5f, 2, 3, 0}, {{0, 5, 255}, {}}}, {}, {{}, {{1}, {2}}}};
}

// With its checksum made right.
std::vector<std::byte> mended(std::vector<std::byte> bytes) {
  const std::uint64_t checksum = offload::snapshot_checksum(std::span(bytes).subspan(16));
  std::memcpy(bytes.data() + 8, &checksum, sizeof checksum);
  return bytes;
}

TEST(HotFileTest, WhatWasWrittenIsRead) {
  const auto read = read_hot(write_hot(subject(), layers()), subject(), 3);
  ASSERT_TRUE(read);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ((*read)[layer].runs, layers()[layer].runs);
    EXPECT_EQ((*read)[layer].rows, layers()[layer].rows);
  }
}

TEST(HotFileTest, AnotherContextOrModelIsNotMeant) {
  const std::vector<std::byte> bytes = write_hot(subject(), layers());
  EXPECT_FALSE(read_hot(bytes, subject(), 2));
  HotSubject longer = subject(), other = subject(), wider = subject();
  ++longer.tokens;
  other.fingerprint[0] = 1;
  wider.kv_heads = 4;
  for (const HotSubject& wanted : {longer, other, wider}) EXPECT_FALSE(read_hot(bytes, wanted, 3));
}

TEST(HotFileTest, EveryDamagedByteAndEveryLengthIsNoticed) {
  const std::vector<std::byte> good = write_hot(subject(), layers());
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_FALSE(read_hot(bad, subject(), 3)) << at;
    EXPECT_FALSE(read_hot(std::span(good).first(at), subject(), 3)) << at;
    bad = good;
    bad.resize(at);
    if (at < 16) continue;
    EXPECT_FALSE(read_hot(mended(bad), subject(), 3)) << at;
  }
  std::vector<std::byte> longer = good;
  longer.push_back({});
  EXPECT_FALSE(read_hot(mended(longer), subject(), 3));
}

TEST(HotFileTest, WhatIsNoUseOrNoPositionSaysNothing) {
  const auto with = [](float use, std::vector<std::int32_t> positions) {
    std::vector<gpu::HotReads> one = layers();
    one[0].runs[2] = use;
    one[0].rows[1] = std::move(positions);
    return read_hot(write_hot(subject(), one), subject(), 3).has_value();
  };
  EXPECT_TRUE(with(1, {0, 255}));
  EXPECT_FALSE(with(-1, {}));
  EXPECT_FALSE(with(std::numeric_limits<float>::quiet_NaN(), {}));
  EXPECT_FALSE(with(std::numeric_limits<float>::infinity(), {}));
  EXPECT_FALSE(with(1, {256}));
  EXPECT_FALSE(with(1, {-1, 4}));
  EXPECT_FALSE(with(1, {4, 4}));
  EXPECT_FALSE(with(1, {5, 4}));
}

TEST(HotFileTest, ItLiesBesideTheContext) {
  EXPECT_EQ(hot_file_of("books/whale.hay"), "books/whale.hay.hot");
}

}  // namespace
}  // namespace hayloft::runtime
