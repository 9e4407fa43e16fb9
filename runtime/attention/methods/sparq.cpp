#include "runtime/attention/selection.h"

// SparQ Attention (arXiv 2312.04985, section 4 and appendix B): r columns of K choose k positions, whose rows are
// fetched; the mean value stands in for the rest.
namespace hayloft::runtime {
namespace {

class Sparq : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  void attend(const Step& step, const float* q, float* out) const override {
    const SelectionPlan plan = plan_selection(*this, step.cache, step.query_heads, index::SelectPer::kv_head);
    gpu::SparqSelect select;
    select.rank = options_.rank;
    select.rule = options_.rule;
    select.temperature = options_.temperature;
    select.limit = plan.limit;
    select.k = plan.k;
    std::int32_t* positions = positions_for(step, std::int64_t{plan.lists} * plan.k);
    float* alpha = alpha_for(step);
    step.backend.select_sparq(step.cache, q, step.query_heads, select, positions, alpha, step.stream);
    attend_positions(step, q, plan, positions, options_.mean_value ? alpha : nullptr, out);
    step.counters += count(step.cache, step.query_heads);
    if (step.trace) {
      step.trace->alpha.resize(static_cast<std::size_t>(step.query_heads));
      step.backend.to_host(step.trace->alpha.data(), alpha, step.trace->alpha.size() * sizeof(float), step.stream);
    }
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const SelectionPlan plan = plan_selection(*this, cache, query_heads, index::SelectPer::kv_head);
    Counters counters;
    count_columns(counters, cache, options_.rank, Place::link);
    count_rows(counters, cache, plan.attended(), Kind::rows);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    counters.positions_scored = heads * S;
    counters.elements =
        heads * sparq_elements(S, static_cast<std::uint64_t>(options_.rank), plan.rows_per_head(cache.kv_heads),
                               static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_sparq(const MethodOptions& options) {
  return std::make_unique<Sparq>(options);
}

}  // namespace hayloft::runtime
