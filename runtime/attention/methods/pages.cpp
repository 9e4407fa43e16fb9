#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "index/derived/page_bounds.h"
#include "runtime/attention/methods/derived_state.h"
#include "runtime/attention/select_over_ranks.h"

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

  Counters attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const override {
    Selection selection;
    if (plan.k > 0) {
      const int d = step.head_dim();
      const std::vector<float> weights = index::bound_weights(query_on_host(step, q, index::exact_scale(d)), d);
      const offload::LayerView bounds = static_cast<const PageBounds&>(*step.state).columns(step.cache.layer);
      SelectionPlan pages = plan;
      pages.limit /= options_.page;
      pages.k /= options_.page;
      for (const std::int32_t page : best_pages(step, pages, bounds, weights)) {
        for (std::int32_t t = 0; t < options_.page; ++t) selection.positions.push_back(page * options_.page + t);
      }
    }
    if (step.ranks != nullptr) {
      attend_selection_over_ranks(step, plan, q, selection, false, out);
    } else {
      attend_selection(step, plan, q, selection, false, out);
    }
    return count_planned(step.cache, plan);
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

 private:
  // Over ranks each has whole pages: a page lies in a block.
  std::vector<std::int32_t> best_pages(const Step& step, const SelectionPlan& pages, const offload::LayerView& bounds,
                                       const std::vector<float>& weights) const {
    const int columns = 2 * step.head_dim();
    if (step.ranks == nullptr) {
      const HostSearch search{bounds, columns, weights, options_.rule, selects_per(options_)};
      return select_on_host(step, pages, search, nullptr).positions;
    }
    RankedBy by = derived_logits(step, bounds, columns, weights, options_);
    by.entry_tokens = options_.page;
    by.tail = false;
    return select_over_ranks(step, pages, by).positions;
  }
};

}  // namespace

std::unique_ptr<Method> make_pages(const MethodOptions& options) {
  return std::make_unique<Pages>(options);
}

}  // namespace hayloft::runtime
