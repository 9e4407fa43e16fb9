#include <algorithm>
#include <cmath>

#include "offload/error.h"
#include "runtime/attention/method.h"
#include "runtime/attention/methods/heavy_hitters.h"

// H2O, the heavy-hitter oracle (arXiv 2306.14048), as SparQ measures it (arXiv 2312.04985, appendix G): of k positions
// per KV head a share is the newest and the others are those that have gathered the most attention. What has been
// evicted cannot come back.
namespace hayloft::runtime {
namespace {

class H2O : public Method {
 public:
  explicit H2O(const MethodOptions& options) : Method(options, {.own_search = true}) {}

  std::int64_t window(std::int64_t tokens, int layer) const override { return quota(layer, tokens).recent; }

  std::string state_key() const override {
    return fmt::format("h2o k={} recent={} window={}", options_.k.text(), options_.recent,
                       options_.window.value_or(-1));
  }
  std::unique_ptr<MethodState> make_state(const AttentionShape& shape, gpu::Backend& backend) const override {
    return make(shape, backend);
  }
  std::unique_ptr<MethodState> load_state(const AttentionShape& shape, gpu::Backend& backend,
                                          std::span<const std::byte> saved) const override {
    auto state = make(shape, backend);
    state->load(saved);
    return state;
  }
  std::uint64_t state_bytes(const AttentionShape& shape, std::int64_t tokens) const override {
    std::uint64_t positions = 0;
    for (int layer = 0; layer < shape.layers; ++layer) {
      positions += static_cast<std::uint64_t>(shape.kv_heads) * static_cast<std::uint64_t>(quota(layer, tokens).k);
    }
    return positions * (4 * static_cast<std::uint64_t>(shape.head_dim) + sizeof(std::int32_t) + sizeof(double));
  }
  // Every rank has the rows of the newest tokens and all queries, so each keeps what one machine does, and no message
  // is needed.
  bool state_is_whole() const override { return true; }

  // Plans what is kept, the newest included; where it lies only its state knows.
  SelectionPlan plan_selection(const gpu::CacheView& cache, int) const override {
    SelectionPlan plan;
    plan.tokens = plan.limit = cache.tokens();
    plan.lists = cache.kv_heads;
    plan.k = static_cast<int>(quota(cache.layer, plan.tokens).k);
    return plan;
  }

  Counters attend_itself(const Step& step, const SelectionPlan& plan) const override {
    const LayerStep& at = step.at;
    auto& state = static_cast<HeavyHitters&>(*step.state);
    const std::vector<float> query = query_on_host(step);
    std::vector<float> mixed(query.size());
    state.attend(at.cache, query.data(), mixed.data());
    at.backend.to_device(step.out, mixed.data(), mixed.size() * sizeof(float), at.stream);
    if (step.trace != nullptr) {
      *step.trace = {};
      step.trace->positions = state.positions(at.cache.layer);
      step.trace->lists = plan.lists;
      step.trace->k = static_cast<int>(state.kept(at.cache.layer));
    }
    return count_planned(at.cache, plan);
  }

  Counters count_planned(const gpu::CacheView& cache, const SelectionPlan& plan) const override {
    const StepTerms n(cache, plan);
    Counters counters;
    counters.at(Place::near, Kind::rows) += n.heads * n.k * 4 * n.d;
    counters.at(Place::near, Kind::index) += n.heads * n.k * sizeof(double);  // the sums of attention
    counters.rows_fetched = n.heads * n.k;
    counters.positions_scored = n.heads * n.k;
    counters.elements = n.heads * h2o_elements(n.S, n.k, n.d);
    return counters;
  }

 private:
  std::unique_ptr<HeavyHitters> make(const AttentionShape& shape, gpu::Backend& backend) const {
    const H2O self(options_);  // the state may outlive the method
    return std::make_unique<HeavyHitters>(
        shape, [self](int layer, std::int64_t tokens) { return self.quota(layer, tokens); }, backend);
  }

  HeavyHitters::Quota quota(int layer, std::int64_t tokens) const {
    const std::int64_t k = options_.k.at(layer).of(tokens);
    const auto recent = static_cast<std::int64_t>(std::floor(options_.recent * static_cast<double>(k)));
    return {k, std::clamp<std::int64_t>(options_.window.value_or(recent), 1, k)};
  }
};

}  // namespace

std::unique_ptr<Method> make_h2o(const MethodOptions& options) {
  return std::make_unique<H2O>(options);
}

}  // namespace hayloft::runtime
