#pragma once

#include "gpu/backend.h"

namespace hayloft::gpu {

// Backend::rope. Angles, sines and cosines are computed in double, once per token for all heads, so a position of a
// million is as exact as position one.
void rope_cpu(float* x, int T, int heads, int d, std::int64_t position, const Rope& rope,
              const offload::Threads& threads);

}  // namespace hayloft::gpu
