#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/decode/model.h"
#include "runtime/decode/session.h"

// A tiny random model that has read some tokens, and exact attention in double precision: what the tests of the audit
// and of the attention statistics share.
namespace hayloft::testing {

inline std::vector<std::int32_t> random_tokens(int count, int vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab));
  return tokens;
}

class TinyRun {
 public:
  static constexpr int context = 150;

  // `method` watches the context being read, as those that keep a state of it must.
  explicit TinyRun(const std::string& model_name, offload::ColumnFormat columns = offload::ColumnFormat::f16,
                   std::string_view method = "dense")
      : model(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/models" / model_name, *backend),
        session(model, arena, options(columns)),
        tokens(random_tokens(400, model.config().vocab_size, 7)) {
    session.attach_method(*make(method));
    session.append(std::span(tokens).first(context));
  }

  // Decodes `steps` of the tokens behind the context and returns their logits, one after another.
  std::vector<float> decode(runtime::Session& of, std::string_view method, int steps) {
    of.set_method(make(method));
    std::vector<float> all;
    for (int i = 0; i < steps; ++i) {
      const std::vector<float> logits = of.step(tokens[static_cast<std::size_t>(of.tokens())]);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  runtime::SharedMethod make(std::string_view method) const {
    return runtime::make_method(runtime::parse_method(method, {}), model.config().head_dim);
  }

  static runtime::SessionOptions options(offload::ColumnFormat columns) {
    runtime::SessionOptions options;
    options.cache = {.block_tokens = 16, .columns = columns, .window = 8};
    return options;
  }

  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  runtime::Model model;
  runtime::Session session;
  std::vector<std::int32_t> tokens;
};

// The [K | V] row of a position; on the CPU backend device memory is host memory.
inline const f16* row_of(const gpu::CacheView& cache, int head, std::int64_t position) {
  if (position < cache.store.tokens) return cache.store.row(head, position, nullptr);
  const std::int64_t slot = cache.tail.first + position - cache.tail.position;
  return cache.tail.rows + (head * cache.tail.capacity + slot) * 2 * cache.head_dim;
}

// The exact attention weights of one query head over every position; the sink has what they lack of one.
inline std::vector<double> exact_weights(const gpu::CacheView& cache, int query_heads, const float* q, int query_head) {
  const int d = cache.head_dim;
  const int head = query_head / (query_heads / cache.kv_heads);
  std::vector<double> weights;
  double sum = 0;
  for (std::int64_t t = 0; t < cache.tokens(); ++t) {
    const f16* const k = row_of(cache, head, t);
    double logit = 0;
    for (int i = 0; i < d; ++i) logit += double{q[query_head * d + i]} * to_float(k[i]);
    weights.push_back(std::exp(logit / std::sqrt(double{static_cast<double>(d)})));
    sum += weights.back();
  }
  if (cache.sinks != nullptr) sum += std::exp(double{cache.sinks[query_head]});
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Positions by falling weight, ties to the smaller one.
inline std::vector<std::int64_t> by_weight(const std::vector<double>& weights) {
  std::vector<std::int64_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return weights[static_cast<std::size_t>(a)] > weights[static_cast<std::size_t>(b)];
  });
  return order;
}

}  // namespace hayloft::testing
