#include "offload/snapshot/format.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "offload/byte_stream.h"
#include "offload/error.h"

namespace hayloft::offload {
namespace {

constexpr std::array<char, 8> magic = {'H', 'A', 'Y', 'L', 'O', 'F', 'T', '\0'};
constexpr std::uint32_t newest_version = 4;
constexpr std::uint64_t most_state_floats = std::uint64_t{1} << 32;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
constexpr std::uint64_t most_metadata_bytes = std::uint64_t{1} << 30;  // a thousand times what a million tokens need
constexpr const char* too_short = "the metadata end too early";
constexpr std::uint64_t checksum_place = snapshot_slot_bytes - sizeof(std::uint64_t);

void put(ByteWriter& out, const ByteRange& range) {
  out.number(range.offset);
  out.number(range.bytes);
}

ByteRange get_range(ByteReader& in) {
  const auto offset = in.number<std::uint64_t>();
  return {offset, in.number<std::uint64_t>()};
}

std::size_t padding(std::size_t bytes) {
  return (8 - bytes % 8) % 8;
}

// No two ranges may share a byte.
void require_disjoint(std::vector<ByteRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const ByteRange& a, const ByteRange& b) {  // empty ones first
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].offset < ranges[i - 1].end()) fail("what lies at byte {} is claimed twice", ranges[i].offset);
  }
}

void check_tokens(const char* what, std::int64_t tokens, std::int64_t most) {
  if (tokens < 0 || tokens > most) fail("{} {} tokens, must be 0 to {}", what, tokens, most);
}

ByteRange claim(const SnapshotHeader& header, const char* what, std::uint64_t offset, std::uint64_t bytes) {
  const ByteRange body{snapshot_header_bytes, header.file_bytes - snapshot_header_bytes};
  const ByteRange range{offset, bytes};
  if (!body.holds(range)) fail("{} at byte {} do not lie in the {} bytes of the file", what, offset, header.file_bytes);
  if (offset % snapshot_alignment != 0) fail("{} at byte {} are not aligned", what, offset);
  return range;
}

void read_segments(ByteReader& in, const SnapshotHeader& header, SnapshotMetadata& metadata,
                   std::vector<ByteRange>& claimed) {
  const auto count = in.number<std::uint64_t>();
  in.require(count, 3 * sizeof(std::uint64_t));
  std::int64_t tokens = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    SavedTokens segment;
    segment.offset = in.number<std::uint64_t>();
    segment.count = in.number<std::int64_t>();
    segment.checksum = in.number<std::uint64_t>();
    check_tokens("a segment of", segment.count, header.tokens - tokens);
    tokens += segment.count;
    claimed.push_back(
        claim(header, "token ids", segment.offset, static_cast<std::uint64_t>(segment.count) * sizeof(std::int32_t)));
    metadata.segments.push_back(segment);
  }
  if (tokens != header.tokens) fail("{} token ids for {} tokens", tokens, header.tokens);
}

void read_layers(ByteReader& in, const SnapshotHeader& header, const BlockLayout& layout, SnapshotMetadata& metadata,
                 std::vector<ByteRange>& claimed) {
  const StoreShape& shape = header.description.shape;
  const std::size_t sums = static_cast<std::size_t>(shape.kv_heads) * static_cast<std::size_t>(shape.head_dim);
  for (int index = 0; index < shape.layers; ++index) {
    SavedLayer layer;
    layer.tokens = in.number<std::int64_t>();
    check_tokens("a layer of", layer.tokens, header.tokens);
    const auto blocks = static_cast<std::uint64_t>((layer.tokens + shape.block_tokens - 1) / shape.block_tokens);
    in.require(blocks, 2 * sizeof(std::uint64_t));
    layer.blocks.resize(blocks);
    for (SavedBlock& block : layer.blocks) {
      block.offset = in.number<std::uint64_t>();
      block.checksum = in.number<std::uint64_t>();
      claimed.push_back(claim(header, "blocks", block.offset, layout.block_bytes));
    }
    layer.value_sum = in.array<double>(sums);
    if (shape.columns == ColumnFormat::planes) layer.spread = in.array<double>(sums);
    metadata.layers.push_back(std::move(layer));
  }
}

