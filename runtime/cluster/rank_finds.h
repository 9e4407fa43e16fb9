#pragma once

#include "runtime/attention/attender.h"

namespace hayloft::runtime::cluster {

// For each query head the k best of what the ranks' searches have found, ranked by the products q . K of what is
// attended, whatever the searches rank by. They are those of one machine where the searches are exact. q is f32 [Hq][d]
// in host memory. One all-gather, in which the products and the counts go with the positions.
Finds find_over_ranks(Communicator& ranks, const Step& step, const SelectionPlan& plan, const float* q,
                      const OwnSearch& search);

}  // namespace hayloft::runtime::cluster
