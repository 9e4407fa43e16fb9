#include "gpu/cuda/column_copy.cuh"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "gpu/cuda/host_pins.cuh"

namespace hayloft::gpu::cuda {
namespace {

// What cudaMemcpy2DAsync takes on every device. Layers that take turns in an arena may lie farther apart.
constexpr std::ptrdiff_t kLargestPitch = 0x7fffffff;

// Part of a block that a range covers.
struct BlockPart {
  const std::byte* block;
  const std::byte* piece;  // of pinned memory, that the block lies in; null when it is not pinned
  std::int64_t slot;       // of the first token, in the block
  std::int64_t offset;     // of the first token, in the range
  std::int64_t tokens;
};

// Of the positions [begin, begin + tokens), those that the blocks have memory for: a last block that is not full is
// taken whole, so that no scale is cut.
std::vector<BlockPart> parts_of(const HostPins& pins, const offload::LayerView& view, std::int64_t begin,
                                std::int64_t tokens) {
  const std::int64_t block = view.layout->block_tokens;
  const std::int64_t end = std::min(begin + tokens, static_cast<std::int64_t>(view.blocks.size()) * block);
  std::vector<BlockPart> parts;
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t length = std::min(end - t, block - t % block);
    const std::byte* const data = view.blocks[static_cast<std::size_t>(t / block)];
    parts.push_back({data, pins.piece_of(data), t % block, t - begin, length});
    t += length;
  }
  return parts;
}

// Bytes of one column's levels or scales for so many tokens; `whole` for a block of `block_tokens`.
std::uint64_t share(std::uint64_t whole, std::int64_t tokens, std::int64_t block_tokens) {
  return whole * static_cast<std::uint64_t>(tokens) / static_cast<std::uint64_t>(block_tokens);
}

}  // namespace

ColumnSlabs::ColumnSlabs(const Context& context, const offload::LayerView& view,
                         std::span<const std::int32_t> components, int rank, bool staged, cudaStream_t stream)
    : context_(context), view_(view), components_(components), rank_(rank), staged_(staged), stream_(stream) {
  const offload::BlockLayout& layout = *view.layout;
  if (staged) ring_ = context.staging->lock();
  const std::uint64_t most = staged ? std::min(kColumnSlabBytes, context.staging->piece_bytes()) : kColumnSlabBytes;
  const auto needed = [&](std::int64_t tokens) {
    return static_cast<std::uint64_t>(rank) * (share(layout.column_bytes, tokens, layout.block_tokens) +
                                               share(layout.scale_bytes, tokens, layout.block_tokens));
  };
  tokens_ = kChunkTokens;
  while (tokens_ < view.tokens && needed(2 * tokens_) <= most) tokens_ *= 2;
  if (staged && needed(tokens_) > most) {
    throw std::logic_error("ColumnSlabs: a piece of the staging ring does not hold one chunk of the chosen columns");
  }
  column_bytes_ = share(layout.column_bytes, tokens_, layout.block_tokens);
  scale_bytes_ = share(layout.scale_bytes, tokens_, layout.block_tokens);
  scale_shift_ =
      std::countr_zero(static_cast<unsigned>(std::min(layout.block_tokens, offload::BlockLayout::scale_tokens)));
  slab_bytes_ = (needed(tokens_) + 255) / 256 * 256;
  slabs_.emplace(context, 2 * static_cast<std::int64_t>(slab_bytes_), stream);
}

void ColumnSlabs::fetch(const ColumnRange& range) {
  std::byte* slab = slabs_->data() + static_cast<std::uint64_t>(next_) * slab_bytes_;
  order(context_, stream_, context_.copies);
  begin_ = range.begin;
  if (staged_) {
    gather(range, slab);
  } else {
    copy(range, slab);
  }
}

ColumnSource ColumnSlabs::ready() {
  order(context_, context_.copies, stream_);
  ColumnSource source;
  source.base = slabs_->data() + static_cast<std::uint64_t>(next_) * slab_bytes_;
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

void ColumnSlabs::copy(const ColumnRange& range, std::byte* slab) const {
  const offload::BlockLayout& layout = *view_.layout;
  const std::vector<BlockPart> parts = parts_of(*context_.pins, view_, range.begin, tokens_);
  // Whether one copy may bring in part n together with part i.
  const auto alike = [&](std::size_t i, std::size_t n) {
    return n < parts.size() && parts[n].tokens == parts[i].tokens && parts[n].piece == parts[i].piece;
  };
  // One column's runs, `bytes` of them in each part, from `offset` in the block on.
  const auto copy_runs = [&](std::uint64_t offset, std::uint64_t column, std::byte* to) {
    for (std::size_t i = 0; i < parts.size();) {
      const std::uint64_t bytes = share(column, parts[i].tokens, layout.block_tokens);
      std::size_t n = i + 1;
      std::ptrdiff_t pitch = static_cast<std::ptrdiff_t>(bytes);
      if (alike(i, n) && parts[n].block > parts[i].block && parts[n].block - parts[i].block <= kLargestPitch) {
        pitch = parts[n].block - parts[i].block;
        while (alike(i, n) && parts[n].block - parts[n - 1].block == pitch) ++n;
      }
      HAYLOFT_CUDA(cudaMemcpy2DAsync(to + share(column, parts[i].offset, layout.block_tokens), bytes,
                                     parts[i].block + offset + share(column, parts[i].slot, layout.block_tokens),
                                     static_cast<std::size_t>(pitch), bytes, n - i, cudaMemcpyHostToDevice,
                                     context_.copies));
      i = n;
    }
  };
  const std::uint64_t head = static_cast<std::uint64_t>(range.head) * layout.head_bytes;
  for (int j = 0; j < rank_; ++j) {
    const auto component = static_cast<std::uint64_t>(components_[static_cast<std::size_t>(range.head * rank_ + j)]);
    const auto column = static_cast<std::uint64_t>(j);
    copy_runs(head + layout.columns_offset + component * layout.column_bytes, layout.column_bytes,
              slab + column * column_bytes_);
    if (layout.scale_bytes == 0) continue;
    copy_runs(head + layout.scales_offset + component * layout.scale_bytes, layout.scale_bytes,
              slab + static_cast<std::uint64_t>(rank_) * column_bytes_ + column * scale_bytes_);
  }
}

void ColumnSlabs::gather(const ColumnRange& range, std::byte* slab) {
  const offload::BlockLayout& layout = *view_.layout;
  const std::vector<BlockPart> parts = parts_of(*context_.pins, view_, range.begin, tokens_);
  std::byte* piece = context_.staging->acquire();
  std::byte* scales = piece + static_cast<std::uint64_t>(rank_) * column_bytes_;
  const auto runs = static_cast<std::int64_t>(parts.size());
  const auto copy_run = [&](const BlockPart& part, const std::byte* column, std::uint64_t whole, std::byte* to) {
    std::memcpy(to + share(whole, part.offset, layout.block_tokens),
                column + share(whole, part.slot, layout.block_tokens), share(whole, part.tokens, layout.block_tokens));
  };
  context_.threads->parallel_for(rank_ * runs, 8, [&](std::int64_t begin, std::int64_t end) {
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
  HAYLOFT_CUDA(cudaMemcpyAsync(slab, piece, static_cast<std::uint64_t>(rank_) * (column_bytes_ + scale_bytes_),
                               cudaMemcpyHostToDevice, context_.copies));
  context_.staging->release(context_.copies);
}

}  // namespace hayloft::gpu::cuda
