#pragma once

#include "runtime/plan/plan.h"

namespace hayloft::runtime::plan {

// Divides a device's memory between experts, columns and rows. Of --experts link the device keeps as many experts of
// each layer as make the least bytes cross the link for a token, experts and what attention reads together, with an
// eighth of the memory left free, as columns leave it. `automatic` takes that, or experts near the processor where
// reading them there, and then what crosses for attention, takes less time by request.expert_rates. Attention is that
// of divided_for(). Of several processes that hold a context together each goes by place_experts() alone.
ExpertPlacement divide_device(const PlanRequest& request);

// Returns the rates of a profile of a machine with a device of its own, else those assumed.
ExpertRates expert_rates(const MachineProfile* profile);

// Returns the method that the device's memory is divided for: the first of which it would keep columns or rows, else
// the first of all. Null without methods.
const MethodOptions* divided_for(const PlanRequest& request);

}  // namespace hayloft::runtime::plan
