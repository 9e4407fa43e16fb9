#include "offload/error.h"
#include "runtime/attention/choice.h"

// FlexGen's sparse attention (arXiv 2303.06865, section 5), as SparQ measures it (arXiv 2312.04985): the
// exact scores of every position from all of K over the link, then V of the k largest and softmax over those. It is
// SparQ's step 1 with every component. The rows that V comes in hold K as well, and count so in bytes.
namespace hayloft::runtime {
namespace {

class FlexGen : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::CacheView& cache = step.cache;
    if (index::exact_keys(cache.store) != index::KeySource::columns) {
      fail("--attn flexgen scores exactly, and {} columns are not exact; read the context with --columns f16",
           offload::name(cache.store.layout->columns));
    }
    const Choice choice = choose(*this, cache, step.query_heads, index::SelectPer::kv_head);
    gpu::SparqSelect select;
    select.rank = cache.head_dim;
    select.k = choice.k;
    select.limit = choice.limit;
    select.rule = options_.rule;
    std::int32_t* const positions = positions_for(step, std::int64_t{choice.lists} * choice.k);
    step.backend.select_sparq(cache, q, step.query_heads, select, positions, alpha_for(step), step.stream);
    attend_positions(step, q, choice, positions, nullptr, out);
    step.counters += count(cache, step.query_heads);
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const Choice choice = choose(*this, cache, query_heads, index::SelectPer::kv_head);
    Counters counters;
    count_columns(counters, cache, cache.head_dim, Place::link);
    count_rows(counters, cache, choice.attended(), Kind::rows);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    counters.positions_scored = heads * S;
    counters.elements =
        heads * flexgen_elements(S, choice.rows_per_head(cache.kv_heads), static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_flexgen(const MethodOptions& options) {
  return std::make_unique<FlexGen>(options);
}

}  // namespace hayloft::runtime
