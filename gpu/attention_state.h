#pragma once

#include <limits>

#include "index/scan/softmax.h"

// Attention over a part of the positions, and how parts become one: by log-sum-exp, exactly.
namespace hayloft::gpu {

// The attention of one query head over a part of the sequence: weighted = sum over its positions of
// exp(s - max) v, and sum = sum of exp(s - max). The attention over that part is weighted / sum. Nothing seen yet: max
// = -infinity, sum = 0, weighted all zero.
struct AttentionState {
  float* weighted = nullptr;  // f32 [head_dim], not owned
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

using index::merge_sums;
using index::rescale;

// Takes `from` into `into`: the state over the union of two disjoint parts. The order of merges decides the rounding,
// so callers merge in an order that does not depend on threads.
inline void merge_states(AttentionState& into, const AttentionState& from, int head_dim) {
  const float before = into.max;
  merge_sums(into.max, into.sum, from.max, from.sum);
  const float keep = rescale(before, into.max);
  const float take = rescale(from.max, into.max);
  for (int i = 0; i < head_dim; ++i) into.weighted[i] = into.weighted[i] * keep + from.weighted[i] * take;
}

// Takes a logit that no value follows into the state.
inline void add_sink(AttentionState& into, float sink, int head_dim) {
  const float before = into.max;
  merge_sums(into.max, into.sum, sink, 1);
  const float keep = rescale(before, into.max);
  for (int i = 0; i < head_dim; ++i) into.weighted[i] *= keep;
}

// out = weighted / sum; zeros where nothing was attended. weighted and out may be the same.
inline void finish_state(const AttentionState& state, int head_dim, float* out) {
  const float scale = state.sum == 0 ? 0.0f : 1 / state.sum;
  for (int i = 0; i < head_dim; ++i) out[i] = state.weighted[i] * scale;
}

}  // namespace hayloft::gpu