void read_tails(ByteReader& in, const SnapshotHeader& header, const BlockLayout& layout, SnapshotMetadata& metadata) {
  int next_store_layer = 0;
  std::uint64_t free_from = header.metadata.end();
  for (int index = 0; index < header.description.model_layers; ++index) {
    SavedTail tail;
    tail.store_layer = in.number<std::int32_t>();
    in.skip(sizeof(std::int32_t));
    tail.position = in.number<std::int64_t>();
    tail.tokens = in.number<std::int64_t>();
    tail.offset = in.number<std::uint64_t>();
    tail.checksum = in.number<std::uint64_t>();
    if (header.version >= 4) tail.state_floats = in.number<std::uint64_t>();
    if (tail.state_floats > most_state_floats || (tail.state_floats > 0 && (tail.store_layer != -1 || tail.tokens != 0))) {
      fail("a state of {} numbers beside {} tokens of layer {} of the store", tail.state_floats, tail.tokens,
           tail.store_layer);
    }
    check_tokens("a tail of", tail.tokens, header.tokens);
    check_tokens("a tail behind", tail.position, header.tokens - tail.tokens);
    metadata.tails.push_back(tail);
    if (tail.position + tail.tokens != metadata.cached_tokens()) {
      fail("the tail of model layer {} ends at token {}, another at {}", index, tail.position + tail.tokens,
           metadata.cached_tokens());
    }
    const std::uint64_t bytes = saved_bytes(layout, tail);
    if (tail.offset < free_from || !header.areas[static_cast<std::size_t>(header.area())].holds({tail.offset, bytes})) {
      fail("the tail of model layer {} at byte {} does not lie in its area", index, tail.offset);
    }
    free_from = tail.offset + bytes;
    if (tail.store_layer != -1) {
      if (tail.store_layer != next_store_layer || next_store_layer >= header.description.shape.layers) {
        fail("model layer {} belongs to layer {} of the store", index, tail.store_layer);
      }
      const std::int64_t stored = metadata.layers[static_cast<std::size_t>(next_store_layer++)].tokens;
      if (stored != tail.position) {
        fail("model layer {} has {} tokens in the store and a tail from {} on", index, stored, tail.position);
      }
    }
  }
  const bool empty = next_store_layer == 0 && metadata.cached_tokens() == 0;  // before the first real checkpoint
  if (next_store_layer != header.description.shape.layers && !empty) {
    fail("{} of {} layers of the store have a tail", next_store_layer, header.description.shape.layers);
  }
}

void read_attachments(ByteReader& in, const SnapshotHeader& header, SnapshotMetadata& metadata,
                      std::vector<ByteRange>& claimed) {
  const auto count = in.number<std::uint64_t>();
  if (count > snapshot_attachments) fail("{} attachments, at most {}", count, snapshot_attachments);
  for (std::uint64_t i = 0; i < count; ++i) {
    SavedAttachment attachment;
    const auto name = in.number<std::uint64_t>();
    if (name == 0 || name > snapshot_name_bytes) fail("an attachment's name of {} bytes", name);
    attachment.name = in.letters(name);
    in.skip(padding(name));
    attachment.offset = in.number<std::uint64_t>();
    attachment.bytes = in.number<std::uint64_t>();
    attachment.checksum = in.number<std::uint64_t>();
    claimed.push_back(claim(header, "attachments", attachment.offset, attachment.bytes));
    metadata.attachments.push_back(std::move(attachment));
  }
}

}  // namespace

std::uint64_t snapshot_checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t tail_bytes(const BlockLayout& layout, std::int64_t tokens) {
  return static_cast<std::uint64_t>(layout.kv_heads) * static_cast<std::uint64_t>(tokens) *
         (2 * static_cast<std::uint64_t>(layout.head_dim) * sizeof(f16));
}

