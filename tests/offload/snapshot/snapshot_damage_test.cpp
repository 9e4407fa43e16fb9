// Tests what may have become of a saved context since it was written: every byte changed, every length cut, and headers
// that someone made up.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "offload/snapshot/format.h"
#include "offload/snapshot/writer.h"
#include "tests/offload/snapshot/snapshot_fixture.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::offload {
namespace {

using test::bytes_of;
using test::refuses;
using test::small_description;
using test::SmallContext;

constexpr std::int64_t damaged_tokens = 60;

class SnapshotDamageTest : public ::testing::Test {
 protected:
  SnapshotDamageTest() {
    SnapshotWriter writer = SnapshotWriter::create(path_, small_description());
    SmallContext context(arena_);
    context.grow_to(20);
    context.save(writer);
    context.grow_to(damaged_tokens);
    context.save(writer, std::vector{SnapshotAttachment{"index", std::vector<std::byte>(300, std::byte{7})}});
    writer.finish(path_);
    image_ = bytes_of(path_);
    for (const std::size_t slot : {0u, 1u}) {
      const SnapshotSlot decoded = decode_slot(bytes(image_).subspan(slot * snapshot_slot_bytes, snapshot_slot_bytes));
      if (decoded.kind == SnapshotSlot::Kind::valid && decoded.header.sequence > header_.sequence) {
        header_ = decoded.header;
      }
    }
    state_ = decode_metadata(header_, bytes(image_).subspan(header_.metadata.offset, header_.metadata.bytes));
    digest_ = context.digest();
  }

  static std::span<const std::byte> bytes(const std::string& image) { return std::as_bytes(std::span(image)); }

  Snapshot opened(const std::string& image) {
    folder_.write("ctx.hay", image);
    return Snapshot::open(path_);
  }

  static std::string flipped(std::string image, std::size_t byte, int bit = 0) {
    image[byte] = static_cast<char>(image[byte] ^ (1 << bit));
    return image;
  }

  // A file whose checksums are right and whose header or metadata say something else.
  std::string changed(const std::function<void(SnapshotState&)>& change) const {
    SnapshotState state = state_;
    change(state);
    const std::vector<std::byte> metadata = encode_metadata(state);
    std::string image = image_;
    if (state.header.metadata == header_.metadata) {
      state.header.metadata.bytes = metadata.size();
      state.header.metadata_checksum = snapshot_checksum(metadata);
      image.replace(header_.metadata.offset, metadata.size(), reinterpret_cast<const char*>(metadata.data()),
                    metadata.size());
    }
    const std::vector<std::byte> slot = encode_slot(state.header);
    return image.replace(header_.sequence % 2 * snapshot_slot_bytes, slot.size(),
                         reinterpret_cast<const char*>(slot.data()), slot.size());
  }

