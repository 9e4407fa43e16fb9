#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/rest_masses.h"
#include "runtime/attention/attender.h"
#include "runtime/attention/ranking.h"
#include "runtime/attention/rest.h"
#include "runtime/attention/selection_plan.h"
#include "runtime/attention/step.h"

namespace hayloft::runtime {

// Attends as Attender::attend_with_rest() does, in this process alone: to `what`, exactly, and to the rest of the
// store's positions as their scores estimate it. `taken` has the positions of what.positions in host memory. Returns
// the share of the softmax of each query head that lies on what is attended exactly, and fills the step's estimate,
// where it has one. Waits for the device; the backend attends in parts.
std::vector<float> attend_with_estimate(const Step& step, const SelectionPlan& plan, gpu::Attended what,
                                        const Selection& taken, const Ranking& ranking, Rest rest);

// Fills the step's estimate of an output that has been attended as Attender::attend() does, with rest `none` or `mean`,
// from the masses that attend_with_estimate() would have given to `calibrated`: nothing of the output changes. `taken`
// has what was attended, alpha too where there is one, in host memory.
void predict_error(const Step& step, const SelectionPlan& plan, gpu::Attended what, const Selection& taken,
                   const Ranking& ranking, Rest rest);

// The parts of it, for whoever attends elsewhere.

// The key of the draw of a sequence's layer: by the seed, the layer and the tokens so far.
std::uint64_t draw_key(std::uint64_t seed, int layer, std::int64_t tokens);

// Attention to what is attended exactly.
struct ExactPart {
  std::vector<float> out;       // [Hq][d], weighted / sum
  std::vector<float> log_sums;  // [Hq], max + ln(sum) of the softmax
};
// Makes it of weighted [Hq][d], max [Hq] and sum [Hq], which lie one behind the other.
ExactPart exact_part(std::vector<float> state, int query_heads, int head_dim);

// The logarithms that the masses of a draw are in proportion to: those of the sums in steps of 1/16, so that a draw
// does not depend on the last bits of sums, which are others where parts of the attention are merged in another order.
// They weigh the query heads of a list against each other, and nothing else.
std::vector<float> draw_references(const std::vector<float>& log_sums);
// Takes the masses of query heads [first, first + heads) from the references to the sums themselves.
void refer_to(const std::vector<float>& log_sums, const std::vector<float>& references, int first, int heads,
              index::RestMasses::Draw& draw);

// Returns how much is kept of the distance of a draw's mean from the mean of V over every token, given the variance of
// what was drawn, summed over the components: James and Stein's factor. Where scores are exact the draw is taken so far
// towards that mean; the part of that variance that is an error then lies halfway between all of it and the factor.
float kept_of_drawn(double variance, double distance);

// Returns the error |y - y dense| / |y| that an output of that length predicts of itself, whose rest, with the sum
// `rest` of the masses drawn, was estimated by values of that variance about it, their mean as far from what is
// attended exactly as `between`. by_lines: masses come from approximate scores.
float drawn_error(bool by_lines, double variance, float kept, float rest, double between, double length);

// The estimate by the mean value [Hq][d], and its error by the formula that needs no further row: takes out [Hq][d]
// from what is attended exactly to the estimate.
void add_mean(const Step& step, const index::RestMasses& rest, const std::vector<index::LogitLine>& lines,
              const std::vector<float>& mean, float* out, float* shares, StepEstimate* estimate);

}  // namespace hayloft::runtime
