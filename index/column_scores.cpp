#include "index/column_scores.h"

#include <algorithm>
#include <limits>

namespace hayloft::index {
namespace {

constexpr int vector_tokens = 16;  // score_run works on whole vectors; a block holds at least one

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

ColumnScores::ColumnScores(const offload::LayerView& view, const ColumnSearch& search, int head, int first, int heads)
    : view_(view), head_(head) {
  query_.components = search.components + static_cast<std::ptrdiff_t>(head) * search.rank;
  query_.weights = search.weights + static_cast<std::ptrdiff_t>(first) * search.rank;
  query_.rank = search.rank;
  query_.heads = heads;
}

int ColumnScores::tile_tokens(int heads) {
  return heads <= 8 ? 1024 : heads <= 16 ? 512 : 256;
}

ColumnRun ColumnScores::run_at(std::int64_t position) const {
  if (position >= view_.tokens) return {};
  const offload::BlockLayout& layout = *view_.layout;
  const std::int64_t slot = position & (layout.block_tokens - 1);
  const std::byte* block = view_.blocks[static_cast<std::size_t>(view_.block_of(position))];
  return {layout.column(block, head_, 0) + slot * static_cast<std::int64_t>(sizeof(f16)),
          static_cast<std::int64_t>(layout.column_bytes)};
}

void ColumnScores::score(std::int64_t begin, std::int64_t end, float* scores) const {
  const int row = stride(query_.heads);
  const int block = view_.layout->block_tokens;
  ColumnRun run = run_at(begin);
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t length = std::min(end - t, block - (t & (block - 1)));
    const ColumnRun next = run_at(t + length);
    score_run(query_, run, next, static_cast<int>(round_up(length, vector_tokens)), scores + (t - begin), row);
    run = next;
    t += length;
  }
  const std::int64_t padded = round_up(end - begin, subtile_tokens);
  for (int h = 0; h < query_.heads; ++h) {
    float* s = scores + static_cast<std::ptrdiff_t>(h) * row;
    std::fill(s + (end - begin), s + padded, -std::numeric_limits<float>::infinity());
  }
}

void ColumnScores::prefetch(std::int64_t begin, std::int64_t end) const {
  const int block = view_.layout->block_tokens;
  for (std::int64_t t = begin; t < end;) {
    const std::int64_t length = std::min(end - t, block - (t & (block - 1)));
    prefetch_run(query_, run_at(t), static_cast<int>(length));
    t += length;
  }
}

}  // namespace hayloft::index
