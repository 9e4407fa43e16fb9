#pragma once

#include <string>
#include <vector>

#include "runtime/plan/plan.h"

// Predicts what reading a prompt takes, by strategy and by the order of its loops (runtime/decode/prefill_order.h).
namespace hayloft::runtime::plan {

// exact and sparse in both orders, window and topk; with their options in request.session.prefill.
std::vector<PlannedPrefill> plan_prefill(const PlanRequest& request, const MachineProfile* profile);

}  // namespace hayloft::runtime::plan