std::uint64_t saved_bytes(const BlockLayout& layout, const SavedTail& tail) {
  return tail_bytes(layout, tail.tokens) + tail.state_floats * sizeof(float);
}

std::vector<std::byte> encode_slot(const SnapshotHeader& header) {
  ByteWriter out;
  out.array(std::span<const char>(magic));
  out.number(header.version);
  out.number(std::uint32_t{header.complete});
  out.number(header.sequence);
  out.number(header.file_bytes);
  const SnapshotDescription& description = header.description;
  out.array(std::span<const std::uint8_t>(description.model.fingerprint));
  out.number(std::int32_t{description.shape.layers});
  out.number(std::int32_t{description.shape.kv_heads});
  out.number(std::int32_t{description.shape.head_dim});
  out.number(std::int32_t{description.shape.block_tokens});
  out.number(format_number(description.shape.columns, description.shape.rows));
  out.number(std::int32_t{description.model_layers});
  out.number(header.tokens);
  out.number(header.finished_tokens);
  for (const ByteRange& area : header.areas) put(out, area);
  put(out, header.metadata);
  out.number(header.metadata_checksum);
  out.number(static_cast<std::uint64_t>(description.model.name.size()));
  out.array(std::span(description.model.name));
  out.pad(checksum_place);
  std::vector<std::byte> bytes = out.take();
  const std::uint64_t checksum = snapshot_checksum(bytes);
  const auto* const tail = reinterpret_cast<const std::byte*>(&checksum);
  bytes.insert(bytes.end(), tail, tail + sizeof checksum);
  return bytes;
}

SnapshotSlot decode_slot(std::span<const std::byte> bytes) {
  SnapshotSlot slot;
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0) return slot;
  std::uint64_t checksum;
  std::memcpy(&checksum, bytes.data() + checksum_place, sizeof checksum);
  slot.kind = SnapshotSlot::Kind::damaged;
  if (checksum != snapshot_checksum(bytes.first(checksum_place))) return slot;

  ByteReader in(bytes.subspan(magic.size()), too_short);
  slot.version = in.number<std::uint32_t>();
  if (slot.version < 1 || slot.version > newest_version) {
    slot.kind = SnapshotSlot::Kind::newer;
    return slot;
  }
  SnapshotHeader& header = slot.header;
  header.version = slot.version;
  SnapshotDescription& description = header.description;
  header.complete = in.number<std::uint32_t>() != 0;
  header.sequence = in.number<std::uint64_t>();
  header.file_bytes = in.number<std::uint64_t>();
  in.into(std::span<std::uint8_t>(description.model.fingerprint));
  description.shape.layers = in.number<std::int32_t>();
  description.shape.kv_heads = in.number<std::int32_t>();
  description.shape.head_dim = in.number<std::int32_t>();
  description.shape.block_tokens = in.number<std::int32_t>();
  // A number that no format has stays one when it is cut to the enumeration's 8 bits.
  const auto formats = in.number<std::uint32_t>();
  description.shape.columns = static_cast<ColumnFormat>(formats & 255);
  description.shape.rows = static_cast<RowFormat>(std::min<std::uint32_t>(formats >> 8, 255));
  description.model_layers = in.number<std::int32_t>();
  header.tokens = in.number<std::int64_t>();
  header.finished_tokens = in.number<std::int64_t>();
  for (ByteRange& area : header.areas) area = get_range(in);
  header.metadata = get_range(in);
  header.metadata_checksum = in.number<std::uint64_t>();
  const auto name = in.number<std::uint64_t>();
  if (name > snapshot_name_bytes) return slot;
  description.model.name = in.letters(name);
  slot.kind = SnapshotSlot::Kind::valid;
  return slot;
}

