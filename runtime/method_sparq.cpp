#include <algorithm>

#include "runtime/method.h"

// SparQ Attention (arXiv 2312.04985, section 4 and appendix B): r columns of K choose k positions, whose rows are
// fetched; the mean value stands in for the rest.
namespace hayloft::runtime {
namespace {

class Sparq : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override {
    return options_.window ? std::min(*options_.window, tokens) : options_.k.at(layer).of(tokens) / 4;
  }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::SparqSelect select = selection(step.cache);
    gpu::Attended what = attended(step.cache, select);
    std::int32_t* positions = positions_for(step, static_cast<std::int64_t>(what.lists) * what.k);
    float* alpha = alpha_for(step);
    step.backend.select_sparq(step.cache, q, step.query_heads, select, positions, alpha, step.stream);
    what.positions = positions;
    if (options_.mean_value) what.alpha = alpha;
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
    step.counters += count(step.cache, step.query_heads);
    record(step, what);
    if (step.trace) {
      step.trace->alpha.resize(static_cast<std::size_t>(step.query_heads));
      step.backend.to_host(step.trace->alpha.data(), alpha, step.trace->alpha.size() * sizeof(float), step.stream);
    }
  }

  Counters count(const gpu::CacheView& cache, int) const override {
    const gpu::SparqSelect select = selection(cache);
    Counters counters;
    count_columns(counters, cache, select.rank, Place::link);
    count_rows(counters, cache, attended(cache, select), Kind::rows);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    const auto k = static_cast<std::uint64_t>(select.k + cache.tokens() - select.limit);
    counters.positions_scored = heads * S;
    counters.elements = heads * sparq_elements(S, static_cast<std::uint64_t>(select.rank), k,
                                               static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }

 private:
  gpu::SparqSelect selection(const gpu::CacheView& cache) const {
    const std::int64_t S = cache.tokens();
    const std::int64_t w = window(S, cache.layer);
    gpu::SparqSelect select;
    select.rank = options_.rank;
    select.rule = options_.rule;
    select.limit = std::min(cache.store.tokens, S - w);
    select.k =
        static_cast<int>(std::min(std::max<std::int64_t>(0, options_.k.at(cache.layer).of(S) - w), select.limit));
    return select;
  }

  static gpu::Attended attended(const gpu::CacheView& cache, const gpu::SparqSelect& select) {
    gpu::Attended what;
    what.lists = cache.kv_heads;
    what.k = select.k;
    what.ranges[0] = {select.limit, cache.tokens()};
    return what;
  }
};

}  // namespace

std::unique_ptr<Method> make_sparq(const MethodOptions& options) {
  return std::make_unique<Sparq>(options);
}

}  // namespace hayloft::runtime