  const test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "ctx.hay";
  const Topology topology_;
  Arena arena_{topology_, ArenaOptions{std::uint64_t{64} << 20, "--host-memory", std::uint64_t{1} << 20, nullptr}};
  std::string image_;  // a finished file that is as it should be
  SnapshotHeader header_;
  SnapshotState state_;
  std::string digest_;
};

TEST_F(SnapshotDamageTest, ADamagedSlotOfTheHeaderIsToldThoughTheOtherIsRead) {
  EXPECT_EQ(opened(image_).damaged_slot(), "");
  for (const std::size_t slot : {0u, 1u}) {
    for (const std::size_t byte : {0u, 40u}) {
      const Snapshot snapshot = opened(flipped(image_, slot * snapshot_slot_bytes + byte));
      snapshot.verify();
      EXPECT_EQ(snapshot.content_digest(), digest_);
      const std::string told = snapshot.damaged_slot();
      EXPECT_NE(told.find(fmt::format("slot {} ", slot)), std::string::npos) << told;
    }
    std::string emptied = image_;
    emptied.replace(slot * snapshot_slot_bytes, snapshot_slot_bytes, std::string(snapshot_slot_bytes, '\0'));
    EXPECT_NE(opened(emptied).damaged_slot(), "") << slot;
  }
}

TEST_F(SnapshotDamageTest, DamageToOneHeaderSlotCostsAFinishedContextNothing) {
  for (std::size_t byte = 0; byte < snapshot_header_bytes; byte += byte % snapshot_slot_bytes < 400 ? 1 : 97) {
    SCOPED_TRACE(byte);
    const Snapshot snapshot = opened(flipped(image_, byte));
    ASSERT_EQ(snapshot.description(), small_description());
    ASSERT_EQ(snapshot.token_count(), damaged_tokens);
    ASSERT_TRUE(snapshot.complete());
  }
  EXPECT_EQ(opened(flipped(image_, 100)).content_digest(), digest_);
  EXPECT_EQ(opened(std::string(snapshot_slot_bytes, 'x') + image_.substr(snapshot_slot_bytes)).content_digest(),
            digest_);
}

TEST_F(SnapshotDamageTest, DamageToBothHeaderSlotsIsFoundWhereverItIs) {
  for (std::size_t byte = 0; byte < snapshot_slot_bytes; byte += byte < 400 ? 1 : 97) {
    SCOPED_TRACE(byte);
    const std::string damaged = flipped(flipped(image_, byte, 3), snapshot_slot_bytes + byte, 3);
    ASSERT_TRUE(refuses([&] { opened(damaged); }, {path_.string(), byte < 8 ? "not a hayloft context" : "its header"}));
  }
}

TEST_F(SnapshotDamageTest, DamageToAnyByteOfTheMetadataIsFound) {
  for (std::uint64_t byte = 0; byte < header_.metadata.bytes; ++byte) {
    SCOPED_TRACE(byte);
    ASSERT_TRUE(refuses([&] { opened(flipped(image_, header_.metadata.offset + byte, 7)); },
                        {path_.string(), "metadata do not match their checksum"}));
  }
}

TEST_F(SnapshotDamageTest, DamageToABlockDoesNotKeepAContextFromOpeningAndIsNamedByVerifying) {
  const std::uint64_t size = state_.layout.block_bytes;
  for (int layer = 0; layer < 2; ++layer) {
    const auto& blocks = state_.metadata.layers[static_cast<std::size_t>(layer)].blocks;
    ASSERT_GT(blocks.size(), 1u);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      for (const std::uint64_t byte : {std::uint64_t{0}, size / 2, size - 1}) {
        const Snapshot snapshot = opened(flipped(image_, blocks[i].offset + byte));
        EXPECT_TRUE(
            refuses([&] { snapshot.verify(); }, {path_.string(), fmt::format("layer {}, block {} ", layer, i)}));
      }
    }
  }
}

TEST_F(SnapshotDamageTest, DamageToTokensOrTailsIsFoundWhenTheyAreRead) {
  const SavedTokens& segment = state_.metadata.segments[1];
  const Snapshot tokens = opened(flipped(image_, segment.offset + 5));
  EXPECT_TRUE(refuses([&] { tokens.tokens(); }, {path_.string(), "token ids 20 to 59"}));
  EXPECT_TRUE(refuses([&] { tokens.verify(); }, {"token ids 20 to 59"}));
  for (int layer = 0; layer < test::kModelLayers; ++layer) {
    const Snapshot tail = opened(flipped(image_, state_.metadata.tails[static_cast<std::size_t>(layer)].offset + 5));
    EXPECT_TRUE(refuses([&] { tail.tail(layer); }, {path_.string(), fmt::format("model layer {} ", layer)}));
    EXPECT_TRUE(refuses([&] { tail.verify(); }, {fmt::format("model layer {} ", layer)}));
    EXPECT_NO_THROW(tail.tail((layer + 1) % test::kModelLayers));
  }
}

TEST_F(SnapshotDamageTest, DamageToAnAttachmentIsFoundWhenItIsReadAndKeepsNothingElseFromBeingRead) {
  ASSERT_EQ(state_.metadata.attachments.size(), 1u);
  const Snapshot snapshot = opened(flipped(image_, state_.metadata.attachments[0].offset + 299));
  EXPECT_TRUE(refuses([&] { snapshot.attachment("index"); }, {path_.string(), "'index'", "hayloft index"}));
  EXPECT_TRUE(refuses([&] { snapshot.verify(); }, {"'index'"}));
  EXPECT_EQ(snapshot.content_digest(), digest_);
}

TEST_F(SnapshotDamageTest, ValueSumsThatAreNotThoseOfTheBlocksAreFoundByVerifying) {
  const Snapshot snapshot = opened(changed([](SnapshotState& state) { state.metadata.layers[1].value_sum[3] += 1; }));
  EXPECT_TRUE(refuses([&] { snapshot.verify(); }, {path_.string(), "layer 1: the value sums"}));
}

TEST_F(SnapshotDamageTest, AFileCutAtAnyLengthIsRefused) {
  for (std::size_t length = 0; length < image_.size(); length += length < 64 ? 1 : 509) {
    SCOPED_TRACE(length);
    const char* const why = length < 7 ? "not a hayloft context" : "truncated at";
    ASSERT_TRUE(refuses([&] { opened(image_.substr(0, length)); }, {path_.string(), why}));
  }
  EXPECT_TRUE(refuses([&] { opened(image_.substr(0, image_.size() - 1)); },
                      {"truncated at", fmt::format("{} of {} bytes", image_.size() - 1, image_.size())}));
}

