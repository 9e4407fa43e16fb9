#pragma once

#include <cstdint>
#include <vector>

#include "index/derived/derived_columns.h"
#include "offload/host/threads.h"

namespace hayloft::index {

// `rank` orthonormal vectors of `dim` components, [rank][dim], rank <= dim: the first columns of the Q of a matrix of
// independent normal numbers, so that every such frame is as likely as any other. Depends on its arguments alone.
std::vector<float> random_frame(int rank, int dim, std::uint64_t seed);

// Appends the projections of the positions that `view` holds and `keys` does not: entry t of column j is
// K[t] . directions[j], rounded to f16. directions is f32 [Hkv][columns][d]. Keys are taken as the 16-bit rows have
// them.
void project_keys(const offload::LayerView& view, const std::vector<float>& directions, const offload::Threads& threads,
                  DerivedColumns& keys);

}  // namespace hayloft::index
