#include "offload/error.h"
#include "runtime/attention/method.h"

// FlexGen's sparse attention (arXiv 2303.06865, section 5), as SparQ measures it (arXiv 2312.04985): the
// exact scores of every position from all of K over the link, then V of the k largest and softmax over those. It is
// SparQ's step 1 with every component. The rows that V comes in hold K as well, and count so in bytes.
namespace hayloft::runtime {
namespace {

class FlexGen : public Method {
 public:
  using Method::Method;

  Ranking ranking(const Step& step, const SelectionPlan&) const override {
    const gpu::CacheView& cache = step.at.cache;
    if (cache.stored_tokens() > 0 && cache.store.layout->columns != offload::ColumnFormat::f16) {
      fail("--attn flexgen scores exactly, and {} columns are not exact; read the context with --columns f16",
           offload::name(cache.store.layout->columns));
    }
    index::RankingOptions all = by_;
    all.rank = cache.head_dim;
    return by_components(all, false);
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
