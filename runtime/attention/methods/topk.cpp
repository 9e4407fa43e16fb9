#include <algorithm>

#include "runtime/attention/choice.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::CacheView& cache = step.cache;
    const Choice choice = choose(*this, cache, step.query_heads, selects_per(options_));
    Chosen chosen;
    if (choice.k > 0) {
      const index::ExactSearch search{step.query_heads, choice.limit,          choice.k,
                                      options_.rule,    selects_per(options_), options_.faiss};
      const std::vector<float> query = query_on_host(step, q, 1.0f);
      TailScores tail;
      if (index::needs_tail_softmax(search)) tail = exact_tail(step, query);
      chosen.positions.resize(static_cast<std::size_t>(choice.lists) * static_cast<std::size_t>(choice.k));
      index::search_exact(cache.store, query.data(), search, step.backend.threads(),
                          {chosen.positions.data(), tail.max.empty() ? nullptr : tail.max.data(),
                           tail.sum.empty() ? nullptr : tail.sum.data(), nullptr});
    }
    attend_chosen(step, q, choice, chosen, false, out);
    step.counters += count(step.cache, step.query_heads);
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const Choice choice = choose(*this, cache, query_heads, selects_per(options_));
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
  // The tail's logits and their softmax.
  static TailScores exact_tail(const Step& step, std::vector<float> query) {
    for (float& x : query) x *= index::exact_scale(step.head_dim());
    return score_tail(HostTail(step.backend, step.cache, step.stream), query.data(), step.query_heads,
                      step.backend.threads());
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
