#pragma once

#include "runtime/eval/plot/lines.h"
#include "runtime/fidelity/attention_stats.h"

namespace hayloft::runtime::eval {

// Draws what attention is like, layer by layer, as lines: means over heads and steps, with bands from the least to the
// most that was measured where there is one line, and of what depends on r over the layers. Not without layers.
LineChart attention_chart(const AttentionReport& report);

}  // namespace hayloft::runtime::eval
