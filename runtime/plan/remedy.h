#pragma once

#include <string>
#include <vector>

#include "runtime/plan/plan.h"

// Finds what would make a plan fit that does not (docs/plan.md).
namespace hayloft::runtime::plan {

// Matrices in another form, and the options that ask for them: "--weights q8".
struct OtherWeights {
  std::string options;
  WeightSizes sizes;
  int cost = 0;  // what they lose, beside what remedy() says of the store's formats
};

// The longest context that fits as things are, and the cheapest change of options with which the request fits: every
// combination of chunk sizes, column and row formats and `weights` that takes less than the request's own is planned,
// and the first in the order of what they are known to lose is it. `request` must not fit.
Remedy remedy(const PlanRequest& request, const std::vector<OtherWeights>& weights);

// The longest context that fits with everything else as it is; 0 when none does.
std::int64_t longest_fitting(PlanRequest request);

}  // namespace hayloft::runtime::plan
