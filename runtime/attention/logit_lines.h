#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/rest_masses.h"
#include "runtime/attention/ranking.h"

namespace hayloft::runtime {

// The newest tokens of the tail that lines are fitted over, at most.
inline constexpr std::int64_t line_tokens = 512;

// The least squares line of logits on approximate scores, one for each query head: [Hq][tokens] of both. The slope is
// held within 0.05 to 1.2; without tokens it is the line of exact scores.
std::vector<index::LogitLine> fit_lines(const float* approximate, const float* exact, int query_heads,
                                        std::int64_t tokens);

// The line of every query head of a step, over the newest tokens of its tail, whose keys are on the device anyway; of
// what ranks by exact keys the line of exact scores. Planes of these keys are made as a store would make them.
std::vector<index::LogitLine> logit_lines(const Step& step, const Ranking& ranking, const HostRanking& ready);

}  // namespace hayloft::runtime
