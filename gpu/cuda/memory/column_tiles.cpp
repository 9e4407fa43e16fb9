#include "gpu/cuda/memory/column_tiles.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "gpu/cuda/memory/host_copy.h"
#include "gpu/cuda/memory/host_pins.h"

namespace hayloft::gpu::cuda {
namespace {

// The largest pitch that cudaMemcpy2DAsync takes on every device. Layers that take turns in an arena may lie farther
// apart.
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

// Returns those of the positions [begin, end), to the end of its last chunk so that no scale is cut, that the blocks
// have memory for.
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

// Returns the bytes of one run in a block.
std::uint64_t run_bytes(const offload::BlockLayout& layout) {
  return layout.plane_bytes > 0 ? layout.plane_bytes : layout.column_bytes;
}

// Returns the bytes of all chosen columns, levels and scales.
std::uint64_t bytes_of(const offload::BlockLayout& layout, const ColumnCount& count, std::int64_t tokens) {
  return static_cast<std::uint64_t>(count.runs) * share(run_bytes(layout), tokens, layout.block_tokens) +
         static_cast<std::uint64_t>(count.columns) * share(layout.scale_bytes, tokens, layout.block_tokens);
}

// Tokens that a tile has room for.
std::int64_t tile_tokens(const offload::LayerView& view, const ColumnCount& count, std::uint64_t tile_bytes) {
  std::int64_t tokens = kChunkTokens;
  while (tokens < view.tokens && bytes_of(*view.layout, count, 2 * tokens) <= tile_bytes) tokens *= 2;
  return tokens;
}

}  // namespace

std::uint64_t bytes_per_copy(const HostPins& pins, const offload::LayerView& view, const ColumnCount& count) {
  const std::int64_t tile = tile_tokens(view, count, kColumnTileBytes);
  std::size_t stretches = 0;
  for (std::int64_t begin = 0; begin < view.tokens; begin += tile) {
    stretches += stretches_of(pins, parts_of(view, begin, std::min(begin + tile, view.tokens))).size();
  }
  const auto copies = static_cast<std::uint64_t>(count.runs + (view.layout->scale_bytes > 0 ? count.columns : 0));
  return bytes_of(*view.layout, count, view.tokens) / std::max<std::uint64_t>(1, stretches * copies);
}

ColumnTiles::ColumnTiles(const DeviceContext& context, const offload::LayerView& view,
                         std::span<const std::int32_t> chosen, const ColumnCount& count,
                         std::optional<HostGather> gather, cudaStream_t stream)
    : context_(context), view_(view), chosen_(chosen), count_(count), gather_(gather), stream_(stream) {
  const offload::BlockLayout& layout = *view.layout;
  if (gather) ring_ = gather->ring.lock();
  const std::uint64_t most = gather ? std::min(kColumnTileBytes, gather->ring.piece_bytes()) : kColumnTileBytes;
  tokens_ = tile_tokens(view, count, most);
  if (gather && bytes_of(layout, count, tokens_) > most) {
    throw std::logic_error("ColumnTiles: a piece of the staging ring does not hold one chunk of the chosen columns");
  }
  run_bytes_ = share(run_bytes(layout), tokens_, layout.block_tokens);
  scale_bytes_ = share(layout.scale_bytes, tokens_, layout.block_tokens);
  scale_shift_ =
      std::countr_zero(static_cast<unsigned>(offload::tokens_per_scale(layout.columns, layout.block_tokens)));
  tile_bytes_ = (bytes_of(layout, count, tokens_) + 255) / 256 * 256;
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
  source.column_bytes = run_bytes_;
  source.plane_bytes = run_bytes_;
  source.scales_offset = static_cast<std::uint64_t>(count_.runs) * run_bytes_;
  source.scale_bytes = scale_bytes_;
  source.scale_shift = scale_shift_;
  next_ = 1 - next_;
  return source;
}

std::vector<ColumnTiles::Piece> ColumnTiles::pieces_of(int head) const {
  const offload::BlockLayout& layout = *view_.layout;
  const auto columns = static_cast<std::size_t>(count_.columns);
  const std::span components = chosen_.subspan(static_cast<std::size_t>(head) * columns, columns);
  const std::size_t all = static_cast<std::size_t>(layout.kv_heads) * columns;
  const std::uint64_t own = static_cast<std::uint64_t>(head) * layout.head_bytes;
  const auto runs_of = [&](std::size_t j) {
    if (chosen_.size() > all) return chosen_[all + static_cast<std::size_t>(head) * columns + j];
    return traits_of(layout.columns).planes;
  };
  std::vector<Piece> pieces;
  for (std::size_t j = 0; j < columns; ++j) {
    const std::uint64_t column =
        own + layout.columns_offset + static_cast<unsigned>(components[j]) * layout.column_bytes;
    for (int run = 0; run < runs_of(j); ++run) {
      pieces.push_back(
          {column + static_cast<unsigned>(run) * layout.plane_bytes, pieces.size() * run_bytes_, run_bytes(layout)});
    }
  }
  const std::uint64_t scales = static_cast<std::uint64_t>(count_.runs) * run_bytes_;
  for (std::size_t j = 0; j < columns && layout.scale_bytes > 0; ++j) {
    if (runs_of(j) == 0) continue;
    pieces.push_back({own + layout.scales_offset + static_cast<unsigned>(components[j]) * layout.scale_bytes,
                      scales + j * scale_bytes_, layout.scale_bytes});
  }
  return pieces;
}

void ColumnTiles::copy(const ColumnRange& range, std::byte* tile) const {
  const offload::BlockLayout& layout = *view_.layout;
  const std::vector<BlockPart> parts = parts_of(view_, range.begin, range.end);
  const std::vector<Stretch> stretches = stretches_of(context_.pins, parts);
  for (const Piece& piece : pieces_of(range.head)) {
    for (const Stretch& stretch : stretches) {
      const BlockPart& part = parts[stretch.first];
      const std::uint64_t bytes = share(piece.block_bytes, part.tokens, layout.block_tokens);
      const std::uint64_t pitch = stretch.parts > 1 ? static_cast<std::uint64_t>(stretch.pitch) : bytes;
      copy_rows_to_device(context_.pins,
                          tile + piece.target + share(piece.block_bytes, part.offset, layout.block_tokens), bytes,
                          part.block + piece.source + share(piece.block_bytes, part.slot, layout.block_tokens), pitch,
                          bytes, stretch.parts, context_.copies);
    }
  }
}

void ColumnTiles::gather(const ColumnRange& range, std::byte* tile) {
  const offload::BlockLayout& layout = *view_.layout;
  const std::vector<BlockPart> parts = parts_of(view_, range.begin, range.end);
  const std::vector<Piece> pieces = pieces_of(range.head);
  std::byte* const staged = gather_->ring.acquire();
  const auto runs = static_cast<std::int64_t>(parts.size());
  gather_->threads.parallel_for(
      static_cast<std::int64_t>(pieces.size()) * runs, 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const Piece& piece = pieces[static_cast<std::size_t>(i / runs)];
          const BlockPart& part = parts[static_cast<std::size_t>(i % runs)];
          std::memcpy(staged + piece.target + share(piece.block_bytes, part.offset, layout.block_tokens),
                      part.block + piece.source + share(piece.block_bytes, part.slot, layout.block_tokens),
                      share(piece.block_bytes, part.tokens, layout.block_tokens));
        }
      });
  // `count` pieces, so far apart in the tile, from the offset on.
  const auto send = [&](std::uint64_t offset, std::uint64_t whole, std::uint64_t pitch, int count) {
    const std::uint64_t width = share(whole, parts.back().offset + parts.back().tokens, layout.block_tokens);
    if (width == 0) return;
    HAYLOFT_CUDA(cudaMemcpy2DAsync(tile + offset, pitch, staged + offset, pitch, width, static_cast<std::size_t>(count),
                                   cudaMemcpyHostToDevice, in_order(context_.copies)));
  };
  send(0, run_bytes(layout), run_bytes_, count_.runs);
  send(static_cast<std::uint64_t>(count_.runs) * run_bytes_, layout.scale_bytes, scale_bytes_, count_.columns);
  gather_->ring.release(context_.copies);
}

}  // namespace hayloft::gpu::cuda
