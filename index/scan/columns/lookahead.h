#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "index/scan/columns/column_kernels.h"

namespace hayloft::index {

// Columns added in one pass over a tile: their keys stay in registers while all query heads use them. One at a time
// would spend its time on the sums; more at once would be too many streams for the memory, unless they are few in all
// and the sums stay in registers.
inline constexpr int columns_per_pass = 4;
inline constexpr int most_columns_per_pass = 16;

// Quantisation groups of a pass by which what is asked for is ahead of what is read, at least.
inline constexpr int least_lead = 8;

// Says which columns of the run at hand and of the next one to ask for, in the order they will be read, a quantisation
// group of one pass at a time: an even pace keeps the memory busy while the processor computes, exponentials included.
// (Left to itself the processor looks ahead some hundred instructions, less than one quantisation group; and a dozen
// lines asked for at once make it wait.) Into the second-level cache, since the first is full of scores.
class Lookahead {
 public:
  // Says what to ask for: two cache lines of each column of a pass.
  class Due {
   public:
    Due() : Due(nothing(), 0) {}
    [[gnu::always_inline]] void ask(int column) const {
      const std::byte* const place = columns_[column] + at_;
      __builtin_prefetch(place, 0, 2);
      __builtin_prefetch(place + cache_line, 0, 2);
    }

   private:
    friend Lookahead;
    Due(const std::byte* const* columns, std::ptrdiff_t at) : columns_(columns), at_(at) {}
    // Returns places that are near already.
    static const std::byte* const* nothing() {
      alignas(cache_line) static constexpr std::byte lines[2 * cache_line] = {};
      static constexpr auto places = [] {
        std::array<const std::byte*, most_columns_per_pass> all{};
        all.fill(lines);
        return all;
      }();
      return places.data();
    }

    const std::byte* const* columns_;
    std::ptrdiff_t at_;
  };

  // `lead` quantisation groups of passes of the current run have been asked for already.
  Lookahead(const HeadQuery& query, const TokenRun& current, const TokenRun& next, int tokens, int per_pass, int lead)
      : query_(query),
        run_(current),
        next_(next),
        group_bytes_(column_bytes(query.format, quant_group_tokens)),
        bytes_(std::ptrdiff_t{group_bytes_} * (tokens / quant_group_tokens)),
        per_pass_(per_pass) {
    // A quantisation group or two are asked for at once, by prefetch_run.
    const int groups = tokens / quant_group_tokens;
    if (groups < 3) bytes_ = 0;
    if (bytes_ == 0) return;
    column_ = lead / groups * per_pass;
    start_pass();
    at_ = std::ptrdiff_t{lead % groups} * group_bytes_ / step_bytes * step_bytes;
  }

  // Adds to how much may be asked for, in 256ths of a quantisation group of a column, and returns what is due.
  [[gnu::always_inline]] Due due(int credit) {
    credit_ += credit;
    if (credit_ > 0 && at_ >= bytes_ && bytes_ > 0) {
      column_ += per_pass_;
      start_pass();
    }
    if (credit_ <= 0 || bytes_ == 0) return {};
    credit_ -= 256 * count_ * (step_bytes / group_bytes_);
    at_ += step_bytes;
    return Due(pass_, at_ - step_bytes);
  }

  // Adds to it and asks for it.
  void advance(int credit) {
    credit_ += credit;
    while (credit_ > 0 && bytes_ > 0) {
      const Due now = due(0);
      for (int c = 0; c < count_; ++c) now.ask(c);
    }
  }

 private:
  static constexpr int cache_line = 64;              // bytes
  static constexpr int step_bytes = 2 * cache_line;  // a quantisation group or those that share two lines

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
    count_ = std::min(per_pass_, query_.rank - column_);
    for (int c = 0; c < count_; ++c) {
      pass_[c] = run_.columns + query_.offsets[column_ + c];
      if (run_.scales != nullptr) __builtin_prefetch(run_.scales + query_.scale_offsets[column_ + c], 0, 2);
    }
    std::fill(pass_ + count_, pass_ + most_columns_per_pass, pass_[0]);  // the pass at hand may have more
  }

  const HeadQuery& query_;
  TokenRun run_;
  TokenRun next_;
  int group_bytes_;
  std::ptrdiff_t bytes_;
  int per_pass_;
  int column_ = 0;
  int count_ = 0;
  int credit_ = 0;
  std::ptrdiff_t at_ = 0;
  const std::byte* pass_[most_columns_per_pass] = {};
};

}  // namespace hayloft::index
