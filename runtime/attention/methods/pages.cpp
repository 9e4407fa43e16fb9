#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "index/derived/page_bounds.h"
#include "runtime/attention/choice.h"
#include "runtime/attention/methods/derived_state.h"

// Quest (arXiv 2406.10774): every page of consecutive tokens is ranked by an upper bound of what its keys can score,
// and the best pages are attended whole. A group ranks its pages together, by the sum over its query heads of the
// softmax (or of the logits) of their bounds; Quest's models have groups of one. Quest reads its first two layers
// whole; --attn-k by layer can.
namespace hayloft::runtime {
namespace {

class PageBounds : public DerivedState {
 public:
  PageBounds(const StateShape& shape, int page, const offload::Threads& threads)
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

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  std::string state_key() const override { return fmt::format("pages page={}", options_.page); }
  std::unique_ptr<MethodState> make_state(const StateShape& shape, gpu::Backend& backend) const override {
    return std::make_unique<PageBounds>(shape, options_.page, backend.threads());
  }
  std::uint64_t state_bytes(const StateShape& shape, std::int64_t tokens) const override {
    return DerivedState::bytes_of(shape, 2 * shape.head_dim, options_.page, tokens);
  }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::CacheView& cache = step.cache;
    const Choice pages = pages_of(cache, step.query_heads);
    Chosen chosen;
    if (pages.k > 0) {
      const int bounds = 2 * cache.head_dim;
      const std::vector<float> weights =
          index::bound_weights(query_on_host(step, q, index::exact_scale(cache.head_dim)), cache.head_dim);
      const std::vector<std::int32_t> columns = index::every_component(cache.kv_heads, bounds);
      index::ColumnSearch search;
      search.query_heads = step.query_heads;
      search.rank = bounds;
      search.components = columns.data();
      search.weights = weights.data();
      search.limit = pages.limit;
      search.k = pages.k;
      search.rule = options_.rule;
      search.per = selects_per(options_);
      std::vector<std::int32_t> best(static_cast<std::size_t>(pages.lists) * static_cast<std::size_t>(pages.k));
      index::SearchResult result;
      result.positions = best.data();
      index::search_columns(static_cast<const PageBounds&>(*step.state).columns(cache.layer), search,
                            step.backend.threads(), result);
      for (const std::int32_t page : best) {
        for (std::int32_t t = 0; t < options_.page; ++t) chosen.positions.push_back(page * options_.page + t);
      }
    }
    attend_chosen(step, q, tokens_of(pages), chosen, false, out);
    step.counters += count(cache, step.query_heads);
  }

  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const Choice pages = pages_of(cache, query_heads);
    const Choice choice = tokens_of(pages);
    Counters counters;
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    const auto d = static_cast<std::uint64_t>(cache.head_dim);
    // A search reads every bound there is, also of the pages that the window takes in.
    const auto bounded = pages.k == 0 ? 0 : static_cast<std::uint64_t>(cache.store.tokens / options_.page);
    counters.at(Place::near, Kind::index) += heads * bounded * 2 * d * sizeof(f16);
    count_rows(counters, cache, choice.attended(), Kind::rows);
    counters.positions_scored = heads * bounded;
    counters.elements = heads * pages_elements(bounded, choice.rows_per_head(cache.kv_heads), d);
    return counters;
  }

 private:
  // In pages: as many as k has room for, one at least where it has any; what is behind the last whole page before the
  // window is attended anyway.
  Choice pages_of(const gpu::CacheView& cache, int query_heads) const {
    Choice choice = choose(*this, cache, query_heads, selects_per(options_));
    choice.limit /= options_.page;
    if (choice.k > 0)
      choice.k = static_cast<int>(std::min<std::int64_t>(std::max(1, choice.k / options_.page), choice.limit));
    return choice;
  }

  Choice tokens_of(Choice pages) const {
    pages.limit *= options_.page;
    pages.k *= options_.page;
    return pages;
  }
};

}  // namespace

std::unique_ptr<Method> make_pages(const MethodOptions& options) {
  return std::make_unique<Pages>(options);
}

}  // namespace hayloft::runtime
