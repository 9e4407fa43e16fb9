#include "offload/snapshot/format.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "offload/error.h"
#include "offload/snapshot/format_parts.h"

namespace hayloft::offload {
namespace {

constexpr std::array<char, 8> magic = {'H', 'A', 'Y', 'L', 'O', 'F', 'T', '\0'};
constexpr std::uint32_t newest_version = 7;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
constexpr std::uint64_t most_metadata_bytes = std::uint64_t{1} << 30;  // a thousand times what a million tokens need
constexpr std::uint64_t checksum_place = snapshot_slot_bytes - sizeof(std::uint64_t);

}  // namespace

void put(ByteWriter& out, const ByteRange& range) {
  out.number(range.offset);
  out.number(range.bytes);
}

ByteRange get_range(ByteReader& in) {
  const auto offset = in.number<std::uint64_t>();
  return {offset, in.number<std::uint64_t>()};
}

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

std::uint64_t snapshot_checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
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
  if (header.version >= 5) {
    out.number(std::int32_t{description.shard.rank});
    out.number(std::int32_t{description.shard.ranks});
    out.number(description.saving);
  }
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

  ByteReader in(bytes.subspan(magic.size()), snapshot_too_short);
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
  if (header.version >= 5) {
    description.shard.rank = in.number<std::int32_t>();
    description.shard.ranks = in.number<std::int32_t>();
    description.saving = in.number<std::uint64_t>();
  }
  slot.kind = SnapshotSlot::Kind::valid;
  return slot;
}

std::uint32_t needed_version(const SnapshotDescription& description, bool with_points) {
  if (!description.shard.alone()) return with_points ? 6 : 5;
  if (with_points) return 4;
  return description.shape.rows == RowFormat::f16 ? 1 : 3;
}

std::size_t whole_sums(const SnapshotDescription& description) {
  if (description.shard.alone()) return 0;
  return static_cast<std::size_t>(description.shape.kv_heads) * static_cast<std::size_t>(description.shape.head_dim);
}

bool ends_before(const SnapshotDescription& description, std::int64_t stored, std::int64_t tail_position) {
  const int B = description.shape.block_tokens;
  const bool whole_blocks = description.shard.alone() || tail_position % B == 0;
  return whole_blocks && stored == description.shard.own(tail_position, B);
}

void check_header(const SnapshotHeader& header) {
  const SnapshotDescription& description = header.description;
  const BlockLayout layout(description.shape);
  if (description.model_layers < std::max(1, description.shape.layers) || description.model_layers > 1 << 16) {
    fail("a model of {} layers for a store of {}", description.model_layers, description.shape.layers);
  }
  const Shard& shard = description.shard;
  if (shard.ranks < 1 || shard.ranks > snapshot_shards || shard.rank < 0 || shard.rank >= shard.ranks) {
    fail("shard {} of {}, must be of 1 to {}", std::int64_t{shard.rank} + 1, shard.ranks, snapshot_shards);
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

}  // namespace hayloft::offload
