#pragma once

#include "gpu/backend.h"
#include "offload/store/layout.h"
#include "runtime/plan/plan.h"

namespace hayloft::runtime::plan {

// Counts the memory of a run, with experts where placed_experts() says.
PlanMemory plan_memory(const PlanRequest& request);

// Returns the caches of a step that decodes one token behind the context: of a layer with that window.
gpu::CacheView cache_of_step(const PlanRequest& request, const offload::BlockLayout& layout, std::int64_t window);

}  // namespace hayloft::runtime::plan
