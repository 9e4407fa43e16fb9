#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/backend.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/method.h"

// Says how the queries of one decode step rank every position of one layer, store and tail together, and what of it a
// method attended to: the measure of methods. Everything is found near the memory.
namespace hayloft::runtime {

// One decode step in one layer, on the host. A view of all its parts.
struct StepQuery {
  const offload::LayerView& store;
  const HostTail& tail;
  const float* q;  // f32 [Hq][d]
  int query_heads;
  std::span<const float> sinks = {};  // CacheView's, [Hq] in host memory; empty: there are none

  int kv_heads() const { return tail.kv_heads(); }
  int head_dim() const { return tail.head_dim(); }
  int group() const { return query_heads / kv_heads(); }
  std::int64_t tokens() const { return tail.first() + tail.tokens(); }
};

// The scores of positions: q . K / sqrt(d) of the 16-bit keys, or the approximate logits of SparQ's step 1 (arXiv
// 2312.04985, section 4), q[i1] . K[i1] / tau, of the store's columns in their format.
struct Scores {
  std::vector<std::int32_t> components;  // [Hkv][rank], ascending
  std::vector<float> weights;            // [Hq][d], zero outside the components, the temperature divided out
  int rank = 0;
  index::KeySource keys = index::KeySource::columns;  // of the store
};
Scores exact_scores(const StepQuery& step);            // all components of the 16-bit keys
Scores sparq_scores(const StepQuery& step, int rank);  // rank 1..d

// The best positions of each list, and the softmax of each query head over all positions and its sink.
struct RankedPositions {
  int lists = 0;
  std::int64_t k = 0;
  std::vector<std::int64_t> positions;  // [lists][k], the best first; ties go to the smaller position
  std::vector<float> max;               // [Hq], (max, sum of exp(logit - max)) over every position and the sink
  std::vector<float> sum;
  TailScores tail;

  std::span<const std::int64_t> list(int index) const {
    return {positions.data() + index * k, static_cast<std::size_t>(k)};
  }
};

// The k best positions (k is held to the tokens there are), per query head by their logits, per KV head by the group's
// sum of softmaxes. Blocks.
RankedPositions rank_positions(const StepQuery& step, const Scores& scores, std::int64_t k, index::SelectPer per,
                               const offload::Threads& threads);

// The logits of every position for the query heads of one KV head, [g][tokens].
std::vector<float> score_positions(const StepQuery& step, const Scores& scores, const TailScores& tail, int head,
                                   const offload::Threads& threads);

// Returns whether the query heads of list `list` attended to a position.
bool attended(const StepTrace& trace, int list, std::int64_t position);

// The share of each list's ranked positions that was attended. [ranking.lists]
std::vector<double> recall_of(const RankedPositions& ranking, const StepTrace& trace);

// The share of each query head's softmax that lies on what it attended to, its sink among it, [Hq]; `exact` ranks by
// exact_scores.
std::vector<double> caught_mass(const StepQuery& step, const Scores& scores, const RankedPositions& exact,
                                const StepTrace& trace);

}  // namespace hayloft::runtime
