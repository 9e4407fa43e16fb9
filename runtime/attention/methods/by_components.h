#pragma once

#include "runtime/attention/select_over_ranks.h"

// SparQ Attention (arXiv 2312.04985, section 4 and appendix B) but for what its approximate scores are read from: they
// choose k positions on the device, whose rows are fetched; the mean value stands in for the rest.
namespace hayloft::runtime {

class ByComponents : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  index::SelectPer selection_per() const override { return index::SelectPer::kv_head; }

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    gpu::SparqSelect select = scores();
    select.rule = options_.rule;
    select.temperature = options_.temperature;
    if (step.ranks != nullptr) {
      const Selection found = select_over_ranks(step, plan, sparq_logits(step, q, options_, select));
      attend_selection_over_ranks(step, plan, q, found, options_.mean_value, out);
      return count_planned(step.cache, plan);
    }
    const auto [positions, alpha] = select_on_device(step, plan, q, select);
    attend_positions(step, plan, q, positions, options_.mean_value ? alpha : nullptr, out);
    if (step.trace != nullptr) step.trace->alpha = copy_to_host(step.backend, alpha, step.query_heads, step.stream);
    return count_planned(step.cache, plan);
  }

 protected:
  virtual gpu::SparqSelect scores() const = 0;  // which components are read, and how much of them
};

}  // namespace hayloft::runtime
