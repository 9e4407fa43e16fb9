#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "index/ann/ann.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/method.h"

// Top-k attention (arXiv 2502.06766) by an approximate index: a Faiss index over K near the memory finds positions for
// each query head, then their rows come over the link. docs/ann.md.
namespace hayloft::runtime {
namespace {

class AnnState : public MethodState {
 public:
  AnnState(index::Ann ann, const AttentionShape& shape, gpu::Backend& backend)
      : ann_(std::move(ann)), shape_(shape), backend_(&backend) {}

  std::unique_ptr<MethodState> fork() const override {
    return std::make_unique<AnnState>(ann_.fork(), shape_, *backend_);
  }

  void sync_with_cache(std::span<const gpu::CacheView> layers, const StateProgress& progress) override {
    std::vector<offload::LayerView> views;
    for (const gpu::CacheView& layer : layers) views.push_back(layer.store);
    ann_.sync_with_store(views, backend_->threads(), progress);
  }

  // Enough to learn in which directions queries differ: some hundreds a head in a prompt of 64k.
  int wants_queries(int, int T) const override { return std::min(T, 8); }

  void see_queries(const gpu::CacheView& cache, const float* q, int n) override {
    const std::int64_t count = std::int64_t{n} * shape_.query_heads * shape_.head_dim;
    const std::vector<float> queries = copy_to_host(*backend_, q, count, backend_->stream());
    ann_.see_queries(cache.layer, queries.data(), n, shape_.query_heads);
  }

  std::uint64_t bytes() const override { return ann_.bytes(); }
  std::vector<std::byte> save() const override { return ann_.save(); }
  void forget_store() override { ann_.forget_keys(); }

  const index::Ann& ann() const { return ann_; }

 private:
  index::Ann ann_;
  AttentionShape shape_;
  gpu::Backend* backend_;
};

class AnnMethod : public Method {
 public:
  explicit AnnMethod(const MethodOptions& options) : Method(options, {.own_search = true}) {}

  std::string state_key() const override {
    return fmt::format("ann:{}:{}", options_.factory, options_.query_aware ? "aware" : "plain");
  }

  std::unique_ptr<MethodState> make_state(const AttentionShape& shape, gpu::Backend& backend) const override {
    return std::make_unique<AnnState>(empty_index(shape), shape, backend);
  }

  std::unique_ptr<MethodState> load_state(const AttentionShape& shape, gpu::Backend& backend,
                                          std::span<const std::byte> saved) const override {
    index::Ann ann = empty_index(shape);
    ann.load(saved);
    return std::make_unique<AnnState>(std::move(ann), shape, backend);
  }

  std::uint64_t state_bytes(const AttentionShape& shape, std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(shape.layers) * static_cast<std::uint64_t>(shape.kv_heads) *
           index::ann_bytes({options_.factory, options_.query_aware}, tokens, shape.head_dim);
  }

  // Each of several ranks has an index over its own blocks. Their codes of keys do not compare, so what they
  // find is ranked by its rows.
  Counters attend_itself(const Step& step, const SelectionPlan& plan) const override {
    const std::vector<float> query = plan.k > 0 ? query_on_host(step) : std::vector<float>();
    const index::Ann& ann = static_cast<const AnnState&>(*step.state).ann();
    const Finds found =
        step.attender.find(step, plan, query.data(),
                           [&](const offload::LayerView& view, std::int64_t limit, int k, std::int32_t* positions) {
                             const index::AnnCost cost = ann.search(
                                 step.at.cache.layer, view, query.data(),
                                 {step.at.query_heads, limit, k, options_.probes, options_.ef, options_.rerank},
                                 step.at.backend.threads(), positions);
                             return std::vector{cost.keys, cost.index_bytes, cost.row_bytes};
                           });
    step.attender.attend(step, plan, {found.positions}, traits_.rest);
    index::AnnCost cost;
    if (!found.counted.empty()) cost = {found.counted[0], found.counted[1], found.counted[2]};
    cost.row_bytes += found.scored * step.at.cache.store.layout->row_bytes / 2;
    return counted(step.at.cache, plan, cost);
  }

  // As if a sixteenth of the keys were looked at, the default share of an IVF index, behind all of its centroids.
  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const auto heads = static_cast<std::uint64_t>(plan.lists);
    const auto d = static_cast<std::uint64_t>(cache.head_dim);
    const std::uint64_t keys = heads * static_cast<std::uint64_t>(plan.limit) / 16;
    const auto lists = plan.limit > 0 ? static_cast<std::uint64_t>(4 * std::sqrt(static_cast<double>(plan.limit))) : 0;
    return counted(cache, plan, {keys, heads * lists * d * sizeof(float), keys * d * sizeof(f16)});
  }

 private:
  index::Ann empty_index(const AttentionShape& shape) const {
    return {{options_.factory, options_.query_aware}, shape.layers, shape.kv_heads, shape.head_dim};
  }

  static Counters counted(const gpu::CacheView& cache, const SelectionPlan& plan, const index::AnnCost& cost) {
    const StepTerms n(cache, plan);
    Counters counters = count_selection(cache, plan);
    counters.at(Place::near, Kind::index) += cost.index_bytes;
    counters.at(Place::near, Kind::rows) += cost.row_bytes;
    counters.positions_scored = cost.keys;
    // The comparisons, then as top-k attention: the rows of what is attended, and q and k.
    counters.elements = cost.keys * n.d + n.heads * topk_elements(0, n.k, n.d);
    return counters;
  }
};

}  // namespace

std::unique_ptr<Method> make_ann(const MethodOptions& options) {
  return std::make_unique<AnnMethod>(options);
}

}  // namespace hayloft::runtime
