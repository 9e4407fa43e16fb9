#include "index/scan/exact_search.h"
#include "runtime/attention/method.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  explicit TopK(const MethodOptions& options)
      : Method(options, {.rest = rest_of(options), .own_search = options.faiss}) {}

  Ranking ranking(const Step&, const SelectionPlan&) const override {
    return by_keys(by_, traits_.rest.kind == Rest::Kind::mean);
  }

  // By Faiss' flat index.
  Counters attend_itself(const Step& step, const SelectionPlan& plan) const override {
    const std::vector<float> query = query_on_host(step);
    const Finds found =
        step.attender.find(step, plan, query.data(),
                           [&](const offload::LayerView& view, std::int64_t limit, int k, std::int32_t* positions) {
                             const index::ExactSearch search{step.at.query_heads, limit, k, by_.rule, *by_.per, true};
                             index::SearchResult result;
                             result.positions = positions;
                             index::search_exact(view, query.data(), search, step.at.backend.threads(), result);
                             return std::vector<std::uint64_t>();
                           });
    step.attender.attend(step, plan, {found.positions}, traits_.rest);
    Counters counters = count_planned(step.at.cache, plan);
    counters.at(Place::near, Kind::rows) += found.scored * step.at.cache.store.layout->row_bytes / 2;
    return counters;
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    count_exact_keys(counters, cache);
    counters.elements = n.heads * topk_elements(n.S, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
