#include <algorithm>

#include "runtime/method.h"

// Top-k attention (arXiv 2502.06766): an exact nearest-neighbour search over K near the memory, then k rows.
namespace hayloft::runtime {
namespace {

class TopK : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens) const override { return std::min(options_.window.value_or(0), tokens); }

  void attend(const Step& step, const float* q, float* out) const override {
    const std::int64_t S = step.tokens();
    const std::int64_t w = window(S);
    gpu::ExactSelect select;
    select.rule = options_.rule;
    select.per = options_.per.value_or(index::SelectPer::query_head);
    select.faiss = options_.faiss;
    select.limit = std::min(step.cache.store.tokens, S - w);
    select.k = static_cast<int>(std::min(std::max<std::int64_t>(0, options_.k.of(S) - w), select.limit));

    gpu::Attended what;
    what.lists = select.per == index::SelectPer::kv_head ? step.kv_heads() : step.query_heads;
    what.k = select.k;
    what.ranges[0] = {select.limit, S};
    std::int32_t* positions = positions_for(step, static_cast<std::int64_t>(what.lists) * what.k);
    step.backend.select_exact(step.cache, q, step.query_heads, select, positions, step.stream);
    what.positions = positions;
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);

    const auto heads = static_cast<std::uint64_t>(step.kv_heads());
    const auto lists_per_head = static_cast<std::uint64_t>(what.lists) / heads;
    const auto rows =
        lists_per_head * static_cast<std::uint64_t>(select.k) + static_cast<std::uint64_t>(S - select.limit);
    count_columns(step.counters, step.cache, step.head_dim(), Place::near);
    count_rows(step.counters, step.cache, what, Kind::rows);
    step.counters.positions_scored += heads * static_cast<std::uint64_t>(S);
    step.counters.elements +=
        heads * topk_elements(static_cast<std::uint64_t>(S), rows, static_cast<std::uint64_t>(step.head_dim()));
    record(step, what);
  }
};

}  // namespace

std::unique_ptr<Method> make_topk(const MethodOptions& options) {
  return std::make_unique<TopK>(options);
}

}  // namespace hayloft::runtime
