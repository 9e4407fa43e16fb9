#include "index/scan/columns/column_scores.h"

#include <algorithm>
#include <limits>

#include "offload/store/transpose.h"

namespace hayloft::index {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

ColumnScores::ColumnScores(const offload::LayerView& view, const ColumnSearch& search, int head, int first, int heads,
                           int tile)
    : view_(view), head_(head), tile_(tile) {
  const offload::BlockLayout& layout = *view.layout;
  const bool rows = search.keys == KeySource::rows;
  auto column = static_cast<std::int64_t>(layout.column_bytes);
  if (rows) {
    transposed_stride_ = tile + 32;  // not a power of two, as in stride()
    transposed_ = hwy::AllocateAligned<std::uint16_t>(static_cast<std::size_t>(layout.head_dim * transposed_stride_));
    column = transposed_stride_ * static_cast<std::int64_t>(sizeof(f16));
    if (layout.row_format != offload::RowFormat::f16) {
      rows_.resize(static_cast<std::size_t>(tile) * 2 * static_cast<std::size_t>(layout.head_dim));
    }
  }
  const std::int32_t* components = search.components + static_cast<std::ptrdiff_t>(head) * search.rank;
  const bool planes = !rows && in_planes(layout.columns);
  if (planes) {
    planes_.assign(static_cast<std::size_t>(search.rank), offload::plane_count);
    if (search.planes != nullptr)
      std::copy_n(search.planes + std::ptrdiff_t{head} * search.rank, search.rank, planes_.begin());
    while (!planes_.empty() && planes_.back() == 0) planes_.pop_back();
  }
  const int rank = planes ? static_cast<int>(planes_.size()) : search.rank;
  for (int j = 0; j < rank; ++j) {
    offsets_.push_back(components[j] * column);
    scale_offsets_.push_back(components[j] * static_cast<std::int64_t>(layout.scale_bytes));
  }
  query_ = {rows ? offload::ColumnFormat::f16 : layout.columns,
            offsets_.data(),
            scale_offsets_.data(),
            search.weights + static_cast<std::ptrdiff_t>(first) * search.rank,
            search.rank,
            rank,
            heads,
            planes ? planes_.data() : nullptr,
            static_cast<std::int64_t>(layout.plane_bytes)};
}

int ColumnScores::tile_tokens(const ColumnSearch& search, int group) {
  // Turned rows stay in the second-level cache.
  if (search.keys == KeySource::rows) return 256;
  // If the sums are a small part of the work, longer runs of the columns are worth a fuller cache.
  if (group <= 4 && search.rank >= 64) return 2048;
  return group <= 8 ? 1024 : group <= 16 ? 512 : 256;
}

TokenRun ColumnScores::run_at(std::int64_t position) const {
  if (position >= view_.tokens) return {};
  const offload::BlockLayout& layout = *view_.layout;
  const auto slot = static_cast<int>(position & (layout.block_tokens - 1));
  const std::byte* block = view_.blocks[static_cast<std::size_t>(view_.block_of(position))];
  TokenRun run{layout.column(block, head_, 0) + column_bytes(layout.columns, slot)};
  if (layout.scale_bytes != 0) {
    const int group = offload::tokens_per_scale(layout.columns, layout.block_tokens);
    const std::uint64_t range =
        layout.scale_bytes * static_cast<unsigned>(group) / static_cast<unsigned>(layout.block_tokens);
    run.scales = reinterpret_cast<const std::byte*>(layout.scales(block, head_, 0)) +
                 static_cast<unsigned>(slot / group) * range;
    run.scale_start = slot % group;
  }
  return run;
}

// Tokens of one block.
void ColumnScores::score_run_at(std::int64_t begin, int tokens, float* scores, const TileNotes* notes) {
  if (query_.planes != nullptr)
    return score_planes(query_, run_at(begin), run_at(begin + tokens), tokens, scores, stride(tile_), notes);
  if (transposed_ == nullptr) {
    return score_run(query_, run_at(begin), run_at(begin + tokens), tokens, scores, stride(tile_), notes);
  }
  const int d = view_.layout->head_dim;
  auto* const transposed = reinterpret_cast<f16*>(transposed_.get());
  offload::transpose(view_.keys(head_, begin, tokens, rows_.data()), 2 * d, tokens, d, transposed, transposed_stride_);
  score_run(query_, {reinterpret_cast<const std::byte*>(transposed)}, {}, tokens, scores, stride(tile_), notes);
}

void ColumnScores::score(std::int64_t begin, std::int64_t end, float* scores, const TileNotes* notes) {
  const int row = stride(tile_);
  const std::int64_t block = view_.layout->block_tokens;
  const std::int64_t run = end - begin;
  if (run <= block - (begin & (block - 1))) {
    score_run_at(begin, static_cast<int>(run), scores, notes);
    if (notes != nullptr) return;
  } else {
    for (std::int64_t t = begin; t < end;) {
      const std::int64_t length = std::min(end - t, block - (t & (block - 1)));
      score_run_at(t, static_cast<int>(length), scores + (t - begin), nullptr);
      t += length;
    }
  }
  const std::int64_t padded = round_up(run, quant_group_tokens);
  for (int h = 0; h < query_.heads; ++h) {
    float* s = scores + static_cast<std::ptrdiff_t>(h) * row;
    std::fill(s + run, s + padded, -std::numeric_limits<float>::infinity());
  }
  if (notes != nullptr) take_notes(scores, row, query_.heads, static_cast<int>(padded), *notes);
}

void ColumnScores::prefetch(std::int64_t begin, std::int64_t end) const {
  if (transposed_ != nullptr) return;
  const std::int64_t block = view_.layout->block_tokens;
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t length = std::min(end - t, block - (t & (block - 1)));
    prefetch_run(query_, run_at(t), static_cast<int>(length));
    t += length;
  }
}

}  // namespace hayloft::index
