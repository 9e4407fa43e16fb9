#include <algorithm>

#include "runtime/choice.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  void attend(const Step& step, const float* q, float* out) const override {
    const Choice choice = choice_of(step.cache, step.query_heads);
    gpu::ExactSelect select;
    select.rule = options_.rule;
    select.per = per();
    select.faiss = options_.faiss;
    select.limit = choice.limit;
    select.k = choice.k;
    gpu::Attended what = choice.attended();
    std::int32_t* positions = positions_for(step, std::int64_t{choice.lists} * choice.k);
    step.backend.select_exact(step.cache, q, step.query_heads, select, positions, step.stream);
    what.positions = positions;
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
    step.counters += count(step.cache, step.query_heads);
    record(step, what);
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const Choice choice = choice_of(cache, query_heads);
    Counters counters;
    count_exact_keys(counters, cache);
    count_rows(counters, cache, choice.attended(), Kind::rows);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    counters.positions_scored = heads * S;
    counters.elements =
        heads * topk_elements(S, choice.rows_per_head(cache.kv_heads), static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }

 private:
  index::SelectPer per() const { return options_.per.value_or(index::SelectPer::query_head); }

  Choice choice_of(const gpu::CacheView& cache, int query_heads) const {
    const std::int64_t S = cache.tokens();
    return choose(cache, query_heads, per(), options_.k.at(cache.layer).of(S), window(S, cache.layer));
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