void check_header(const SnapshotHeader& header) {
  const SnapshotDescription& description = header.description;
  const BlockLayout layout(description.shape);
  if (description.model_layers < std::max(1, description.shape.layers) || description.model_layers > 1 << 16) {
    fail("a model of {} layers for a store of {}", description.model_layers, description.shape.layers);
  }
  check_tokens("a context of", header.tokens, most_tokens);
  check_tokens("a finished context of", header.finished_tokens, header.tokens);
  if (header.complete && header.finished_tokens != header.tokens) {
    fail("complete with {} of {} tokens", header.finished_tokens, header.tokens);
  }
  if (header.file_bytes < snapshot_header_bytes) fail("a file of {} bytes", header.file_bytes);
  if (header.metadata.bytes == 0 || header.metadata.bytes > most_metadata_bytes) {
    fail("metadata of {} bytes", header.metadata.bytes);
  }
  bool in_an_area = false;
  std::vector<ByteRange> areas;
  for (const ByteRange& area : header.areas) {
    if (area.bytes > 0) areas.push_back(claim(header, "metadata", area.offset, area.bytes));
    in_an_area = in_an_area || area.holds(header.metadata);
  }
  if (!in_an_area) fail("metadata at byte {} outside of their areas", header.metadata.offset);
  require_disjoint(std::move(areas));
}

std::vector<std::byte> encode_metadata(const SnapshotState& state) {
  ByteWriter out;
  const std::string& note = state.header.description.note;
  out.number(static_cast<std::uint64_t>(note.size()));
  out.array(std::span(note));
  out.pad(out.size() + padding(note.size()));
  out.number(static_cast<std::uint64_t>(state.metadata.segments.size()));
  for (const SavedTokens& segment : state.metadata.segments) {
    out.number(segment.offset);
    out.number(segment.count);
    out.number(segment.checksum);
  }
  for (const SavedLayer& layer : state.metadata.layers) {
    out.number(layer.tokens);
    for (const SavedBlock& block : layer.blocks) {
      out.number(block.offset);
      out.number(block.checksum);
    }
    out.array(std::span(layer.value_sum));
    out.array(std::span(layer.spread));
  }
  for (const SavedTail& tail : state.metadata.tails) {
    out.number(std::int32_t{tail.store_layer});
    out.number(std::int32_t{0});
    out.number(tail.position);
    out.number(tail.tokens);
    out.number(tail.offset);
    out.number(tail.checksum);
    if (state.header.version >= 4) out.number(tail.state_floats);
  }
  if (state.header.version < 2) return out.take();
  out.number(static_cast<std::uint64_t>(state.metadata.attachments.size()));
  for (const SavedAttachment& attachment : state.metadata.attachments) {
    out.number(static_cast<std::uint64_t>(attachment.name.size()));
    out.array(std::span(attachment.name));
    out.pad(out.size() + padding(attachment.name.size()));
    out.number(attachment.offset);
    out.number(attachment.bytes);
    out.number(attachment.checksum);
  }
  return out.take();
}

SnapshotState decode_metadata(const SnapshotHeader& header, std::span<const std::byte> bytes) {
  SnapshotState state;
  state.header = header;
  state.layout = BlockLayout(header.description.shape);
  ByteReader in(bytes, too_short);
  const auto note = in.number<std::uint64_t>();
  if (note > snapshot_note_bytes) fail("a note of {} bytes", note);
  state.header.description.note = in.letters(note);
  in.skip(padding(note));
  std::vector<ByteRange> claimed;
  for (const ByteRange& area : header.areas) {
    if (area.bytes > 0) claimed.push_back(area);
  }
  read_segments(in, header, state.metadata, claimed);
  read_layers(in, header, state.layout, state.metadata, claimed);
  read_tails(in, header, state.layout, state.metadata);
  if (header.version >= 2) read_attachments(in, header, state.metadata, claimed);
  if (in.left() != 0) fail("{} bytes too many in the metadata", in.left());
  require_disjoint(std::move(claimed));
  return state;
}

}  // namespace hayloft::offload
