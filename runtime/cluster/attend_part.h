#pragma once

#include "runtime/attention/step.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime::cluster {

// Attends to this rank's part and brings what that leaves to the host; q and what `what` points to are device memory.
AttentionParts attend_part(const LayerStep& at, const Part& part, const float* q, gpu::Attended what);

}  // namespace hayloft::runtime::cluster
