#pragma once

#include <cstdint>
#include <vector>

#include "index/derived/derived_columns.h"
#include "offload/host/threads.h"

// Quest's bounds (arXiv 2406.10774): of the keys of a page of consecutive tokens the largest and the smallest value of
// every component. No key of the page has a larger inner product with q than
//
//   sum_j max(q_j most_j, q_j least_j)  =  max(q, 0) . most + min(q, 0) . least,
//
// which is a column search over 2 d columns, one entry per page.
namespace hayloft::index {

// Appends the bounds of the whole pages that `view` holds and `pages` does not: column j is the largest of component j,
// column d + j the smallest. Keys are f16 and so are their bounds, without rounding.
void bound_pages(const offload::LayerView& view, int page_tokens, const offload::Threads& threads,
                 DerivedColumns& pages);

// Returns the weights of the 2 d columns: [Hq][2 d] from q f32 [Hq][d].
std::vector<float> bound_weights(const std::vector<float>& q, int head_dim);

}  // namespace hayloft::index
