#include <algorithm>

#include "runtime/method.h"

// The first s tokens (sinks) and the last w: LM-Infinite (arXiv 2308.16137) and StreamingLLM (arXiv 2309.17453).
namespace hayloft::runtime {
namespace {

class Window : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t tokens) const override {
    if (options_.window) return std::min(*options_.window, tokens);
    return std::min(tokens, std::max<std::int64_t>(1, options_.k.of(tokens) - options_.sinks));
  }

  void attend(const Step& step, const float* q, float* out) const override {
    const std::int64_t S = step.tokens();
    const std::int64_t recent = S - window(S);
    gpu::Attended what;
    what.ranges[0] = {0, std::min(options_.sinks, recent)};
    what.ranges[1] = {recent, S};
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);

    count_rows(step.counters, step.cache, what, Kind::rows);
    const auto k = static_cast<std::uint64_t>(what.ranges[0].end + S - recent);
    const auto heads = static_cast<std::uint64_t>(step.kv_heads());
    step.counters.positions_scored += heads * k;
    step.counters.elements += heads * window_elements(k, static_cast<std::uint64_t>(step.head_dim()));
    record(step, what);
  }
};

}  // namespace

std::unique_ptr<Method> make_window(const MethodOptions& options) {
  return std::make_unique<Window>(options);
}

}  // namespace hayloft::runtime
