#pragma once

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/snapshot/file.h"
#include "offload/snapshot/writer.h"

// The part of SnapshotWriter that knows its file; writer.cpp alone includes it.
namespace hayloft::offload {

inline std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + snapshot_alignment - 1) / snapshot_alignment * snapshot_alignment;
}

inline std::span<const std::byte> bytes_of(const TailImage& tail) {
  return tail.state.empty() ? std::as_bytes(tail.rows) : std::as_bytes(tail.state);
}

// Returns what says of a tail how it lies at `offset`.
inline SavedTail saved_tail(const TailImage& tail, std::uint64_t offset) {
  const std::uint64_t row_elements = other_row_elements(tail);
  return {tail.store_layer,
          tail.position,
          tail.tokens,
          offset,
          snapshot_checksum(bytes_of(tail)),
          tail.state.size(),
          row_elements,
          row_elements > 0 ? tail.kv_heads : 0};
}

inline bool disk_full(int cause) {
  return cause == ENOSPC || cause == EDQUOT || cause == EFBIG;
}

struct SnapshotWriter::Impl {
  Impl(std::shared_ptr<const SnapshotFile> opened, std::filesystem::path real, SnapshotCalls to_use)
      : file(std::move(opened)), path(std::move(real)), calls(std::move(to_use)) {}
  ~Impl() { file->unlock(); }  // a Snapshot may go on using the file
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const std::shared_ptr<const SnapshotFile> file;
  const std::filesystem::path path;  // links followed
  const SnapshotCalls calls;
  std::shared_ptr<const SnapshotState> state;  // of the last checkpoint, or the one that was gone back to
  std::vector<ByteRange> unused;               // spare ranges of the last checkpoint, which nothing refers to
  std::size_t most_points = 1;
  std::optional<std::string> note;  // of the next checkpoints, where it is not the last one's
  bool failed_sync = false;

  void adopt(std::shared_ptr<const SnapshotState> last) {
    state = std::move(last);
    unused = state->metadata.spare;
  }

  std::string kept() const {
    if (state->header.tokens == 0) return "nothing was saved";
    return fmt::format("the checkpoint at {} tokens is kept", state->header.tokens);
  }

  [[noreturn]] void refuse(const char* what, int cause) const {
    fail("{}: {}: {}; {}; {}, then run the same command again", file->path().string(), what,
         std::generic_category().message(cause), kept(),
         disk_full(cause) ? "free space or raise the limit" : "check the disk");
  }

