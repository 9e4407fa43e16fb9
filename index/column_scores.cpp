#include "index/column_scores.h"

#include <algorithm>
#include <limits>

namespace hayloft::index {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

ColumnScores::ColumnScores(const offload::LayerView& view, const ColumnSearch& search, int head, int first, int heads,
                           int tile)
    : view_(view), head_(head), tile_(tile) {
  const std::int32_t* components = search.components + static_cast<std::ptrdiff_t>(head) * search.rank;
  for (int j = 0; j < search.rank; ++j) {
    offsets_.push_back(components[j] * static_cast<std::int64_t>(view.layout->column_bytes));
  }
  query_ = {offsets_.data(), search.weights + static_cast<std::ptrdiff_t>(first) * search.rank, search.rank, heads};
}

int ColumnScores::tile_tokens(int group, int rank) {
  // Where the sums are a small part of the work, longer runs of the columns are worth a fuller cache.
  if (group <= 4 && rank >= 64) return 2048;
  return group <= 8 ? 1024 : group <= 16 ? 512 : 256;
}

const std::byte* ColumnScores::run_at(std::int64_t position) const {
  if (position >= view_.tokens) return nullptr;
  const offload::BlockLayout& layout = *view_.layout;
  const std::int64_t slot = position & (layout.block_tokens - 1);
  const std::byte* block = view_.blocks[static_cast<std::size_t>(view_.block_of(position))];
  return layout.column(block, head_, 0) + slot * static_cast<std::int64_t>(sizeof(f16));
}

void ColumnScores::score(std::int64_t begin, std::int64_t end, float* scores, const TileNotes* notes) const {
  const int row = stride(tile_);
  const std::int64_t block = view_.layout->block_tokens;
  const std::int64_t run = end - begin;
  if (run <= block - (begin & (block - 1))) {
    score_run(query_, run_at(begin), run_at(end), static_cast<int>(run), scores, row, notes);
    if (notes != nullptr) return;
  } else {
    for (std::int64_t t = begin; t < end;) {
      const std::int64_t length = std::min(end - t, block - (t & (block - 1)));
      score_run(query_, run_at(t), run_at(t + length), static_cast<int>(length), scores + (t - begin), row, nullptr);
      t += length;
    }
  }
  const std::int64_t padded = round_up(run, subtile_tokens);
  for (int h = 0; h < query_.heads; ++h) {
    float* s = scores + static_cast<std::ptrdiff_t>(h) * row;
    std::fill(s + run, s + padded, -std::numeric_limits<float>::infinity());
  }
  if (notes != nullptr) take_notes(scores, row, query_.heads, static_cast<int>(padded), *notes);
}

void ColumnScores::prefetch(std::int64_t begin, std::int64_t end) const {
  const std::int64_t block = view_.layout->block_tokens;
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t length = std::min(end - t, block - (t & (block - 1)));
    prefetch_run(query_, run_at(t), static_cast<int>(length));
    t += length;
  }
}

}  // namespace hayloft::index
