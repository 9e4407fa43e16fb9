#pragma once

#include <vector>

#include "runtime/plan/plan.h"

namespace hayloft::runtime::plan {

// Returns the request of a plan whose one step is a draft by the model's head, PlanRequest::head.
PlanRequest request_of_head(const PlanRequest& request);

// Returns what exact decoding takes by single steps of `dense`, by copies from the text, by drafts of each of the
// methods that can draft, and by the model's head where its plan is there; all are plans of request.accepted. Throws
// Error where that is no share.
std::vector<PlannedExact> plan_exact(const PlanRequest& request, const PlannedMethod& dense,
                                     const std::vector<PlannedMethod>& methods, const Plan* head);

}  // namespace hayloft::runtime::plan
