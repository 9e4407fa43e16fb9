#include "runtime/context/foreign_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu/make_backend.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/refusal.h"

// The cache of a model that someone else computes.
namespace hayloft::runtime {
namespace {

using hayloft::testing::normal;
using test::refuses;

// Layers 0 and 2 are global; layer 1 never comes here.
ModelConfig shape() {
  ModelConfig config;
  config.layers = 3;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.sliding_window = {0, 8, 0};
  return config;
}

class ForeignCacheTest : public ::testing::Test {
 protected:
  struct Tokens {
    std::vector<float> q, k, v;  // f16 values, so that the cache keeps them as they are
  };
  Tokens draw(int T, std::uint32_t seed) const {
    const auto exact = [&](int heads, std::uint32_t which) {
      std::vector<float> values = normal(static_cast<std::size_t>(T * heads * config.head_dim), 10 * seed + which);
      for (float& x : values) x = to_float(to_f16(x));
      return values;
    };
    return {exact(config.query_heads, 1), exact(config.kv_heads, 2), exact(config.kv_heads, 3)};
  }

  std::vector<float> attend(ForeignCache& cache, int layer, const Tokens& tokens, int T) const {
    std::vector<float> out(tokens.q.size());
    cache.attend(layer, tokens.q.data(), tokens.k.data(), tokens.v.data(), T, out.data());
    return out;
  }

  // Exact attention of the last token over all that were given to a layer.
  std::vector<float> expected(const std::vector<Tokens>& given) const {
    const int d = config.head_dim;
    std::vector<float> out;
    for (int head = 0; head < config.query_heads; ++head) {
      const float* const q = given.back().q.data() + given.back().q.size() - (config.query_heads - head) * d;
      std::vector<double> sum(static_cast<std::size_t>(d));
      double mass = 0;
      for (const Tokens& each : given) {
        for (std::size_t at = 0; at < each.k.size(); at += static_cast<std::size_t>(config.kv_heads * d)) {
          const auto row = static_cast<std::ptrdiff_t>(at) + head / 2 * d;
          double score = 0;
          for (int c = 0; c < d; ++c) score += static_cast<double>(q[c]) * each.k[static_cast<std::size_t>(row + c)];
          const double weight = std::exp(score / std::sqrt(d));
          mass += weight;
          for (int c = 0; c < d; ++c)
            sum[static_cast<std::size_t>(c)] += weight * each.v[static_cast<std::size_t>(row + c)];
        }
      }
      for (const double x : sum) out.push_back(static_cast<float>(x / mass));
    }
    return out;
  }

  ModelConfig config = shape();
  offload::Topology topology;
  offload::Threads threads{1};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  CacheOptions options{16, offload::ColumnFormat::f16, 8};
};

TEST_F(ForeignCacheTest, EveryTokenAttendsToAllBeforeIt) {
  ForeignCache cache(*backend, arena, config, options);
  std::vector<Tokens> first, third;
  for (const int T : {50, 1, 1, 30, 1}) {
    const auto seed = static_cast<std::uint32_t>(first.size());
    first.push_back(draw(T, 2 * seed + 1));
    third.push_back(draw(T, 2 * seed + 2));
    for (const auto& [layer, given] : {std::pair(0, &first), std::pair(2, &third)}) {
      const std::vector<float> out = attend(cache, layer, given->back(), T);
      const std::vector<float> last = expected(*given);
      for (std::size_t i = 0; i < last.size(); ++i) {
        // Sums of fewer than a hundred products of values of about 1, in f32.
        ASSERT_NEAR(out[out.size() - last.size() + i], last[i], 1e-5) << "T " << T << " layer " << layer;
      }
    }
  }
  EXPECT_EQ(cache.tokens(0), 83);
  EXPECT_EQ(cache.settled().tokens(2), 83);
  EXPECT_GT(cache.settled().store().tokens(0), 0);
}

TEST_F(ForeignCacheTest, TheLastTokenAttendsAsASessionWouldDecodeIt) {
  const SharedMethod sparq = make_method(parse_method("sparq:r=4:k=16", {}), config.head_dim);
  ForeignCache cache(*backend, arena, config, options);
  cache.set_method(sparq);
  const Tokens prompt = draw(90, 1);
  attend(cache, 0, prompt, 90);
  attend(cache, 2, prompt, 90);
  const Tokens next = draw(1, 2);
  const std::vector<float> made = attend(cache, 0, next, 1);

  Cache own(*backend, arena, config, options);
  own.append(0, prompt.k.data(), prompt.v.data(), 89);
  own.commit();
  own.append(0, prompt.k.data() + 89 * 32, prompt.v.data() + 89 * 32, 1);
  own.commit();
  own.append(0, next.k.data(), next.v.data(), 1);
  MethodScratch scratch;
  const gpu::CacheView view = own.view(0);
  std::vector<float> wanted(made.size());
  const LayerStep at{*backend, backend->stream(), 0, view, own.store(), config.query_heads, 1, scratch};
  sparq->attend({at, next.q.data(), wanted.data(), *local_attender()});
  EXPECT_EQ(made, wanted);
  EXPECT_LT(cache.counters().rows_fetched, 3u * 90 * 2);
  EXPECT_EQ(cache.approximate_tokens().methods, std::set<std::string>{method_label(sparq->options())});
  EXPECT_EQ(cache.approximate_tokens().first, 89) << "the last of the prompt";
}

TEST_F(ForeignCacheTest, MethodsThatKeepSomethingSeeThePrompt) {
  for (const char* const name : {"h2o:k=32", "pages:k=32:page=16", "lowrank:r=4:k=16", "ann:k=16"}) {
    ForeignCache cache(*backend, arena, config, options);
    cache.set_method(make_method(parse_method(name, {}), config.head_dim));
    const Tokens prompt = draw(200, 1);
    for (const int layer : {0, 2}) attend(cache, layer, prompt, 200);
    for (std::uint32_t step = 2; step < 30; ++step) {
      for (const int layer : {0, 2}) {
        for (const float x : attend(cache, layer, draw(1, step), 1)) ASSERT_TRUE(std::isfinite(x)) << name;
      }
    }
    EXPECT_EQ(cache.tokens(2), 228);
  }
}

TEST_F(ForeignCacheTest, APassThatEndedHalfwayIsNoticed) {
  ForeignCache cache(*backend, arena, config, options);
  const Tokens one = draw(1, 1);
  for (const int layer : {0, 2}) attend(cache, layer, one, 1);
  attend(cache, 0, one, 1);
  EXPECT_TRUE(refuses([&] { attend(cache, 0, one, 1); }, {"not whole", "layer 2"}));
  EXPECT_TRUE(refuses([&] { cache.settled(); }, {"not whole"}));

  offload::Arena small(topology, {.budget_bytes = 1 << 14});
  ForeignCache full(*backend, small, config, options);
  const Tokens many = draw(200, 1);
  EXPECT_TRUE(refuses([&] { attend(full, 0, many, 200); }, {"--host-memory"}));
  EXPECT_TRUE(refuses([&] { attend(full, 0, one, 1); }, {"not whole"}));
}

}  // namespace
}  // namespace hayloft::runtime
