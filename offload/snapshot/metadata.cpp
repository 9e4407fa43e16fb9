#include <algorithm>
#include <iterator>

#include "offload/error.h"
#include "offload/snapshot/format_parts.h"

// The metadata of a saved context, to and from bytes.
namespace hayloft::offload {
namespace {

constexpr std::uint64_t most_state_floats = std::uint64_t{1} << 32;
constexpr std::uint64_t most_row_elements = std::uint64_t{1} << 22;

std::size_t padding(std::size_t bytes) {
  return (8 - bytes % 8) % 8;
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
    if (in_planes(shape.columns)) layer.spread = in.array<double>(sums);
    layer.whole_sum = in.array<double>(whole_sums(header.description));
    metadata.layers.push_back(std::move(layer));
  }
}

// One for each layer of the model, which all end at the same token, in `area` from `free_from` on; stored(i) is what
// layer i of the store holds. Returns how many layers of the store have one.
template <class Stored>
int read_tails(ByteReader& in, const SnapshotHeader& header, const BlockLayout& layout, const ByteRange& area,
               std::uint64_t free_from, const Stored& stored, std::vector<SavedTail>& tails) {
  int next_store_layer = 0;
  for (int index = 0; index < header.description.model_layers; ++index) {
    SavedTail tail;
    tail.store_layer = in.number<std::int32_t>();
    tail.kv_heads = in.number<std::int32_t>();
    tail.position = in.number<std::int64_t>();
    tail.tokens = in.number<std::int64_t>();
    tail.offset = in.number<std::uint64_t>();
    tail.checksum = in.number<std::uint64_t>();
    if (header.version >= 4) tail.state_floats = in.number<std::uint64_t>();
    if (header.version >= 7) {
      tail.row_elements = in.number<std::uint64_t>();
    } else {
      tail.kv_heads = 0;
    }
    const bool other = tail.row_elements > 0;
    if (tail.row_elements > most_row_elements || other != (tail.kv_heads > 0) || (other && tail.store_layer != -1) ||
        (other && tail.row_elements % (2 * static_cast<std::uint64_t>(tail.kv_heads)) != 0)) {
      fail("rows of {} numbers of {} heads in the tail of layer {} of the store", tail.row_elements, tail.kv_heads,
           tail.store_layer);
    }
    if (tail.state_floats > most_state_floats ||
        (tail.state_floats > 0 && (tail.store_layer != -1 || tail.tokens != 0))) {
      fail("a state of {} numbers beside {} tokens of layer {} of the store", tail.state_floats, tail.tokens,
           tail.store_layer);
    }
    check_tokens("a tail of", tail.tokens, header.tokens);
    check_tokens("a tail behind", tail.position, header.tokens - tail.tokens);
    tails.push_back(tail);
    const std::int64_t end = tails.front().position + tails.front().tokens;
    if (tail.position + tail.tokens != end) {
      fail("the tail of model layer {} ends at token {}, another at {}", index, tail.position + tail.tokens, end);
    }
    const std::uint64_t bytes = saved_bytes(layout, tail);
    if (tail.offset < free_from || !area.holds({tail.offset, bytes})) {
      fail("the tail of model layer {} at byte {} does not lie in its area", index, tail.offset);
    }
    free_from = tail.offset + bytes;
    if (tail.store_layer != -1) {
      if (tail.store_layer != next_store_layer || next_store_layer >= header.description.shape.layers) {
        fail("model layer {} belongs to layer {} of the store", index, tail.store_layer);
      }
      const std::int64_t before = stored(next_store_layer++);
      if (!ends_before(header.description, before, tail.position)) {
        fail("model layer {} has {} tokens in the store and a tail from {} on", index, before, tail.position);
      }
    }
  }
  return next_store_layer;
}

void read_last_tails(ByteReader& in, const SnapshotHeader& header, const BlockLayout& layout,
                     SnapshotMetadata& metadata) {
  const int with_tails = read_tails(
      in, header, layout, header.areas[static_cast<std::size_t>(header.area())], header.metadata.end(),
      [&](int layer) { return metadata.layers[static_cast<std::size_t>(layer)].tokens; }, metadata.tails);
  const bool empty = with_tails == 0 && metadata.cached_tokens() == 0;  // before the first real checkpoint
  if (with_tails != header.description.shape.layers && !empty) {
    fail("{} of {} layers of the store have a tail", with_tails, header.description.shape.layers);
  }
}

void read_point(ByteReader& in, const SnapshotHeader& header, const BlockLayout& layout, SnapshotMetadata& metadata) {
  const StoreShape& shape = header.description.shape;
  const std::size_t sums = static_cast<std::size_t>(shape.kv_heads) * static_cast<std::size_t>(shape.head_dim);
  SavedPoint point;
  point.range = get_range(in);
  for (int index = 0; index < shape.layers; ++index) {
    SavedPoint::Layer layer;
    layer.tokens = in.number<std::int64_t>();
    const std::int64_t all = metadata.layers[static_cast<std::size_t>(index)].tokens;
    if (layer.tokens < 0 || layer.tokens > all || (layer.tokens < all && layer.tokens % shape.block_tokens != 0)) {
      fail("an earlier checkpoint has {} of {} tokens of layer {} of the store", layer.tokens, all, index);
    }
    layer.value_sum = in.array<double>(sums);
    if (in_planes(shape.columns)) layer.spread = in.array<double>(sums);
    layer.whole_sum = in.array<double>(whole_sums(header.description));
    point.layers.push_back(std::move(layer));
  }
  const int with_tails = read_tails(
      in, header, layout, point.range, point.range.offset,
      [&](int layer) { return point.layers[static_cast<std::size_t>(layer)].tokens; }, point.tails);
  if (with_tails != shape.layers) fail("an earlier checkpoint has tails of {} of {} layers", with_tails, shape.layers);
  const std::int64_t least = metadata.points.empty() ? 1 : metadata.points.back().cached_tokens() + 1;
  if (point.cached_tokens() < least || point.cached_tokens() > metadata.cached_tokens()) {
    fail("an earlier checkpoint at {} tokens, must be at {} to {}", point.cached_tokens(), least,
         metadata.cached_tokens());
  }
  metadata.points.push_back(std::move(point));
}

void read_points(ByteReader& in, const SnapshotHeader& header, const BlockLayout& layout, SnapshotMetadata& metadata,
                 std::vector<ByteRange>& claimed) {
  const auto points = in.number<std::uint64_t>();
  const auto spare = in.number<std::uint64_t>();
  if (points > snapshot_points || spare > snapshot_points) {
    fail("{} earlier checkpoints and room for {}, at most {} of each", points, spare, snapshot_points);
  }
  if (points > 0 && header.version < needed_version(header.description, /*with_points=*/true)) {
    fail("{} earlier checkpoints in a shard of version {}", points, header.version);
  }
  for (std::uint64_t i = 0; i < points; ++i) {
    read_point(in, header, layout, metadata);
    const ByteRange& range = metadata.points.back().range;
    claimed.push_back(claim(header, "earlier tails", range.offset, range.bytes));
  }
  for (std::uint64_t i = 0; i < spare; ++i) {
    const ByteRange range = get_range(in);
    claimed.push_back(claim(header, "room for tails", range.offset, range.bytes));
    metadata.spare.push_back(range);
  }
}

void put(ByteWriter& out, const std::vector<SavedTail>& tails, std::uint32_t version) {
  for (const SavedTail& tail : tails) {
    out.number(std::int32_t{tail.store_layer});
    out.number(std::int32_t{tail.kv_heads});
    out.number(tail.position);
    out.number(tail.tokens);
    out.number(tail.offset);
    out.number(tail.checksum);
    if (version >= 4) out.number(tail.state_floats);
    if (version >= 7) out.number(tail.row_elements);
  }
}

void put_points(ByteWriter& out, const SnapshotMetadata& metadata, std::uint32_t version) {
  out.number(static_cast<std::uint64_t>(metadata.points.size()));
  out.number(static_cast<std::uint64_t>(metadata.spare.size()));
  for (const SavedPoint& point : metadata.points) {
    put(out, point.range);
    for (const SavedPoint::Layer& layer : point.layers) {
      out.number(layer.tokens);
      out.array(std::span(layer.value_sum));
      out.array(std::span(layer.spread));
      out.array(std::span(layer.whole_sum));
    }
    put(out, point.tails, version);
  }
  for (const ByteRange& range : metadata.spare) put(out, range);
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

std::uint64_t other_row_elements(const TailImage& tail) {
  if (tail.store_layer != -1 || tail.tokens <= 0 || tail.kv_heads <= 0) return 0;
  return tail.rows.size() / static_cast<std::uint64_t>(tail.tokens);
}

std::uint64_t tail_bytes(const BlockLayout& layout, std::int64_t tokens, std::uint64_t row_elements) {
  const auto own = static_cast<std::uint64_t>(layout.kv_heads) * 2 * static_cast<std::uint64_t>(layout.head_dim);
  return static_cast<std::uint64_t>(tokens) * (row_elements > 0 ? row_elements : own) * sizeof(f16);
}

std::uint64_t saved_bytes(const BlockLayout& layout, const SavedTail& tail) {
  return tail_bytes(layout, tail.tokens, tail.row_elements) + tail.state_floats * sizeof(float);
}

std::optional<SnapshotState> state_back_to(const SnapshotState& state, std::int64_t tokens) {
  if (tokens >= state.metadata.cached_tokens()) {
    SnapshotState without = state;  // ids that are yet to be read
    if (tokens < state.header.tokens) without.header.tokens = state.metadata.cached_tokens();
    without.header.finished_tokens = std::min(state.header.finished_tokens, without.header.tokens);
    return without;
  }
  const std::vector<SavedPoint>& points = state.metadata.points;
  const auto later = std::ranges::upper_bound(points, tokens, {}, &SavedPoint::cached_tokens);
  if (later == points.begin()) return std::nullopt;
  const auto found = std::prev(later);
  SnapshotState earlier = state;
  earlier.header.tokens = found->cached_tokens();
  earlier.header.finished_tokens = std::min(earlier.header.finished_tokens, earlier.header.tokens);
  SnapshotMetadata& metadata = earlier.metadata;
  for (std::size_t i = 0; i < metadata.layers.size(); ++i) {
    SavedLayer& layer = metadata.layers[i];
    const SavedPoint::Layer& then = found->layers[i];
    const std::int64_t B = state.layout.block_tokens;
    layer.tokens = then.tokens;
    layer.blocks.resize(static_cast<std::size_t>((then.tokens + B - 1) / B));
    layer.value_sum = then.value_sum;
    layer.spread = then.spread;
    layer.whole_sum = then.whole_sum;
  }
  metadata.tails = found->tails;
  metadata.attachments.clear();
  for (auto dropped = later; dropped != points.end(); ++dropped) metadata.spare.push_back(dropped->range);
  metadata.points.resize(static_cast<std::size_t>(later - points.begin()));
  return earlier;
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
    out.array(std::span(layer.whole_sum));
  }
  put(out, state.metadata.tails, state.header.version);
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
  if (state.header.version >= 4) put_points(out, state.metadata, state.header.version);
  return out.take();
}

SnapshotState decode_metadata(const SnapshotHeader& header, std::span<const std::byte> bytes) {
  SnapshotState state;
  state.header = header;
  state.layout = BlockLayout(header.description.shape);
  ByteReader in(bytes, snapshot_too_short);
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
  read_last_tails(in, header, state.layout, state.metadata);
  if (header.version >= 2) read_attachments(in, header, state.metadata, claimed);
  if (header.version >= 4) read_points(in, header, state.layout, state.metadata, claimed);
  if (in.left() != 0) fail("{} bytes too many in the metadata", in.left());
  require_disjoint(std::move(claimed));
  return state;
}

}  // namespace hayloft::offload
