#pragma once

#include <vector>

#include "runtime/plan/plan.h"

namespace hayloft::runtime::plan {

// Returns what exact decoding takes by single steps of `dense`, by copies from the text, and by drafts of each of the
// methods that can draft; all three are plans of request.accepted. Throws Error where that is no share.
std::vector<PlannedExact> plan_exact(const PlanRequest& request, const PlannedMethod& dense,
                                     const std::vector<PlannedMethod>& methods);

}  // namespace hayloft::runtime::plan
