#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/snapshot/snapshot.h"
#include "offload/store/layout.h"

// The bytes of a saved context (docs/internals/snapshot.md): what a header slot and a metadata image hold, to and from
// little-endian bytes. No file is touched here.
namespace hayloft::offload {

inline constexpr std::uint64_t snapshot_slot_bytes = 4096;
inline constexpr std::uint64_t snapshot_header_bytes = 2 * snapshot_slot_bytes;  // where the rest begins
inline constexpr std::uint64_t snapshot_alignment = 4096;                        // of blocks, tokens and areas
inline constexpr std::size_t snapshot_name_bytes = 255;
inline constexpr std::size_t snapshot_note_bytes = 65536;
inline constexpr std::size_t snapshot_attachments = 256;  // at most
inline constexpr std::size_t snapshot_points = 64;        // at most, and as many spare ranges
inline constexpr int snapshot_shards = 4096;              // at most

std::uint64_t snapshot_checksum(std::span<const std::byte> bytes);  // xxh3-64

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  std::uint64_t end() const { return offset + bytes; }
  bool holds(const ByteRange& part) const {  // whatever the numbers are
    return part.bytes <= bytes && part.offset >= offset && part.offset - offset <= bytes - part.bytes;
  }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// The content of one slot. The description's note is in the metadata.
struct SnapshotHeader {
  SnapshotDescription description;
  // 2: attachments; 3: integer rows; 4: states, points; 5: shards; 6: shards with points; 7: tails of other heads than
  // the store's. Older programs refuse them.
  std::uint32_t version = 1;
  bool complete = false;
  std::uint64_t sequence = 0;    // of the checkpoint, from 1; it lies in slot sequence % 2
  std::uint64_t file_bytes = 0;  // what lies behind is not part of the context
  std::int64_t tokens = 0;
  std::int64_t finished_tokens = 0;
  std::array<ByteRange, 2> areas;  // where metadata and tails of checkpoints go by turns; empty until first used
  ByteRange metadata;              // in one of them
  std::uint64_t metadata_checksum = 0;

  int area() const { return areas[0].holds(metadata) ? 0 : 1; }
};

struct SavedBlock {
  std::uint64_t offset = 0;
  std::uint64_t checksum = 0;
};

struct SavedLayer {
  std::int64_t tokens = 0;
  std::vector<SavedBlock> blocks;
  std::vector<double> value_sum;       // [Hkv][d]
  std::vector<double> spread;          // [Hkv][d], empty but for columns in planes
  std::vector<double> whole_sum = {};  // [Hkv][d] of a shard: the value sums of the blocks of all
};

struct SavedTokens {  // i32 [count]
  std::uint64_t offset = 0;
  std::int64_t count = 0;
  std::uint64_t checksum = 0;
};

// f16 [Hkv][tokens][2 d], or f32 [state_floats].
struct SavedTail {
  int store_layer = -1;
  std::int64_t position = 0;
  std::int64_t tokens = 0;
  std::uint64_t offset = 0;
  std::uint64_t checksum = 0;
  std::uint64_t state_floats = 0;
  // The numbers of a token, 2 Hkv d, and Hkv, in a layer that has no store and heads of another shape; 0: those of the
  // store.
  std::uint64_t row_elements = 0;
  int kv_heads = 0;
};

struct SavedAttachment {
  std::string name;  // at most snapshot_name_bytes
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

// A checkpoint before the last: what the store held, and the tails.
struct SavedPoint {
  struct Layer {
    std::int64_t tokens = 0;  // whole blocks of SavedLayer, or all it has
    std::vector<double> value_sum;
    std::vector<double> spread;
    std::vector<double> whole_sum = {};
  };
  std::vector<Layer> layers;
  std::vector<SavedTail> tails;  // in `range`
  ByteRange range;

  std::int64_t cached_tokens() const { return tails.front().position + tails.front().tokens; }
};

struct SnapshotMetadata {
  std::vector<SavedTokens> segments;
  std::vector<SavedLayer> layers;  // of the store
  std::vector<SavedTail> tails;    // of the model, at least one
  std::vector<SavedAttachment> attachments;
  std::vector<SavedPoint> points;  // by tokens, ascending
  std::vector<ByteRange> spare;    // of points that are no more, for those to come

  std::int64_t cached_tokens() const { return tails.front().position + tails.front().tokens; }
};

struct SnapshotState {
  SnapshotHeader header;  // with the note
  BlockLayout layout;
  SnapshotMetadata metadata;
};

// Both formats of a store in one number, columns in its low byte.
inline std::int32_t format_number(ColumnFormat columns, RowFormat rows) {
  return static_cast<std::int32_t>(columns) + 256 * static_cast<std::int32_t>(rows);
}

// Returns the oldest version that can say what a context has: SnapshotHeader::version. with_points: earlier
// checkpoints.
std::uint32_t needed_version(const SnapshotDescription& description, bool with_points);
// Returns how many numbers a layer has beside its own sums, of V over the blocks of all shards; none in one file.
std::size_t whole_sums(const SnapshotDescription& description);
// Returns whether a store that holds so many tokens of a layer ends where a tail begins. Shards end with whole blocks.
bool ends_before(const SnapshotDescription& description, std::int64_t stored, std::int64_t tail_position);

// Returns SavedTail::row_elements of such a tail.
std::uint64_t other_row_elements(const TailImage& tail);
// Returns the bytes of one tail's rows, which cannot overflow for counts that decode_metadata() lets pass.
std::uint64_t tail_bytes(const BlockLayout& layout, std::int64_t tokens, std::uint64_t row_elements = 0);
// Returns the bytes of its rows or its state.
std::uint64_t saved_bytes(const BlockLayout& layout, const SavedTail& tail);

// As it was at the last checkpoint, the last of all or one of the points, with at most so many cached tokens; none
// where there is none. Ids behind them are left out where there are more than `tokens`; segments may then hold more
// than header.tokens.
std::optional<SnapshotState> state_back_to(const SnapshotState& state, std::int64_t tokens);

// [snapshot_slot_bytes], its checksum included.
std::vector<std::byte> encode_slot(const SnapshotHeader& header);

// One slot as found. Only a valid one has a header; its fields are checked by decode_metadata().
struct SnapshotSlot {
  enum class Kind : std::uint8_t { foreign, newer, damaged, valid };
  Kind kind = Kind::foreign;
  std::uint32_t version = 0;
  SnapshotHeader header;
};
SnapshotSlot decode_slot(std::span<const std::byte> bytes);  // [snapshot_slot_bytes]

// The fields of a header on their own and against each other. Throws Error saying which is wrong, without a file name,
// as decode_metadata() does.
void check_header(const SnapshotHeader& header);

std::vector<std::byte> encode_metadata(const SnapshotState& state);

// `bytes` match their checksum, `header` has been checked. All numbers are bounded by what is there: every range lies
// in the file, none overlaps another, and counts agree with each other.
SnapshotState decode_metadata(const SnapshotHeader& header, std::span<const std::byte> bytes);

}  // namespace hayloft::offload