TEST_F(SnapshotDamageTest, WhatLiesBehindTheContextIsNotPartOfIt) {
  EXPECT_EQ(opened(image_ + std::string(10000, 'x')).content_digest(), digest_);
}

TEST_F(SnapshotDamageTest, FilesOfOthersAreNotContexts) {
  for (const std::string& content : {std::string(), std::string("HAY"), std::string(100000, '\0'),
                                     std::string("a long text"), std::string(20000, 'x')}) {
    EXPECT_TRUE(refuses([&] { opened(content); }, {path_.string(), "not a hayloft context"}));
    EXPECT_TRUE(refuses([&] { SnapshotWriter::open_to_append(path_); }, {"not a hayloft context"}));
    EXPECT_EQ(bytes_of(path_), content);
  }
}

TEST_F(SnapshotDamageTest, AFileOfANewerVersionIsRefusedWithItsVersion) {
  for (const std::size_t slot : {0u, 1u}) {  // as a newer program that appended would leave it
    std::string image = image_;
    image[slot * snapshot_slot_bytes + 8] = 8;
    const std::uint64_t sum = snapshot_checksum(bytes(image).subspan(slot * snapshot_slot_bytes, 4088));
    std::memcpy(image.data() + slot * snapshot_slot_bytes + 4088, &sum, sizeof sum);
    EXPECT_TRUE(refuses([&] { opened(image); }, {path_.string(), "newer hayloft", "version 8"}));
  }
}