  void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    constexpr std::size_t most = std::size_t{1} << 30;  // Linux writes a little under 2 GiB at a time
    while (!bytes.empty()) {
      const std::size_t piece = std::min(bytes.size(), most);
      const ssize_t written = calls.write(file->descriptor(), bytes.data(), piece, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) refuse("cannot be written", written < 0 ? errno : ENOSPC);
      offset += static_cast<std::uint64_t>(written);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void sync() {
    if (calls.sync(file->descriptor()) == 0) return;
    const int cause = errno;
    failed_sync = true;
    refuse("cannot be synced to the disk", cause);
  }

  void resize(std::uint64_t bytes) const {
    if (calls.resize(file->descriptor(), static_cast<off_t>(bytes)) != 0) refuse("cannot be resized", errno);
  }

  // Drops what an interrupted checkpoint left behind the last one: it is in nobody's way, but takes up the disk.
  void drop_leftovers() const {
    if (file->bytes() > state->header.file_bytes) resize(state->header.file_bytes);
  }

  // Everything `next` refers to is written; makes it the state. The slot is the one that the last checkpoint is not in.
  void commit(SnapshotState next) {
    auto committed = std::make_shared<const SnapshotState>(std::move(next));
    sync();
    const SnapshotHeader& header = committed->header;
    write(header.sequence % 2 * snapshot_slot_bytes, encode_slot(header));
    sync();
    adopt(std::move(committed));
  }

  // Chooses the place of the metadata and the tails, and writes both: the area that the last checkpoint does not use,
  // or, when they have outgrown it, a larger one at the end. Half as much again is left for growth, so that all the
  // areas ever left behind are no larger than twice the last.
  void write_area(SnapshotState& next, std::span<const TailImage> tails) const {
    SnapshotHeader& header = next.header;
    const BlockLayout& layout = next.layout;
    next.metadata.tails.clear();
    std::uint64_t rows = 0;
    for (const TailImage& tail : tails) {
      const SavedTail saved = saved_tail(tail, rows);
      if (!tail.state.empty()) header.version = std::max<std::uint32_t>(header.version, 4);
      if (saved.row_elements > 0) header.version = std::max<std::uint32_t>(header.version, 7);
      next.metadata.tails.push_back(saved);
      rows += saved_bytes(layout, next.metadata.tails.back());
    }
    const std::uint64_t metadata = encode_metadata(next).size();
    const std::uint64_t rows_place = (metadata + 63) / 64 * 64;

    ByteRange& area = header.areas[static_cast<std::size_t>(1 - state->header.area())];
    if (area.bytes < rows_place + rows) {
      // A context made in one go has no more to come for now; whoever goes on with it leaves this area behind, once.
      const bool in_one_go = header.complete && state->header.sequence == 1;
      const std::uint64_t needed = rows_place + rows;
      area = {header.file_bytes, aligned(in_one_go ? needed : needed * 3 / 2)};
      header.file_bytes = area.end();
    }
    header.metadata = {area.offset, metadata};
    for (SavedTail& tail : next.metadata.tails) tail.offset += area.offset + rows_place;
    const std::vector<std::byte> image = encode_metadata(next);
    header.metadata_checksum = snapshot_checksum(image);

    if (file->bytes() < header.file_bytes) resize(header.file_bytes);
    write(header.metadata.offset, image);
    for (std::size_t i = 0; i < tails.size(); ++i) {
      write(next.metadata.tails[i].offset, bytes_of(tails[i]));
    }
  }

  // The checkpoint becomes one of those that are kept, in a range that the last checkpoint on the disk refers to in no
  // way; the oldest go.
  void write_point(SnapshotState& next, std::span<const TailImage> tails) const {
    std::vector<SavedPoint>& points = next.metadata.points;
    const auto drop = [&](std::size_t most) {
      while (points.size() > most) {
        next.metadata.spare.push_back(points.front().range);
        points.erase(points.begin());
      }
      if (next.metadata.spare.size() > snapshot_points) next.metadata.spare.resize(snapshot_points);
    };
    if (most_points == 1) return drop(0);
    const std::int64_t cached = tails.front().position + tails.front().tokens;
    if (cached == 0 || (!points.empty() && points.back().cached_tokens() >= cached)) return drop(most_points);
    SavedPoint point;
    for (const SavedLayer& layer : next.metadata.layers) {
      point.layers.push_back({layer.tokens, layer.value_sum, layer.spread, layer.whole_sum});
    }
    std::uint64_t bytes = 0;
    for (const TailImage& tail : tails) bytes += bytes_of(tail).size();
    point.range = take_range(next, bytes);
    std::uint64_t at = point.range.offset;
    for (const TailImage& tail : tails) {
      const auto image = bytes_of(tail);
      point.tails.push_back(saved_tail(tail, at));
      write(at, image);
      at += image.size();
    }
    points.push_back(std::move(point));
    next.header.version = std::max(next.header.version, needed_version(next.header.description, /*with_points=*/true));
    drop(most_points);
  }

  // One that nothing on the disk refers to: a spare one that is large enough, or one at the end.
  ByteRange take_range(SnapshotState& next, std::uint64_t bytes) const {
    std::vector<ByteRange>& spare = next.metadata.spare;
    for (const ByteRange& range : unused) {
      const auto found = std::find(spare.begin(), spare.end(), range);
      if (found == spare.end() || range.bytes < bytes) continue;
      spare.erase(found);
      return range;
    }
    const ByteRange range{next.header.file_bytes, aligned(bytes)};
    next.header.file_bytes = range.end();
    return range;
  }

  void write_new_blocks(SnapshotState& next, const Store& store) const {
    for (int index = 0; index < store.shape().layers; ++index) {
      SavedLayer& saved = next.metadata.layers[static_cast<std::size_t>(index)];
      const LayerView layer = store.layer(index);
      for (std::size_t i = saved.blocks.size(); i < layer.blocks.size(); ++i) {
        const std::span<const std::byte> block(layer.blocks[i], next.layout.block_bytes);
        saved.blocks.push_back({next.header.file_bytes, snapshot_checksum(block)});
        write(next.header.file_bytes, block);
        next.header.file_bytes += aligned(block.size());
      }
      saved.tokens = layer.tokens;
      const std::span<const double> sum = store.exact_value_sum(index);
      saved.value_sum.assign(sum.begin(), sum.end());
      const std::span<const double> spread = store.exact_spread(index);
      saved.spread.assign(spread.begin(), spread.end());
    }
  }

  // On pages of their own: what a later checkpoint writes never touches a page of this one.
  void write_new_tokens(SnapshotState& next, std::span<const std::int32_t> tokens) const {
    const auto fresh = tokens.subspan(static_cast<std::size_t>(state->header.tokens));
    next.header.tokens = static_cast<std::int64_t>(tokens.size());
    if (fresh.empty()) return;
    const auto bytes = std::as_bytes(fresh);
    next.metadata.segments.push_back(
        {next.header.file_bytes, static_cast<std::int64_t>(fresh.size()), snapshot_checksum(bytes)});
    write(next.header.file_bytes, bytes);
    next.header.file_bytes += aligned(bytes.size());
  }

  void write_attachments(SnapshotState& next, std::span<const SnapshotAttachment> attachments) const {
    std::vector<SavedAttachment>& saved = next.metadata.attachments;
    for (const SnapshotAttachment& attachment : attachments) {
      if (attachment.name.empty() || attachment.name.size() > snapshot_name_bytes) {
        fail("{}: an attachment's name of {} bytes cannot be saved, must be 1 to {}", file->path().string(),
             attachment.name.size(), snapshot_name_bytes);
      }
      // The place of one that is replaced is for a later checkpoint: the last one still refers to it.
      const auto old = std::find_if(saved.begin(), saved.end(),
                                    [&](const SavedAttachment& other) { return other.name == attachment.name; });
      if (old != saved.end()) {
        if (old->bytes > 0) next.metadata.spare.push_back({old->offset, aligned(old->bytes)});
        if (next.metadata.spare.size() > snapshot_points) next.metadata.spare.resize(snapshot_points);
        next.header.version = std::max<std::uint32_t>(next.header.version, 4);
        saved.erase(old);
      }
      if (saved.size() == snapshot_attachments) {
        fail("{}: holds {} attachments already, the most that there may be", file->path().string(), saved.size());
      }
      const ByteRange range = take_range(next, attachment.bytes.size());
      saved.push_back({attachment.name, range.offset, attachment.bytes.size(), snapshot_checksum(attachment.bytes)});
      write(range.offset, attachment.bytes);
    }
    if (next.header.version < 3) next.header.version = saved.empty() ? 1 : 2;
  }

  void require_syncing() const {
    if (failed_sync) {
      fail("{}: an earlier sync to the disk failed; {}; check the disk, then run the same command again",
           file->path().string(), kept());
    }
  }
};

}  // namespace hayloft::offload
