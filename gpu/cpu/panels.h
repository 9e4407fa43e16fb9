#pragma once

#include "gpu/backend.h"

// Products of many tokens, on one thread each: weights are laid down as f32 in panels, which tokens pass while they are
// in the second-level cache.
namespace hayloft::gpu {

inline constexpr int kPanelRows = 128;   // of weights that are laid down at a time
inline constexpr int kPanelTokens = 12;  // that are multiplied at once, or a half or a third of these

// Writes y [t][row] = sum over i of x[t][i] W[row][i] for the tokens [t0, t1) and the rows [r0, r1), at most kPanelRows
// from a multiple of it on; x f32 [][w.cols], y f32 [][w.rows]. Columns are summed in the order and the groups that
// their number alone decides, so that an element has the same bits whatever else is asked for.
void panel_matmul(const float* x, const Matrix& w, int t0, int t1, int r0, int r1, float* y);

}  // namespace hayloft::gpu
