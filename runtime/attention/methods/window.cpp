#include <algorithm>

#include "runtime/attention/method.h"

// The first s tokens (sinks) and the last w: LM-Infinite (arXiv 2308.16137) and StreamingLLM (arXiv 2309.17453).
namespace hayloft::runtime {
namespace {

class Window : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens, int layer) const override {
    if (options_.window) return std::min(*options_.window, tokens);
    return std::min(tokens, std::max<std::int64_t>(1, options_.k.at(layer).of(tokens) - options_.sinks));
  }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::Attended what = attended(step.cache);
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
    step.counters += count(step.cache, step.query_heads);
    record(step, what);
  }

  Counters count(const gpu::CacheView& cache, int) const override {
    const gpu::Attended what = attended(cache);
    Counters counters;
    count_rows(counters, cache, what, Kind::rows);
    const auto k = static_cast<std::uint64_t>(what.ranges[0].end + what.ranges[1].end - what.ranges[1].begin);
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    counters.positions_scored = heads * k;
    counters.elements = heads * window_elements(k, static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }

 private:
  gpu::Attended attended(const gpu::CacheView& cache) const {
    const std::int64_t S = cache.tokens();
    const std::int64_t recent = S - window(S, cache.layer);
    gpu::Attended what;
    what.ranges[0] = {0, std::min(options_.sinks, recent)};
    what.ranges[1] = {recent, S};
    return what;
  }
};

}  // namespace

std::unique_ptr<Method> make_window(const MethodOptions& options) {
  return std::make_unique<Window>(options);
}

}  // namespace hayloft::runtime
