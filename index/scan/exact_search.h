#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "index/scan/search.h"

// Searches by the exact logits q . K / sqrt(d): those of top-k attention (arXiv 2502.06766) and of whoever measures by
// them.
namespace hayloft::index {

// 1 / sqrt(d), the softmax scale of every attention here.
inline float exact_scale(int head_dim) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
}

// [kv_heads][components], 0 to components - 1 for each head: ColumnSearch::components of a search over all of them.
std::vector<std::int32_t> every_component(int kv_heads, int components);

// Returns where the store's keys are exact, as they are attended: the columns, unless they or the rows are integers.
KeySource exact_keys(const offload::LayerView& view);

// The request of search_exact().
struct ExactSearch {
  int query_heads = 0;     // Hq, a multiple of the view's Hkv
  std::int64_t limit = 0;  // positions [0, limit) may be selected, limit <= view.tokens
  int k = 0;               // positions per list, k <= limit
  GroupRule rule = GroupRule::softmax;
  SelectPer per = SelectPer::query_head;
  bool faiss = false;  // Faiss' flat index instead of the own kernel; per query head only
};

// Returns whether the search ranks by softmaxes, which run over the tail as well: then search_exact() asks for
// SearchResult::max and sum, and otherwise they may be null.
bool needs_tail_softmax(const ExactSearch& search);

// The k positions of each list with the largest logits, or sums over the group by search.rule. q f32 [Hq][d] in host
// memory, not scaled. With Faiss the positions are all that is found. Throws Error when a number is out of range, and
// for lists per KV head from Faiss. Thread-safe.
void search_exact(const offload::LayerView& view, const float* q, const ExactSearch& search,
                  const offload::Threads& threads, const SearchResult& result);

// The same for several tokens of a prompt, each with a limit and a k of its own, per query head: many of them in one
// pass over the keys, so that what is read of memory does not grow with their number. q f32 [tokens][Hq][d]. positions
// [Hq][k] of the first token, then of the next. Throws Error when a number is out of range.
void search_exact_tokens(const offload::LayerView& view, const float* q, int query_heads,
                         std::span<const ListSize> tokens, const offload::Threads& threads, std::int32_t* positions);

}  // namespace hayloft::index
