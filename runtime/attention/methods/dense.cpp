#include "runtime/attention/method.h"

// Exact attention to everything: all of K and V, streamed over the link.
namespace hayloft::runtime {
namespace {

class Dense : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t, int) const override { return 0; }
  std::int64_t recall_k(std::int64_t, int) const override { return 0; }

  void attend(const Step& step, const float* q, float* out) const override {
    const gpu::Attended what = attended(step.cache);
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);
    step.counters += count(step.cache, step.query_heads);
    record(step, what);
  }

  Counters count(const gpu::CacheView& cache, int) const override {
    Counters counters;
    count_rows(counters, cache, attended(cache), Kind::dense);
    const auto S = static_cast<std::uint64_t>(cache.tokens());
    const auto heads = static_cast<std::uint64_t>(cache.kv_heads);
    counters.positions_scored = heads * S;
    counters.elements = heads * dense_elements(S, static_cast<std::uint64_t>(cache.head_dim));
    return counters;
  }

 private:
  static gpu::Attended attended(const gpu::CacheView& cache) {
    gpu::Attended what;
    what.ranges[0] = {0, cache.tokens()};
    return what;
  }
};

}  // namespace

std::unique_ptr<Method> make_dense(const MethodOptions& options) {
  return std::make_unique<Dense>(options);
}

}  // namespace hayloft::runtime
