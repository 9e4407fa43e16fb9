#include <algorithm>

#include "runtime/attention/selection.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  void attend(const Step& step, const float* q, float* out) const override {
    const SelectionPlan plan = plan_selection(*this, step.cache, step.query_heads, selects_per(options_));
    gpu::ExactSelect select;
    select.rule = options_.rule;
    select.per = selects_per(options_);
    select.faiss = options_.faiss;
    select.limit = plan.limit;
    select.k = plan.k;
    std::int32_t* positions = positions_for(step, std::int64_t{plan.lists} * plan.k);
    step.backend.select_exact(step.cache, q, step.query_heads, select, positions, step.stream);
    attend_positions(step, q, plan, positions, nullptr, out);
    step.counters += count(step.cache, step.query_heads);
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const SelectionPlan plan = plan_selection(*this, cache, query_heads, selects_per(options_));
    Counters counters;
    count_exact_keys(counters, cache);
    count_rows(counters, cache, plan.attended(), Kind::rows);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    counters.positions_scored = heads * S;
    counters.elements =
        heads * topk_elements(S, plan.rows_per_head(cache.kv_heads), static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
