#include "runtime/method.h"

// Exact attention to everything: all of K and V, streamed over the link.
namespace hayloft::runtime {
namespace {

class Dense : public Method {
 public:
  using Method::Method;

  std::int64_t window(std::int64_t) const override { return 0; }
  std::int64_t recall_k(std::int64_t) const override { return 0; }

  void attend(const Step& step, const float* q, float* out) const override {
    gpu::Attended what;
    what.ranges[0] = {0, step.tokens()};
    step.backend.attend(step.cache, q, step.query_heads, what, out, step.stream);

    count_rows(step.counters, step.cache, what, Kind::dense);
    const auto S = static_cast<std::uint64_t>(step.tokens());
    const auto heads = static_cast<std::uint64_t>(step.kv_heads());
    step.counters.positions_scored += heads * S;
    step.counters.elements += heads * dense_elements(S, static_cast<std::uint64_t>(step.head_dim()));
    record(step, what);
  }
};

}  // namespace

std::unique_ptr<Method> make_dense(const MethodOptions& options) {
  return std::make_unique<Dense>(options);
}

}  // namespace hayloft::runtime
