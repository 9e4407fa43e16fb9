#include <algorithm>

#include "runtime/method.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::ExactSelect select = selection(step.cache);
    gpu::Attended what = attended(step.cache, select, step.query_heads);
    std::int32_t* positions = positions_for(step, static_cast<std::int64_t>(what.lists) * what.k);
    step.backend.select_exact(step.cache, q, step.query_heads, select, positions, step.stream);
    what.positions = positions;
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
    step.counters += count(step.cache, step.query_heads);
    record(step, what);
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const gpu::ExactSelect select = selection(cache);
    const gpu::Attended what = attended(cache, select, query_heads);
    Counters counters;
    count_exact_keys(counters, cache);
    count_rows(counters, cache, what, Kind::rows);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    const auto rows = static_cast<std::uint64_t>(what.lists) / heads * static_cast<std::uint64_t>(select.k) +
                      static_cast<std::uint64_t>(cache.tokens() - select.limit);
    counters.positions_scored = heads * S;
    counters.elements = heads * topk_elements(S, rows, static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }

 private:
  gpu::ExactSelect selection(const gpu::CacheView& cache) const {
    const std::int64_t S = cache.tokens();
    const std::int64_t w = window(S, cache.layer);
    gpu::ExactSelect select;
    select.rule = options_.rule;
    select.per = options_.per.value_or(index::SelectPer::query_head);
    select.faiss = options_.faiss;
    select.limit = std::min(cache.store.tokens, S - w);
    select.k =
        static_cast<int>(std::min(std::max<std::int64_t>(0, options_.k.at(cache.layer).of(S) - w), select.limit));
    return select;
  }

  static gpu::Attended attended(const gpu::CacheView& cache, const gpu::ExactSelect& select, int query_heads) {
    gpu::Attended what;
    what.lists = select.per == index::SelectPer::kv_head ? cache.kv_heads : query_heads;
    what.k = select.k;
    what.ranges[0] = {select.limit, cache.tokens()};
    return what;
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
