#pragma once

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

}  // namespace hayloft::runtime
