#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "index/derived/page_bounds.h"
#include "index/scan/exact_search.h"
#include "runtime/attention/method.h"
#include "runtime/attention/methods/derived_state.h"

// Quest (arXiv 2406.10774): every page of consecutive tokens is ranked by an upper bound of what its keys can score,
// and the best pages are attended whole. A group ranks its pages together, by the sum over its query heads of the
// softmax (or of the logits) of their bounds; Quest's models have groups of one. Quest reads its first two layers
// whole; --attn-k by layer can.
namespace hayloft::runtime {
namespace {

class PageBounds : public DerivedState {
 public:
  PageBounds(const AttentionShape& shape, int page, const offload::Threads& threads)
      : DerivedState(shape, 2 * shape.head_dim, page), page_(page), threads_(threads) {}

  std::unique_ptr<MethodState> fork() const override { return std::make_unique<PageBounds>(*this); }

 private:
  void extend(int, const offload::LayerView& store, index::DerivedColumns& columns) const override {
    index::bound_pages(store, page_, threads_, columns);
  }

  int page_;
  const offload::Threads& threads_;
};

class Pages : public Method {
 public:
  using Method::Method;

  std::string state_key() const override { return fmt::format("pages page={}", options_.page); }
  std::unique_ptr<MethodState> make_state(const AttentionShape& shape, gpu::Backend& backend) const override {
    return std::make_unique<PageBounds>(shape, options_.page, backend.threads());
  }
  std::uint64_t state_bytes(const AttentionShape& shape, std::int64_t tokens) const override {
    return DerivedState::bytes_of(shape, 2 * shape.head_dim, options_.page, tokens);
  }

  // In whole pages: as many as k has room for, one at least where it has any; what is behind the last whole page before
  // the window is attended anyway.
  SelectionPlan plan_selection(const gpu::CacheView& cache, int query_heads) const override {
    SelectionPlan plan = Method::plan_selection(cache, query_heads);
    const std::int64_t pages = plan.limit / options_.page;
    plan.limit = pages * options_.page;
    if (plan.k > 0) {
      const std::int64_t wanted = std::max(1, plan.k / options_.page);
      plan.k = static_cast<int>(std::min(wanted, pages)) * options_.page;
    }
    return plan;
  }

  // In pages. Over ranks each has whole ones: a page lies in a block.
  Ranking ranking(const Step& step, const SelectionPlan& plan) const override {
    Ranking ranking{.source = Ranking::Source::derived, .by = by_};
    ranking.entry_tokens = options_.page;
    if (plan.k == 0) return ranking;
    const int d = step.at.head_dim();
    ranking.by.rank = 2 * d;
    ranking.columns = static_cast<const PageBounds&>(*step.state).columns(step.at.cache.layer);
    std::vector<float> query = query_on_host(step);
    for (float& x : query) x *= index::exact_scale(d);
    ranking.weights = index::bound_weights(query, d);
    return ranking;
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    // A search reads every bound there is, also of the pages that the window takes in.
    const auto bounded = plan.k == 0 ? 0 : static_cast<std::uint64_t>(cache.stored_tokens() / options_.page);
    Counters counters = count_selection(cache, plan);
    counters.at(Place::near, Kind::index) += n.heads * bounded * 2 * n.d * sizeof(f16);
    counters.positions_scored = n.heads * bounded;
    counters.elements = n.heads * pages_elements(bounded, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_pages(const MethodOptions& options) {
  return std::make_unique<Pages>(options);
}

}  // namespace hayloft::runtime
