#pragma once

#include "runtime/attention/ranked_by.h"
#include "runtime/attention/selection.h"

namespace hayloft::runtime {

// Positions [lists][k] of all ranks, whole ones, as one machine selects them; with alpha where it is wanted. Every rank
// finds the best of its own blocks, and of all these the best are taken (JointRanking). One all-gather; where several
// query heads that share a list rank by softmaxes at times a further, short one.
Selection select_over_ranks(const Step& step, const SelectionPlan& plan, const RankedBy& by);

// attend_over_ranks() to what was selected; alpha is used (SparQ's step 3) with `mean_value`, and traced in any case.
void attend_selection_over_ranks(const Step& step, const SelectionPlan& plan, const float* q,
                                 const Selection& selection, bool mean_value, float* out);

}  // namespace hayloft::runtime
