#pragma once

#include "runtime/attention/step.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime::cluster {

// What this rank's part of the attention leaves, brought to the host; q and what `what` points to are device memory.
AttentionParts attend_part(const LayerStep& at, const Part& part, const float* q, gpu::Attended what);

}  // namespace hayloft::runtime::cluster
