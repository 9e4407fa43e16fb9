#include "offload/error.h"
#include "runtime/attention/select_over_ranks.h"

// FlexGen's sparse attention (arXiv 2303.06865, section 5), as SparQ measures it (arXiv 2312.04985): the
// exact scores of every position from all of K over the link, then V of the k largest and softmax over those. It is
// SparQ's step 1 with every component. The rows that V comes in hold K as well, and count so in bytes.
namespace hayloft::runtime {
namespace {

class FlexGen : public Method {
 public:
  using Method::Method;

  index::SelectPer selection_per() const override { return index::SelectPer::kv_head; }

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    if (step.cache.stored_tokens() > 0 && step.cache.store.layout->columns != offload::ColumnFormat::f16) {
      fail("--attn flexgen scores exactly, and {} columns are not exact; read the context with --columns f16",
           offload::name(step.cache.store.layout->columns));
    }
    gpu::SparqSelect select;
    select.rank = step.head_dim();
    select.rule = options_.rule;
    if (step.ranks != nullptr) {
      RankedBy by = sparq_logits(step, q, options_, select);
      by.with_alpha = false;
      attend_selection_over_ranks(step, plan, q, select_over_ranks(step, plan, by), false, out);
      return count_planned(step.cache, plan);
    }
    const DeviceSelection selection = select_on_device(step, plan, q, select);
    attend_positions(step, plan, q, selection.positions, nullptr, out);
    return count_planned(step.cache, plan);
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_columns(counters, cache, cache.head_dim, Place::link);
    counters.elements = n.heads * flexgen_elements(n.S, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_flexgen(const MethodOptions& options) {
  return std::make_unique<FlexGen>(options);
}

}  // namespace hayloft::runtime
