#include "gpu/cuda/memory/column_tiles.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "gpu/cuda/memory/host_copy.h"
#include "gpu/cuda/memory/host_pins.h"

namespace hayloft::gpu::cuda {
namespace {

// What cudaMemcpy2DAsync takes on every device. Layers that take turns in an arena may lie farther apart.
constexpr std::ptrdiff_t kLargestPitch = 0x7fffffff;

// Part of a block that a range covers.
struct BlockPart {
  const std::byte* block;
  std::int64_t slot;    // of the first token, in the block
  std::int64_t offset;  // of the first token, in the range
  std::int64_t tokens;
};

// Parts of which one copy brings in the same column: equally long and far apart, in memory pinned as one piece.
struct Stretch {
  std::size_t first;
  std::size_t parts;
  std::ptrdiff_t pitch;  // of more than one
};

// Of the positions [begin, end), to the end of its last chunk so that no scale is cut, those that the blocks have
// memory for.
std::vector<BlockPart> parts_of(const offload::LayerView& view, std::int64_t begin, std::int64_t end) {
  const std::int64_t block = view.layout->block_tokens;
  end = std::min(begin + chunks_of(end - begin) * kChunkTokens, static_cast<std::int64_t>(view.blocks.size()) * block);
  std::vector<BlockPart> parts;
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t length = std::min(end - t, block - t % block);
    parts.push_back({view.blocks[static_cast<std::size_t>(t / block)], t % block, t - begin, length});
    t += length;
  }
  return parts;
}

std::vector<Stretch> stretches_of(const HostPins& pins, const std::vector<BlockPart>& parts) {
  std::vector<Stretch> stretches;
  std::span<const std::byte> piece;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::byte* const block = parts[i].block;
    const std::byte* const before = i > 0 ? parts[i - 1].block : nullptr;
    const bool same_piece = !piece.empty() && block >= piece.data() && block < piece.data() + piece.size();
    if (same_piece && parts[i].tokens == parts[i - 1].tokens && block > before) {
      Stretch& last = stretches.back();
      const std::ptrdiff_t pitch = block - before;
      if (last.parts == 1 ? pitch <= kLargestPitch : pitch == last.pitch) {
        last.pitch = pitch;
        ++last.parts;
        continue;
      }
    }
    if (!same_piece) piece = pins.piece_of(block);
    stretches.push_back({i, 1, 0});
  }
  return stretches;
}

// Bytes of one column's levels or scales for so many tokens; `whole` for a block of `block_tokens`.
std::uint64_t share(std::uint64_t whole, std::int64_t tokens, std::int64_t block_tokens) {
  return whole * static_cast<std::uint64_t>(tokens) / static_cast<std::uint64_t>(block_tokens);
}

// Of all chosen columns, levels and scales.
std::uint64_t bytes_of(const offload::BlockLayout& layout, int rank, std::int64_t tokens) {
  return static_cast<std::uint64_t>(rank) * (share(layout.column_bytes, tokens, layout.block_tokens) +
                                             share(layout.scale_bytes, tokens, layout.block_tokens));
}

// Tokens that a tile has room for.
std::int64_t tile_tokens(const offload::LayerView& view, int rank, std::uint64_t tile_bytes) {
  std::int64_t tokens = kChunkTokens;
  while (tokens < view.tokens && bytes_of(*view.layout, rank, 2 * tokens) <= tile_bytes) tokens *= 2;
  return tokens;
}

}  // namespace

std::uint64_t bytes_per_copy(const HostPins& pins, const offload::LayerView& view, int rank) {
  const std::int64_t tile = tile_tokens(view, rank, kColumnTileBytes);
  std::size_t stretches = 0;
  for (std::int64_t begin = 0; begin < view.tokens; begin += tile) {
    stretches += stretches_of(pins, parts_of(view, begin, std::min(begin + tile, view.tokens))).size();
  }
  const std::uint64_t copies_each = view.layout->scale_bytes > 0 ? 2 : 1;
  return bytes_of(*view.layout, 1, view.tokens) / std::max<std::uint64_t>(1, stretches * copies_each);
}

ColumnTiles::ColumnTiles(const DeviceContext& context, const offload::LayerView& view,
                         std::span<const std::int32_t> components, int rank, std::optional<HostGather> gather,
                         cudaStream_t stream)
    : context_(context), view_(view), components_(components), rank_(rank), gather_(gather), stream_(stream) {
  const offload::BlockLayout& layout = *view.layout;
  if (gather) ring_ = gather->ring.lock();
  const std::uint64_t most = gather ? std::min(kColumnTileBytes, gather->ring.piece_bytes()) : kColumnTileBytes;
  tokens_ = tile_tokens(view, rank, most);
  if (gather && bytes_of(layout, rank, tokens_) > most) {
    throw std::logic_error("ColumnTiles: a piece of the staging ring does not hold one chunk of the chosen columns");
  }
  column_bytes_ = share(layout.column_bytes, tokens_, layout.block_tokens);
  scale_bytes_ = share(layout.scale_bytes, tokens_, layout.block_tokens);
  scale_shift_ =
      std::countr_zero(static_cast<unsigned>(offload::tokens_per_scale(layout.columns, layout.block_tokens)));
  tile_bytes_ = (bytes_of(layout, rank, tokens_) + 255) / 256 * 256;
  tiles_.emplace(context, 2 * static_cast<std::int64_t>(tile_bytes_), stream);
}