TEST_F(SnapshotDamageTest, AFieldThatCannotBeIsNamedEvenWhenTheChecksumsAreRight) {
  struct Case {
    const char* names;
    std::function<void(SnapshotState&)> change;
  };
  const auto far = std::uint64_t{1} << 60;
  const std::vector<Case> cases = {
      {"head_dim is 12", [](auto& s) { s.header.description.shape.head_dim = 12; }},
      {"layers is -1", [](auto& s) { s.header.description.shape.layers = -1; }},
      {"kv_heads is -1", [](auto& s) { s.header.description.shape.kv_heads = -1; }},
      {"block_tokens is 48", [](auto& s) { s.header.description.shape.block_tokens = 48; }},
      {"not a column format", [](auto& s) { s.header.description.shape.columns = static_cast<ColumnFormat>(9); }},
      {"not a row format", [](auto& s) { s.header.description.shape.rows = static_cast<RowFormat>(9); }},
      {"a model of 1 layers for a store of 2", [](auto& s) { s.header.description.model_layers = 1; }},
      {"context of -1 tokens", [](auto& s) { s.header.tokens = -1; }},
      {"context of 2199023255552 tokens", [](auto& s) { s.header.tokens = std::int64_t{1} << 41; }},
      {"finished context of 61", [](auto& s) { s.header.finished_tokens = 61; }},
      {"complete with 3 of 60", [](auto& s) { s.header.finished_tokens = 3; }},
      {"a file of 8191 bytes", [](auto& s) { s.header.file_bytes = 8191; }},
      {"truncated", [&](auto& s) { s.header.file_bytes = far; }},
      {"metadata of 0 bytes", [](auto& s) { s.header.metadata.bytes = 0; }},
      {"metadata of 4294967296 bytes", [](auto& s) { s.header.metadata.bytes = std::uint64_t{1} << 32; }},
      {"outside of their areas", [](auto& s) { s.header.metadata.offset = 0; }},
      {"outside of their areas", [](auto& s) { s.header.metadata.offset = UINT64_MAX - 3; }},
      {"do not lie in the", [&](auto& s) { s.header.areas[0].bytes = far; }},
      {"do not lie in the", [](auto& s) { s.header.areas[1].offset = 0; }},
      {"are not aligned", [](auto& s) { s.header.areas[1].offset += 8, s.header.areas[1].bytes -= 8; }},
      {"claimed twice", [](auto& s) { s.header.areas[0] = s.header.areas[1]; }},
      {"metadata do not match", [](auto& s) { s.header.metadata.bytes -= 8; }},
      {"token ids for 60 tokens", [](auto& s) { s.metadata.segments.pop_back(); }},
      {"segment of -1 tokens", [](auto& s) { s.metadata.segments[0].count = -1; }},
      {"segment of 61 tokens", [](auto& s) { s.metadata.segments[0].count = 61; }},
      {"token ids at byte", [&](auto& s) { s.metadata.segments[0].offset = far; }},
      {"claimed twice", [](auto& s) { s.metadata.segments[0].offset = s.metadata.segments[1].offset; }},
      {"layer of 61 tokens", [](auto& s) { s.metadata.layers[0].tokens = 61; }},
      {"blocks at byte 0", [](auto& s) { s.metadata.layers[1].blocks[0].offset = 0; }},
      {"blocks at byte", [](auto& s) { s.metadata.layers[1].blocks[0].offset = s.header.file_bytes - 1; }},
      {"not aligned", [](auto& s) { s.metadata.layers[1].blocks[0].offset += 8; }},
      {"claimed twice", [](auto& s) { s.metadata.layers[1].blocks[0].offset = s.metadata.layers[0].blocks[0].offset; }},
      {"claimed twice", [](auto& s) { s.metadata.layers[0].blocks[0].offset = s.header.areas[0].offset; }},
      {"tail of -1 tokens", [](auto& s) { s.metadata.tails[1].tokens = -1; }},
      {"tail of 61 tokens", [](auto& s) { s.metadata.tails[1].tokens = 61; }},
      {"tail of model layer 1 ends at token 59, another at 60", [](auto& s) { s.metadata.tails[1].tokens -= 1; }},
      {"tail behind -1", [](auto& s) { s.metadata.tails[1].position = -1; }},
      {"tail of model layer 2", [](auto& s) { s.metadata.tails[2].offset = s.metadata.tails[1].offset; }},
      {"does not lie in its area", [&](auto& s) { s.metadata.tails[0].offset = far; }},
      {"belongs to layer 1", [](auto& s) { s.metadata.tails[0].store_layer = 1; }},
      {"rows of 6 numbers of 1 heads in the tail of layer 0",
       [](auto& s) { s.header.version = 7, s.metadata.tails[0].row_elements = 6, s.metadata.tails[0].kv_heads = 1; }},
      {"rows of 6 numbers of 0 heads in the tail of layer 0",
       [](auto& s) { s.header.version = 7, s.metadata.tails[0].row_elements = 6; }},
      {"rows of 0 numbers of 2 heads in the tail of layer 0",
       [](auto& s) { s.header.version = 7, s.metadata.tails[0].kv_heads = 2; }},
      {"belongs to layer -2", [](auto& s) { s.metadata.tails[1].store_layer = -2; }},
      {"1 of 2 layers of the store", [](auto& s) { s.metadata.tails[2].store_layer = -1; }},
      {"shard 4 of 2",
       [](auto& s) {
         s.header.version = 5, s.header.description.shard = {3, 2};
       }},
      {"shard 1 of 0",
       [](auto& s) {
         s.header.version = 5, s.header.description.shard = {0, 0};
       }},
      {"shard 0 of 2",
       [](auto& s) {
         s.header.version = 5, s.header.description.shard = {-1, 2};
       }},
      {"shard 1 of 4097",
       [](auto& s) {
         s.header.version = 5, s.header.description.shard = {0, 4097};
       }},
      {"in the store and a tail from",
       [](auto& s) {
         s.header.version = 5, s.header.description.shard = {0, 2};
         for (SavedLayer& layer : s.metadata.layers) layer.whole_sum = layer.value_sum;
         for (SavedTail& tail : s.metadata.tails) tail.offset += 512;  // room for them
       }},
      {"in the store and a tail from",
       [](auto& s) {
         s.metadata.tails[0].position -= 1;
         s.metadata.tails[0].tokens += 1;
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.names);
    EXPECT_TRUE(refuses([&] { opened(changed(one.change)); }, {path_.string(), one.names}));
  }
  std::string swapped = image_;
  std::swap_ranges(swapped.begin(), swapped.begin() + snapshot_slot_bytes, swapped.begin() + snapshot_slot_bytes);
  EXPECT_TRUE(refuses([&] { opened(swapped); }, {path_.string(), "slot is in the other's place"}));
}

TEST_F(SnapshotDamageTest, MetadataOfAnyLengthAreReadNoFurtherThanTheirEnd) {
  const auto metadata = bytes(image_).subspan(header_.metadata.offset, header_.metadata.bytes);
  for (std::size_t length = 0; length < metadata.size(); length += 4) {
    const std::vector<std::byte> cut(metadata.begin(), metadata.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_TRUE(refuses([&] { decode_metadata(header_, cut); }, {"the metadata end too early"}));
  }
  std::vector<std::byte> longer(metadata.begin(), metadata.end());
  longer.resize(longer.size() + 8);
  EXPECT_TRUE(refuses([&] { decode_metadata(header_, longer); }, {"8 bytes too many"}));
}

}  // namespace
}  // namespace hayloft::offload
