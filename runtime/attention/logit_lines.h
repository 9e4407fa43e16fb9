#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/scan/rest_masses.h"
#include "runtime/attention/line_sample.h"
#include "runtime/attention/ranking.h"
#include "runtime/attention/step.h"

namespace hayloft::runtime {

// The least squares line of logits on approximate scores, n of each. The slope is held within 0.05 to 1.2; without any
// it is the line of exact scores.
index::LogitLine fit_line(const float* approximate, const float* exact, std::int64_t n);

// Approximate scores and exact logits of the positions that lines are fitted over, [Hq][n] each.
struct LineLogits {
  int n = 0;
  std::vector<float> approximate;
  std::vector<float> exact;
};

// The sample of the step's layer, at `positions` of `store`, which is the step's or a rank's part of it: others than
// [0, store.tokens) have no logits.
LineSample& line_sample(const Step& step, const offload::LayerView& store, std::span<const std::int32_t> positions);
LineLogits line_logits(const Step& step, const LineSample& sample, const HostRanking& ready);

// The line of every query head through these logits. Lines are lowered by a quarter of the variance about them.
std::vector<index::LogitLine> logit_lines(const LineLogits& logits, int query_heads);

// Returns whether a ranking needs lines: what ranks by exact keys has that of exact scores, LogitLine{}.
inline bool needs_lines(const Ranking& ranking) {
  return ranking.source != Ranking::Source::keys;
}

}  // namespace hayloft::runtime
