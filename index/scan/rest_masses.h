#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/search.h"
#include "offload/store/shard.h"

// The softmax masses of the positions that a step does not attend to, estimated from the approximate scores of all of
// them, and a draw of positions by these masses whose values stand for all (priority sampling: Duffield, Lund, Thorup
// 2007). A position's random number depends on the key and the position alone, so that the draw does not depend on how
// the scan is cut.
namespace hayloft::index {

// The line by which a query head's approximate scores s become logits: slope * s + offset.
struct LogitLine {
  float slope = 1;
  float offset = 0;
  float residual = 0;  // variance of the logits about it
};

// Values of positions near one another are alike, and masses by lines follow them: the error that a step predicts of
// its output counts the variance of their mean, of what is drawn by lines and of what the mean value stands for, so
// many times, and a draw's share by the line so. Fitted over every step of two models (docs/methods.md, "The rest").
// A draw's variance is all of its error where scores are exact.
inline constexpr double alike_values = 4;
inline constexpr double share_by_line = 0.35;

// The request: masses of [0, scores.limit) without what is taken.
struct RestSearch {
  ColumnSearch scores;                  // as positions were selected by; scores.k positions of each list are taken
  const LogitLine* lines = nullptr;     // [Hq]
  const float* log_sums = nullptr;      // [Hq], ln of the sum of exp(logit) that masses are in proportion to
  const std::int32_t* taken = nullptr;  // [lists][scores.k], ascending
  int count = 0;                        // positions drawn for each list
  std::uint64_t key = 0;                // of the draw
  // The scores as search_columns() kept them for `scores`; masses take their place. Null or empty: the columns are read
  // once more, with the same result.
  KeptScores* kept = nullptr;
  // The view has its own blocks of this shard alone, of so many tokens; random numbers are those of whole positions.
  offload::Shard shard = {};
  int block_tokens = 0;
};

// Masses are exp(slope * s + offset - log_sum), at most e^60.
struct RestMasses {
  std::vector<double> sum;      // [Hq] over all positions of the rest
  std::vector<double> squares;  // [Hq] of the masses, likewise
  // The draw of each list: the positions, ascending, the chance that each had, in (0, 1], and its mass for each query
  // head of the list.
  struct Draw {
    std::vector<std::int32_t> positions;
    std::vector<float> chances;
    std::vector<float> masses;  // [heads of the list][positions]
  };
  std::vector<Draw> draws;  // [lists]
};

// The random number of a position, in (0, 1): a whole number of 2^-23 and a half.
float drawn_number(std::uint64_t key, std::int32_t position);

// One pass over the scores, and over the few spans of 256 positions in which something may have been drawn. A list
// draws by the sum of its query heads' masses; each position drawn, alone or with others, has the chance min(1, mass /
// threshold), by which its masses are to be divided. Ties break towards the smaller position. Thread-safe.
RestMasses rest_masses(const offload::LayerView& view, const RestSearch& search, const offload::Threads& threads);

}  // namespace hayloft::index
