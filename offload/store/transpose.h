#pragma once

#include <cstdint>

#include "offload/half.h"

namespace hayloft::offload {

// columns[c * column + t] = rows[t * stride + c] for `tokens` tokens and `components` (a multiple of 8) components.
void transpose(const f16* rows, std::int64_t stride, int tokens, int components, f16* columns, std::int64_t column);

}  // namespace hayloft::offload
