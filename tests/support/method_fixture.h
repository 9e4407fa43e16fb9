#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/attention/method.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/expect_best.h"

// One decode step of any method over a random cache with store and tail, and what to hold it against in double.
namespace hayloft::testing {

class MethodTest : public ::testing::Test {
 protected:
  struct Output {
    std::vector<float> y;  // [Hq][d]
    runtime::StepTrace trace;
    runtime::Counters counters;
    runtime::StepEstimate estimate;
  };

  void make(const CacheShape& shape, int group = 2) {
    cache.emplace(shape);
    query_heads = group * shape.kv_heads;
    q = normal(static_cast<std::size_t>(query_heads * shape.head_dim), shape.seed + 50, 2);
  }

  runtime::SharedMethod method(const std::string& text) const {
    return runtime::make_method(runtime::parse_method(text, {}), cache->shape().head_dim);
  }

  // The state of a method that follows the store.
  std::unique_ptr<runtime::MethodState> state_of(const runtime::Method& method, int layer = 0) {
    const CacheShape& shape = cache->shape();
    auto state = method.make_state({layer + 1, query_heads, shape.kv_heads, shape.head_dim}, *backend);
    const gpu::CacheView view = view_of(layer);
    if (state) state->sync_with_cache({&view, 1}, {});
    return state;
  }

  gpu::CacheView view_of(int layer) {
    gpu::CacheView view = cache->view();
    view.layer = layer;
    return view;
  }

  Output attend(const runtime::Method& method, runtime::MethodState* state, int layer = 0) {
    Output output;
    output.y.resize(q.size());
    const gpu::CacheView view = view_of(layer);
    take_step(method, state, view, *runtime::local_attender(), output);
    return output;
  }
  Output attend(const std::string& text, int layer = 0) {
    const auto made = method(text);
    const auto state = state_of(*made, layer);
    return attend(*made, state.get(), layer);
  }

  // By `query`, q where there is none, into the output, whose y has its size.
  void take_step(const runtime::Method& method, runtime::MethodState* state, const gpu::CacheView& view,
                 const runtime::Attender& attender, Output& output, const float* query = nullptr) {
    runtime::MethodScratch scratch;
    const offload::Store none(arena, {1, view.kv_heads, view.head_dim, 64});
    const runtime::LayerStep at{*backend, backend->stream(), 0, view, none, query_heads, 1, scratch};
    output.counters = method.attend({at, query == nullptr ? q.data() : query, output.y.data(), attender, state,
                                     &output.trace, nullptr, &output.estimate});
  }

  const float* query(int head) const { return q.data() + head * cache->shape().head_dim; }
  int kv_head(int head) const { return head * cache->shape().kv_heads / query_heads; }

  // Everything that a query head attended to, ascending.
  std::vector<std::int64_t> attended(const Output& output, int head) const {
    std::set<std::int64_t> all;
    if (output.trace.lists > 0) {
      const int list = head * output.trace.lists / query_heads;
      const auto first = output.trace.positions.begin() + std::ptrdiff_t{list} * output.trace.k;
      EXPECT_TRUE(std::is_sorted(first, first + output.trace.k));
      all.insert(first, first + output.trace.k);
      EXPECT_EQ(all.size(), static_cast<std::size_t>(output.trace.k)) << "a position twice";
    }
    for (const auto& range : output.trace.ranges) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        EXPECT_TRUE(all.insert(t).second) << "in a list and in a range: " << t;
      }
    }
    return {all.begin(), all.end()};
  }

  // Expects that y is softmax attention over what was attended, with SparQ's step 3 where the method has it.
  void expect_consistent(const Output& output, bool mean_value) {
    const int d = cache->shape().head_dim;
    for (int head = 0; head < query_heads; ++head) {
      const int kv = kv_head(head);
      const Expected exact = attention(*cache, kv, query(head), attended(output, head));
      const double alpha = mean_value ? output.trace.alpha[static_cast<std::size_t>(head)] : 1;
      for (int c = 0; c < d; ++c) {
        double mean = 0;
        for (std::int64_t t = 0; t < cache->tokens(); ++t) mean += cache->value(kv, t, c);
        mean /= static_cast<double>(cache->tokens());
        const double y = alpha * exact.y[static_cast<std::size_t>(c)] + (1 - alpha) * mean;
        // alpha, y and the mean are each rounded, the mean once per partial sum of the values.
        ASSERT_NEAR(output.y[static_cast<std::size_t>(head * d + c)], y, exact.tolerance + 1e-5)
            << "head " << head << " component " << c;
      }
    }
  }

  // The share of the mass of softmax(logits) that lies on `positions`; logits over the whole sequence.
  static double mass(const std::vector<double>& logits, const std::vector<std::int64_t>& positions) {
    const double most = *std::max_element(logits.begin(), logits.end());
    double all = 0;
    double part = 0;
    for (const double s : logits) all += std::exp(s - most);
    for (const std::int64_t t : positions) part += std::exp(logits[static_cast<std::size_t>(t)] - most);
    return part / all;
  }

  // q . K / sqrt(d) of a query head with every position.
  std::vector<double> exact_logits(int head) const {
    std::vector<double> logits;
    const double scale = 1 / std::sqrt(static_cast<double>(cache->shape().head_dim));
    for (std::int64_t t = 0; t < cache->tokens(); ++t) {
      logits.push_back(dot(*cache, kv_head(head), t, query(head)) * scale);
    }
    return logits;
  }

  // Returns what a KV head ranks by: the sum over its query heads of the softmax.
  std::vector<double> group_softmax(int kv, const std::vector<std::vector<double>>& logits) const {
    const int group = query_heads / cache->shape().kv_heads;
    std::vector<double> sum(logits[0].size(), 0.0);
    for (int head = kv * group; head < (kv + 1) * group; ++head) {
      const std::vector<double>& s = logits[static_cast<std::size_t>(head)];
      const double most = *std::max_element(s.begin(), s.end());
      double all = 0;
      for (const double x : s) all += std::exp(x - most);
      for (std::size_t t = 0; t < s.size(); ++t) sum[t] += std::exp(s[t] - most) / all;
    }
    return sum;
  }

  offload::Topology topology;
  offload::Arena arena{topology};
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  std::optional<RandomCache> cache;
  int query_heads = 0;
  std::vector<float> q;  // [Hq][d]
};

}  // namespace hayloft::testing
