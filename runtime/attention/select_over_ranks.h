#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/search.h"
#include "index/scan/sparq_query.h"
#include "runtime/attention/method.h"
#include "runtime/attention/selection.h"

namespace hayloft::runtime {

// What a search over ranks ranks by: logits s[h][t] = weights[h] . K[t][components], the temperature divided out.
struct RankedBy {
  int rank = 0;
  std::vector<std::int32_t> components;  // [Hkv][rank]
  std::vector<float> weights;            // [Hq][rank]
  index::GroupRule rule = index::GroupRule::softmax;
  index::SelectPer per = index::SelectPer::query_head;
  index::KeySource keys = index::KeySource::columns;
  bool with_alpha = false;  // whether the softmax mass of what is attended is wanted
};
RankedBy exact_logits(const Step& step, const float* q, const MethodOptions& method);
RankedBy sparq_logits(const Step& step, const float* q, const MethodOptions& method);

// Positions [lists][k] of all ranks, whole ones, as one machine selects them; with alpha where it is wanted. Every rank
// finds the best of its own blocks, and of all these the best are taken. One all-gather; where several query heads that
// share a list rank by softmaxes one more before it, of the softmaxes' sums over all ranks.
Selection select_over_ranks(const Step& step, const SelectionPlan& plan, const RankedBy& by);

}  // namespace hayloft::runtime
