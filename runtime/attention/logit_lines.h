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

// The line of every query head of a step, over the newest tokens of its tail, whose keys are on the device anyway, and
// where whole components ranked also over the keys of `taken`, the positions selected, which are fetched anyway. What
// ranks by exact keys has the line of exact scores. Planes of the tail's keys are made as a store would make them.
// Lines are lowered by half of the variance about them.
std::vector<index::LogitLine> logit_lines(const Step& step, const SelectionPlan& plan, const Ranking& ranking,
                                          const HostRanking& ready, const std::vector<std::int32_t>& taken);

}  // namespace hayloft::runtime
