#pragma once

#include <utility>
#include <vector>

#include "runtime/decode/attention_policy.h"
#include "runtime/decode/prefill.h"

namespace hayloft::runtime {

// How a prompt's tokens attend: as PrefillOptions say, while the states of methods see the queries that they want. The
// states must outlive it, and the ranks, if any, that hold the context together: over them it attends exactly.
class PrefillAttention : public AttentionPolicy {
 public:
  explicit PrefillAttention(const PrefillOptions& options = {}, std::vector<MethodState*> states = {},
                            cluster::Communicator* ranks = nullptr)
      : options_(options), states_(std::move(states)), ranks_(ranks) {}

  int queries_wanted(const GlobalLayer& at) const override;
  void see_queries(const GlobalLayer& at, const float* q, int n) override;
  void attend(const GlobalLayer& at, const float* q, int rows, float* out) override;

 private:
  PrefillOptions options_;
  std::vector<MethodState*> states_;
  cluster::Communicator* ranks_;
};

}  // namespace hayloft::runtime
