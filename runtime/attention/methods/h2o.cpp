#include <algorithm>
#include <cmath>

#include "offload/error.h"
#include "runtime/attention/methods/heavy_hitters.h"
#include "runtime/attention/selection.h"

// H2O, the heavy-hitter oracle (arXiv 2306.14048), as SparQ measures it (arXiv 2312.04985, appendix G): of k positions
// per KV head a share is the newest and the others are those that have gathered the most attention. What has been
// evicted cannot come back.
namespace hayloft::runtime {
namespace {

class H2O : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override { return budget(layer, tokens).recent; }

  std::string state_key() const override {
    return fmt::format("h2o k={} recent={} window={}", options_.k.text(), options_.recent,
                       options_.window.value_or(-1));
  }
  std::unique_ptr<MethodState> make_state(const StateShape& shape, gpu::Backend& backend) const override {
    return make(shape, backend);
  }
  std::unique_ptr<MethodState> load_state(const StateShape& shape, gpu::Backend& backend,
                                          std::span<const std::byte> saved) const override {
    auto state = make(shape, backend);
    state->load(saved);
    return state;
  }
  std::uint64_t state_bytes(const StateShape& shape, std::int64_t tokens) const override {
    std::uint64_t positions = 0;
    for (int layer = 0; layer < shape.layers; ++layer) {
      positions += static_cast<std::uint64_t>(shape.kv_heads) * static_cast<std::uint64_t>(budget(layer, tokens).k);
    }
    return positions * (4 * static_cast<std::uint64_t>(shape.head_dim) + sizeof(std::int32_t) + sizeof(double));
  }

  void attend(const Step& step, const float* q, float* out) const override {
    auto& state = static_cast<HeavyHitters&>(*step.state);
    const std::vector<float> query = query_on_host(step, q, 1);
    std::vector<float> mixed(query.size());
    state.attend(step.cache, query.data(), mixed.data());
    step.backend.to_device(out, mixed.data(), mixed.size() * sizeof(float), step.stream);
    step.counters += count(step.cache, step.query_heads);
    if (step.trace == nullptr) return;
    *step.trace = {};
    step.trace->positions = state.positions(step.cache.layer);
    step.trace->lists = step.kv_heads();
    step.trace->k = static_cast<int>(state.kept(step.cache.layer));
  }

  Counters count(const gpu::CacheView& cache, int) const override {
    Counters counters;
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto k = static_cast<std::uint64_t>(budget(cache.layer, cache.tokens()).k);
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    const auto d = static_cast<std::uint64_t>(cache.head_dim);
    counters.at(Place::near, Kind::rows) += heads * k * 4 * d;
    counters.at(Place::near, Kind::index) += heads * k * sizeof(double);  // the sums of attention
    counters.rows_fetched = heads * k;
    counters.positions_scored = heads * k;
    counters.elements = heads * h2o_elements(S, k, d);
    return counters;
  }

 private:
  std::unique_ptr<HeavyHitters> make(const StateShape& shape, gpu::Backend& backend) const {
    const H2O self(options_);  // the state may outlive the method
    return std::make_unique<HeavyHitters>(
        shape, [self](int layer, std::int64_t tokens) { return self.budget(layer, tokens); }, backend);
  }

  HeavyHitters::Budget budget(int layer, std::int64_t tokens) const {
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
