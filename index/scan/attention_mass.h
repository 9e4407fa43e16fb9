#pragma once

#include <cstdint>
#include <vector>

#include "offload/half.h"
#include "offload/host/threads.h"

namespace hayloft::index {

// Some queries of one KV head and its keys, for what falls on each key when the queries attend to all they may see.
struct AttentionMass {
  const f16* columns = nullptr;  // K, [d][stride]; whole vectors of 16 keys are read, in part beyond the last one
  std::int64_t stride = 0;
  int head_dim = 0;
  const float* queries = nullptr;  // [n][d], already divided by sqrt(d)
  std::int64_t n = 0;
  const std::int64_t* visible = nullptr;  // [n] query i sees keys [0, visible[i]), one at least; ascending
  const float* sinks = nullptr;           // [n] a logit beside those of the keys, whose share falls on none; null: none
};

// mass[t] += the sum over the queries of softmax(q . K over what the query sees)[t], for t below the last `visible`.
// Added up in f32 over 16 queries, in double over those. What lies more than 87 below a query's largest logit counts as
// exp(-87). Independent of the number of threads.
void add_attention_mass(const AttentionMass& problem, const offload::Threads& threads, std::vector<double>& mass);

}  // namespace hayloft::index
