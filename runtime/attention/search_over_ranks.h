#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/attention/method.h"

namespace hayloft::runtime {

// A search that a rank makes of its own blocks, by whatever it has for them: positions out i32 [Hq][k], own ones of
// [0, limit), distinct. Returns what it counted, as many numbers on every rank.
using OwnSearch = std::function<std::vector<std::uint64_t>(const offload::LayerView& view, std::int64_t limit, int k,
                                                           std::int32_t* positions)>;

// What ranks have found together.
struct RankFinds {
  std::vector<std::int32_t> positions;  // [Hq][k], whole ones, ascending
  std::uint64_t scored = 0;             // positions that all ranks offered, the key of each read once more
  std::vector<std::uint64_t> counted;   // by all of their searches
};

// For each query head the k best of what the ranks' searches have found, ranked by the products q . K of what is
// attended, whatever the searches rank by. They are those of one machine where the searches are exact. q is f32 [Hq][d]
// in host memory. One all-gather, in which the products and the counts go with the positions.
RankFinds search_over_ranks(const Step& step, const SelectionPlan& plan, const float* q, const OwnSearch& search);

}  // namespace hayloft::runtime