ColumnTiles::~ColumnTiles() {
  // The tiles are freed on the stream, which what is being copied into them knows nothing of.
  if (fetching_) cudaStreamSynchronize(context_.copies);
}

void ColumnTiles::fetch(const ColumnRange& range) {
  std::byte* tile = tiles_->data() + static_cast<std::uint64_t>(next_) * tile_bytes_;
  context_.order(stream_, context_.copies);
  begin_ = range.begin;
  fetching_ = true;
  if (range.staged) {
    gather(range, tile);
  } else {
    copy(range, tile);
  }
}

ColumnSource ColumnTiles::ready() {
  context_.order(context_.copies, stream_);
  fetching_ = false;
  ColumnSource source;
  source.base = tiles_->data() + static_cast<std::uint64_t>(next_) * tile_bytes_;
  source.first = begin_;
  source.block_shift = std::countr_zero(static_cast<std::uint64_t>(tokens_));
  source.gathered = true;
  source.column_bytes = column_bytes_;
  source.scales_offset = static_cast<std::uint64_t>(rank_) * column_bytes_;
  source.scale_bytes = scale_bytes_;
  source.scale_shift = scale_shift_;
  next_ = 1 - next_;
  return source;
}

void ColumnTiles::copy(const ColumnRange& range, std::byte* tile) const {
  const offload::BlockLayout& layout = *view_.layout;
  const std::vector<BlockPart> parts = parts_of(view_, range.begin, range.end);
  const std::vector<Stretch> stretches = stretches_of(context_.pins, parts);
  // One column's runs, `bytes` of them in each part, from `offset` in the block on.
  const auto copy_runs = [&](std::uint64_t offset, std::uint64_t column, std::byte* to) {
    for (const Stretch& stretch : stretches) {
      const BlockPart& part = parts[stretch.first];
      const std::uint64_t bytes = share(column, part.tokens, layout.block_tokens);
      const std::uint64_t pitch = stretch.parts > 1 ? static_cast<std::uint64_t>(stretch.pitch) : bytes;
      copy_rows_to_device(context_.pins, to + share(column, part.offset, layout.block_tokens), bytes,
                          part.block + offset + share(column, part.slot, layout.block_tokens), pitch, bytes,
                          stretch.parts, context_.copies);
    }
  };
  const std::uint64_t head = static_cast<std::uint64_t>(range.head) * layout.head_bytes;
  for (int j = 0; j < rank_; ++j) {
    const auto component = static_cast<std::uint64_t>(components_[static_cast<std::size_t>(range.head * rank_ + j)]);
    const auto column = static_cast<std::uint64_t>(j);
    copy_runs(head + layout.columns_offset + component * layout.column_bytes, layout.column_bytes,
              tile + column * column_bytes_);
    if (layout.scale_bytes == 0) continue;
    copy_runs(head + layout.scales_offset + component * layout.scale_bytes, layout.scale_bytes,
              tile + static_cast<std::uint64_t>(rank_) * column_bytes_ + column * scale_bytes_);
  }
}

void ColumnTiles::gather(const ColumnRange& range, std::byte* tile) {
  const offload::BlockLayout& layout = *view_.layout;
  const std::vector<BlockPart> parts = parts_of(view_, range.begin, range.end);
  std::byte* piece = gather_->ring.acquire();
  std::byte* scales = piece + static_cast<std::uint64_t>(rank_) * column_bytes_;
  const auto runs = static_cast<std::int64_t>(parts.size());
  const auto copy_run = [&](const BlockPart& part, const std::byte* column, std::uint64_t whole, std::byte* to) {
    std::memcpy(to + share(whole, part.offset, layout.block_tokens),
                column + share(whole, part.slot, layout.block_tokens), share(whole, part.tokens, layout.block_tokens));
  };
  gather_->threads.parallel_for(rank_ * runs, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto j = static_cast<std::uint64_t>(i / runs);
      const BlockPart& part = parts[static_cast<std::size_t>(i % runs)];
      const int component = components_[static_cast<std::size_t>(range.head * rank_) + j];
      copy_run(part, layout.column(part.block, range.head, component), layout.column_bytes, piece + j * column_bytes_);
      if (layout.scale_bytes == 0) continue;
      copy_run(part, reinterpret_cast<const std::byte*>(layout.scales(part.block, range.head, component)),
               layout.scale_bytes, scales + j * scale_bytes_);
    }
  });
  const auto send = [&](std::byte* to, const std::byte* from, std::uint64_t whole, std::uint64_t pitch) {
    const std::uint64_t width = share(whole, parts.back().offset + parts.back().tokens, layout.block_tokens);
    if (width == 0) return;
    HAYLOFT_CUDA(cudaMemcpy2DAsync(to, pitch, from, pitch, width, static_cast<std::size_t>(rank_),
                                   cudaMemcpyHostToDevice, context_.copies));
  };
  send(tile, piece, layout.column_bytes, column_bytes_);
  send(tile + (scales - piece), scales, layout.scale_bytes, scale_bytes_);
  gather_->ring.release(context_.copies);
}

}  // namespace hayloft::gpu::cuda
