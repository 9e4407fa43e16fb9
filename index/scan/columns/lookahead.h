#pragma once

#include <algorithm>
#include <cstddef>

#include "index/scan/columns/column_kernels.h"

namespace hayloft::index {

// Columns added in one pass over a tile: their keys stay in registers while all query heads use them. One at a time
// would spend its time on the sums; more at once would be too many streams for the memory.
inline constexpr int columns_per_pass = 4;

// Asks for the columns of the run at hand and of the next one in the order they will be read, a quantisation group of
// one pass at a time: an even pace keeps the memory busy while the processor computes, exponentials included. (Left to
// itself the processor looks ahead some hundred instructions, less than one quantisation group.) Into the second-level
// cache, since the first is full of scores.
class Lookahead {
 public:
  // `lead` passes of the current run have been asked for already.
  Lookahead(const HeadQuery& query, const TokenRun& current, const TokenRun& next, int tokens, int lead)
      : query_(query),
        run_(current),
        next_(next),
        bytes_(column_bytes(query.format, tokens / quant_group_tokens * quant_group_tokens)),
        step_bytes_(std::max(cache_line, column_bytes(query.format, quant_group_tokens))),
        step_cost_(256 * step_bytes_ / column_bytes(query.format, quant_group_tokens)),
        column_(lead * columns_per_pass) {
    // A quantisation group or two are asked for at once, by prefetch_run.
    if (tokens < 3 * quant_group_tokens) bytes_ = 0;
    if (bytes_ > 0) start_pass();
  }

  // Adds to how much may be asked for, in 256ths of a quantisation group of a pass, and asks for it.
  [[gnu::always_inline]] void advance(int credit) {
    for (credit_ += credit; credit_ > 0 && bytes_ > 0; credit_ -= step_cost_) {
      for (const std::byte* column : pass_) {
        for (int line = 0; line < step_bytes_; line += cache_line) __builtin_prefetch(column + at_ + line, 0, 2);
      }
      at_ += step_bytes_;
      if (at_ < bytes_) continue;
      column_ += columns_per_pass;
      start_pass();
    }
  }

 private:
  static constexpr int cache_line = 64;  // bytes

  [[gnu::noinline]] void start_pass() {
    at_ = 0;
    if (column_ >= query_.rank) {
      run_ = next_;
      next_ = {};
      column_ = 0;
    }
    if (run_.columns == nullptr) {
      bytes_ = 0;
      return;
    }
    for (int c = 0; c < columns_per_pass; ++c) {
      const int column = std::min(column_ + c, query_.rank - 1);
      pass_[c] = run_.columns + query_.offsets[column];
      if (run_.scales != nullptr) __builtin_prefetch(run_.scales + query_.scale_offsets[column], 0, 2);
    }
  }

  const HeadQuery& query_;
  TokenRun run_;
  TokenRun next_;
  std::ptrdiff_t bytes_;
  int step_bytes_;  // a quantisation group, or the quantisation groups that share a cache line
  int step_cost_;
  int column_;
  int credit_ = 0;
  std::ptrdiff_t at_ = 0;
  const std::byte* pass_[columns_per_pass] = {};
};

}  // namespace hayloft::index
