#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "index/ann/ann.h"
#include "runtime/attention/choice.h"

// Top-k attention (arXiv 2502.06766) by an approximate index: a Faiss index over K near the memory finds positions for
// each query head, then their rows come over the link. docs/ann.md.
namespace hayloft::runtime {
namespace {

class AnnState : public MethodState {
 public:
  AnnState(index::Ann ann, const StateShape& shape, gpu::Backend& backend)
      : ann_(std::move(ann)), shape_(shape), backend_(&backend) {}

  std::unique_ptr<MethodState> fork() const override {
    return std::make_unique<AnnState>(ann_.fork(), shape_, *backend_);
  }

  void follow(std::span<const gpu::CacheView> layers, const StateProgress& progress) override {
    std::vector<offload::LayerView> views;
    for (const gpu::CacheView& layer : layers) views.push_back(layer.store);
    ann_.follow(views, backend_->threads(), progress);
  }

  // Enough to know which directions queries set apart: some hundreds a head in a prompt of 64k.
  int wants_queries(int, int T) const override { return std::min(T, 8); }

  void see_queries(const gpu::CacheView& cache, const float* q, int n) override {
    std::vector<float> queries(static_cast<std::size_t>(n * shape_.query_heads * shape_.head_dim));
    backend_->to_host(queries.data(), q, queries.size() * sizeof(float), backend_->stream());
    ann_.see_queries(cache.layer, queries.data(), n, shape_.query_heads);
  }

  std::uint64_t bytes() const override { return ann_.bytes(); }
  std::vector<std::byte> save() const override { return ann_.save(); }

  const index::Ann& ann() const { return ann_; }

 private:
  index::Ann ann_;
  StateShape shape_;
  gpu::Backend* backend_;
};

class AnnMethod : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int) const override { return std::min(options_.window.value_or(0), tokens); }

  std::string state_key() const override {
    return fmt::format("ann:{}:{}", options_.factory, options_.query_aware ? "aware" : "plain");
  }

  std::unique_ptr<MethodState> make_state(const StateShape& shape, gpu::Backend& backend) const override {
    return std::make_unique<AnnState>(empty_index(shape), shape, backend);
  }

  std::unique_ptr<MethodState> load_state(const StateShape& shape, gpu::Backend& backend,
                                          std::span<const std::byte> saved) const override {
    index::Ann ann = empty_index(shape);
    ann.load(saved);
    return std::make_unique<AnnState>(std::move(ann), shape, backend);
  }

  std::uint64_t state_bytes(const StateShape& shape, std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(shape.layers) * static_cast<std::uint64_t>(shape.kv_heads) *
           index::ann_bytes({options_.factory, options_.query_aware}, tokens, shape.head_dim);
  }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::CacheView& cache = step.cache;
    gpu::Attended what = attended(cache, step.query_heads);
    const auto count = static_cast<std::size_t>(what.lists) * static_cast<std::size_t>(what.k);
    std::int32_t* positions = positions_for(step, static_cast<std::int64_t>(count));
    what.positions = positions;
    index::AnnCost cost;
    if (count > 0) {
      std::vector<float> query(static_cast<std::size_t>(step.query_heads * cache.head_dim));
      step.backend.to_host(query.data(), q, query.size() * sizeof(float), step.stream);
      std::vector<std::int32_t> found(count);
      const auto& state = static_cast<const AnnState&>(*step.state);
      const index::AnnSearch search{step.query_heads, what.ranges[0].begin, what.k,
                                    options_.probes,  options_.ef,          options_.rerank};
      cost = state.ann().search(cache.layer, cache.store, query.data(), search, step.backend.threads(), found.data());
      step.backend.to_device(positions, found.data(), count * sizeof(std::int32_t), step.stream);
    }
    step.backend.attend(cache, q, step.query_heads, what, out, step.stream);
    step.counters += counted(cache, what, cost);
    record(step, what);
  }

  // As if a sixteenth of the keys were looked at, the default share of an IVF index, behind all of its centroids.
  Counters count(const gpu::CacheView& cache, int query_heads) const override {
    const gpu::Attended what = attended(cache, query_heads);
    const std::int64_t indexed = what.ranges[0].begin;
    const auto heads = static_cast<std::uint64_t>(query_heads);
    const auto d = static_cast<std::uint64_t>(cache.head_dim);
    const std::uint64_t keys = heads * static_cast<std::uint64_t>(indexed) / 16;
    const auto lists = indexed > 0 ? static_cast<std::uint64_t>(4 * std::sqrt(static_cast<double>(indexed))) : 0;
    return counted(cache, what, {keys, heads * lists * d * sizeof(float), keys * d * sizeof(f16)});
  }

 private:
  index::Ann empty_index(const StateShape& shape) const {
    return {{options_.factory, options_.query_aware}, shape.layers, shape.kv_heads, shape.head_dim};
  }

  gpu::Attended attended(const gpu::CacheView& cache, int query_heads) const {
    return choose(*this, cache, query_heads, index::SelectPer::query_head).attended();
  }

  static Counters counted(const gpu::CacheView& cache, const gpu::Attended& what, const index::AnnCost& cost) {
    Counters counters;
    count_rows(counters, cache, what, Kind::rows);
    counters.at(Place::near, Kind::index) += cost.index_bytes;
    counters.at(Place::near, Kind::rows) += cost.row_bytes;
    counters.positions_scored = cost.keys;
    const auto d = static_cast<std::uint64_t>(cache.head_dim);
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    // The comparisons, then as top-k attention: the rows of what is attended, and q and k.
    counters.elements = cost.keys * d + 2 * counters.rows_fetched * d + heads * 2 * d;
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_ann(const MethodOptions& options) {
  return std::make_unique<AnnMethod>(options);
}

}  // namespace hayloft::runtime
