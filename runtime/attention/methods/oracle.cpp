#include "runtime/attention/choice.h"

// What SparQ (arXiv 2312.04985) would do if its step 1 were perfect: steps 2 and 3 on the exact scores of every
// position. The search runs near the memory; the softmax, alpha and the group's sums are exact.
namespace hayloft::runtime {
namespace {

class Oracle : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override { return sparq_window(options_, tokens, layer); }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::CacheView& cache = step.cache;
    const std::vector<float> query = query_on_host(step, q, index::exact_scale(cache.head_dim));
    const TailScores tail =
        score_tail(HostTail(step.backend, cache, step.stream), query.data(), step.query_heads, step.backend.threads());
    const std::vector<std::int32_t> columns = index::every_component(cache.kv_heads, cache.head_dim);
    index::ColumnSearch search;
    search.query_heads = step.query_heads;
    search.rank = cache.head_dim;
    search.components = columns.data();
    search.weights = query.data();
    search.rule = options_.rule;
    search.per = selects_per(options_);
    search.keys = index::exact_keys(cache.store);
    const Choice choice = choose(*this, cache, step.query_heads, selects_per(options_));
    attend_chosen(step, q, choice, choose_with_mass(cache.store, search, choice, tail, step.backend.threads()),
                  options_.mean_value, out);
    step.counters += count(cache, step.query_heads);
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const Choice choice = choose(*this, cache, query_heads, selects_per(options_));
    Counters counters;
    count_exact_keys(counters, cache);
    count_rows(counters, cache, choice.attended(), Kind::rows);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    const auto d = static_cast<std::uint64_t>(cache.head_dim);
    counters.positions_scored = heads * S;
    counters.elements = heads * sparq_elements(S, d, choice.rows_per_head(cache.kv_heads), d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_oracle(const MethodOptions& options) {
  return std::make_unique<Oracle>(options);
}

}  // namespace hayloft::runtime
