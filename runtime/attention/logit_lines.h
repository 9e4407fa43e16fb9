#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/rest_masses.h"
#include "runtime/attention/ranking.h"
#include "runtime/attention/selection_plan.h"

namespace hayloft::runtime {

// The newest tokens of the tail that lines are fitted over, and how many of them at most, evenly spread.
inline constexpr std::int64_t line_tokens = 512;
inline constexpr std::int64_t line_samples = 256;

// The least squares line of logits on approximate scores, n of each. The slope is held within 0.05 to 1.2; without any
// it is the line of exact scores.
index::LogitLine fit_line(const float* approximate, const float* exact, std::int64_t n);

// Scores and exact logits of the positions that a step has selected, [Hq][k] each; empty where lines do
// not need them.
struct TakenLogits {
  std::vector<float> approximate;
  std::vector<float> exact;
};

// Returns whether lines of this ranking are fitted over the selected positions as well: where whole components rank,
// whose keys are fetched anyway.
bool fits_taken(const HostRanking& ready, const Ranking& ranking);

// The logits of `taken`, [lists][k] positions of `store`; others than [0, store.tokens) are left at 0.
TakenLogits taken_logits(const Step& step, const offload::LayerView& store, int lists, int k, const HostRanking& ready,
                         const std::vector<std::int32_t>& taken);

// The line of every query head of a step, over the newest tokens of its tail, whose keys are on the device anyway, and
// over what was taken, k positions of each list, where there are logits of these. What ranks by exact keys has the line
// of exact scores. Planes of the tail's keys are made as a store would make them.
// Lines are lowered by half of the variance about them.
std::vector<index::LogitLine> logit_lines(const Step& step, const Ranking& ranking, const HostRanking& ready,
                                          const TakenLogits& taken);

}  // namespace hayloft::runtime
