#pragma once

#include <utility>
#include <vector>

#include "runtime/attention/attender.h"
#include "runtime/decode/attention_policy.h"
#include "runtime/decode/prefill.h"
#include "runtime/decode/prefill_read.h"

namespace hayloft::runtime {

// Says how a prompt's tokens attend: as PrefillOptions say, while the states of methods see the queries that they want.
// The states, and what was read, must outlive it.
class PrefillAttention : public AttentionPolicy {
 public:
  explicit PrefillAttention(const PrefillOptions& options = {}, std::vector<MethodState*> states = {},
                            SharedAttender attender = local_attender(), PrefillRead* read = nullptr)
      : options_(options), states_(std::move(states)), attender_(std::move(attender)), read_(read) {}

  int queries_wanted(const LayerStep& at) const override;
  void attend(const LayerStep& at, const float* q, int queries, int rows, float* out) override;

 private:
  PrefillOptions options_;
  std::vector<MethodState*> states_;
  SharedAttender attender_;
  PrefillRead* read_;  // grows with what is read sparsely; may be null
};

}  // namespace hayloft::runtime
