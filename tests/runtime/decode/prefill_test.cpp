#include "runtime/decode/prefill.h"
#include "gpu/make_backend.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "offload/error.h"
#include "runtime/decode/prefill_order.h"
#include "runtime/decode/session.h"
#include "runtime/plan/plan.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/golden_models.h"

namespace hayloft::runtime {
namespace {

using hayloft::testing::attention;
using hayloft::testing::dot;
using hayloft::testing::Expected;
using hayloft::testing::normal;
using hayloft::testing::RandomCache;
using hayloft::testing::range;

PrefillOptions windowed(std::int64_t window, std::int64_t sinks) {
  return {.kind = PrefillOptions::Kind::window, .window = window, .sinks = sinks};
}
PrefillOptions topk(std::int64_t window, Budget k) {
  return {.kind = PrefillOptions::Kind::topk, .window = window, .k = k};
}

// The sets of runtime/decode/prefill.h, written down once more in the plainest way.
std::vector<std::int64_t> attended(const RandomCache& cache, int head, const float* q, std::int64_t p,
                                   const PrefillOptions& options) {
  std::vector<std::int64_t> positions;
  if (options.kind == PrefillOptions::Kind::window) {
    for (std::int64_t j = 0; j <= p; ++j) {
      if (j < options.sinks || j > p - options.window) positions.push_back(j);
    }
  } else if (options.kind == PrefillOptions::Kind::topk) {
    const std::int64_t L = std::min(cache.shape().stored, std::max<std::int64_t>(0, p + 1 - options.window));
    positions = range(0, L);
    std::vector<double> score;
    for (std::int64_t j = 0; j < L; ++j) score.push_back(dot(cache, head, j, q));
    std::sort(positions.begin(), positions.end(),
              [&](auto a, auto b) { return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)]; });
    positions.resize(static_cast<std::size_t>(std::min(L, options.k.of(p + 1))));
    for (std::int64_t j = L; j <= p; ++j) positions.push_back(j);
  } else {
    positions = range(0, p + 1);
  }
  return positions;
}

class Prefill : public ::testing::Test {
 protected:
  std::vector<float> attend(RandomCache& cache, const std::vector<float>& q, int T, int query_heads,
                            const PrefillOptions& options) {
    std::vector<float> out(q.size(), -1.0f);
    const gpu::CacheView view = cache.view();
    const offload::Topology topology;
    offload::Arena arena(topology);
    const offload::Store none(arena, {1, view.kv_heads, view.head_dim, 64});
    const LayerStep at{*backend, {}, 0, view, none, query_heads, T, scratch};
    gpu::SparseRead read;
    attend_prefill(at, q.data(), T, options, *local_attender(), out.data(), read);
    return out;
  }

  void expect_oracle(RandomCache& cache, int T, int group, const PrefillOptions& options, int every = 1) {
    SCOPED_TRACE(prefill_label(options));
    const int d = cache.shape().head_dim;
    const int query_heads = group * cache.shape().kv_heads;
    const auto q = normal(static_cast<std::size_t>(T * query_heads * d), 5);
    const auto y = attend(cache, q, T, query_heads, options);
    for (int t = 0; t < T; t += every) {
      for (int h = 0; h < query_heads; ++h) {
        const std::int64_t at = static_cast<std::int64_t>(t * query_heads + h) * d;
        const auto positions = attended(cache, h / group, q.data() + at, cache.tokens() - T + t, options);
        const Expected expected = attention(cache, h / group, q.data() + at, positions);
        for (int i = 0; i < d; ++i) {
          ASSERT_NEAR(y[static_cast<std::size_t>(at + i)], expected.y[static_cast<std::size_t>(i)], expected.tolerance)
              << "token " << t << " of " << T << ", query head " << h;
        }
      }
    }
  }

  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  MethodScratch scratch;
};

TEST_F(Prefill, WindowEqualsTheOracleForSinksInTheStoreInTheTailAndInTheWindow) {
  for (const std::int64_t stored : {0, 192}) {
    for (const int T : {1, 3, 90}) {
      RandomCache cache({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = stored, .tail = T + 7});
      for (const std::int64_t window : {1, 20, 150, 4096}) {
        for (const std::int64_t sinks : {0, 1, 4, 70, 5000}) expect_oracle(cache, T, 2, windowed(window, sinks), 7);
      }
    }
  }
}

TEST_F(Prefill, WindowOfManyKeysForFewQueriesIsSplitAndMerged) {
  RandomCache cache({.head_dim = 16, .block_tokens = 4096, .stored = 16384, .tail = 100});
  for (const std::int64_t sinks : {4, 6000}) expect_oracle(cache, 3, 2, windowed(9000, sinks));
}

TEST_F(Prefill, TopKEqualsTheOracleOverItsSets) {
  RandomCache cache({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 256, .tail = 70});
  for (const std::int64_t window : {1, 64, 200, 300, 4096}) {
    for (const Budget k : {Budget{1, 0}, Budget{37, 0}, Budget{0, 0.1}, Budget{5000, 0}}) {
      expect_oracle(cache, 60, 2, topk(window, k), 5);
    }
  }
}

TEST_F(Prefill, WhatLeavesNothingOutEqualsExact) {
  RandomCache cache({.head_dim = 64, .block_tokens = 64, .stored = 256, .tail = 50});
  const auto q = normal(40 * 4 * 64, 6);
  const auto exact = attend(cache, q, 40, 4, {});
  EXPECT_EQ(attend(cache, q, 40, 4, windowed(306, 0)), exact);
  EXPECT_EQ(attend(cache, q, 40, 4, topk(1, {0, 1.0})), exact);
  EXPECT_NE(attend(cache, q, 40, 4, windowed(200, 4)), exact);
  EXPECT_NE(attend(cache, q, 40, 4, topk(1, {20, 0})), exact);
}

// A small model all of whose layers are global, so that what the first attends to shows in the keys of the next.
class PrefillOfAModel : public ::testing::Test {
 protected:
  std::vector<float> logits(const PrefillOptions& prefill, int chunk) {
    SessionOptions options;
    options.cache = {.block_tokens = 16, .window = 8};
    options.chunk_tokens = chunk;
    options.prefill = prefill;
    Session session(model, arena, options);
    session.append(std::span(tokens).first(tokens.size() - 1));
    return session.step(tokens.back());
  }

  // As many f32 roundings, and f16 ones of keys that lie on a tie, as tests/runtime/decode/session_test.cpp allows for.
  static bool close(const std::vector<float>& a, const std::vector<float>& b) {
    float largest = 0;
    float difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::fabs(a[i]));
      difference = std::max(difference, std::fabs(a[i] - b[i]));
    }
    return difference <= 1000 * std::numeric_limits<float>::epsilon() * largest;
  }

  static std::string digest(const Session& session) {
    const std::vector<offload::SnapshotTail> tails = session.cache().tails();
    std::vector<offload::TailImage> images;
    for (const auto& tail : tails) images.push_back(tail.image());
    std::vector<offload::LayerView> layers;
    const offload::Store& store = session.cache().store();
    for (int i = 0; i < store.shape().layers; ++i) layers.push_back(store.layer(i));
    return offload::content_digest({}, layers, images);
  }

  PrefillOfAModel() {
    std::mt19937 random(8);
    for (auto& token : tokens) {
      token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(model.config().vocab_size));
    }
  }

  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  Model model{goldens / "llama", *backend};
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(150);
};

TEST_F(PrefillOfAModel, WithAWindowOrAKOfEverythingAnswersAsExactAndWithASmallOneDoesNot) {
  ASSERT_GE(model.config().global_layers(), 2);
  const auto exact = logits({}, 24);
  EXPECT_TRUE(close(logits(windowed(150, 0), 24), exact));
  EXPECT_TRUE(close(logits(topk(1, {150, 0}), 24), exact));
  EXPECT_FALSE(close(logits(windowed(10, 2), 24), exact));
  EXPECT_FALSE(close(logits(topk(10, {1, 0}), 24), exact));
}

TEST_F(PrefillOfAModel, ByWindowDoesNotDependOnTheChunkSize) {
  const auto reference = logits(windowed(20, 3), 1);
  for (const int chunk : {7, 16, 33, 1000}) EXPECT_TRUE(close(logits(windowed(20, 3), chunk), reference)) << chunk;
}

TEST_F(PrefillOfAModel, ByTopKDoesNotDependOnTheChunkSizeWhenTheWindowCoversChunkBlockAndTail) {
  const PrefillOptions prefill = topk(33 + 16 + 8, {5, 0});
  const auto reference = logits(prefill, 1);
  for (const int chunk : {7, 16, 33}) EXPECT_TRUE(close(logits(prefill, chunk), reference)) << chunk;
  EXPECT_FALSE(close(logits({}, 1), reference)) << "five positions are not everything";
}

TEST_F(PrefillOfAModel, LayerByLayerIsTheSameToTheBitAsChunkByChunk) {
  for (const char* name : {"llama", "mistral-sliding", "smollm3", "gemma4", "gemma4-moe"}) {
    SCOPED_TRACE(name);
    const Model any(goldens / name, *backend);
    for (PrefillOptions prefill : {PrefillOptions{}, windowed(20, 3), topk(10, {5, 0})}) {
      SCOPED_TRACE(prefill_label(prefill));
      const auto read = [&](PrefillOptions::Order order) {
        SessionOptions options;
        options.cache = {.block_tokens = 16, .window = 8};
        options.chunk_tokens = 24;
        options.prefill = prefill;
        options.prefill.order = order;
        Session session(any, arena, options);
        session.append(std::span(tokens).first(50));  // more behind something: not only from the start
        session.append(std::span(tokens).subspan(50));
        return session;
      };
      const Session by_chunk = read(PrefillOptions::Order::chunk);
      const Session by_layer = read(PrefillOptions::Order::layer);
      EXPECT_EQ(by_layer.tokens(), by_chunk.tokens());
      EXPECT_EQ(by_layer.cache().spilled_bytes(), by_chunk.cache().spilled_bytes());
      EXPECT_EQ(digest(by_layer), digest(by_chunk));
      EXPECT_EQ(by_layer.fork().step(3), by_chunk.fork().step(3));
    }
  }
}

TEST_F(PrefillOfAModel, LayerByLayerAddsAllOfTheTextOrNothing) {
  struct Stopped {};
  SessionOptions options;
  options.cache = {.block_tokens = 16, .window = 8};
  options.chunk_tokens = 24;
  options.prefill.order = PrefillOptions::Order::layer;
  Session session(model, arena, options);
  session.append(std::span(tokens).first(50));
  const std::string before = digest(session);
  const std::uint64_t memory = arena.used_bytes();
  EXPECT_THROW(session.append(std::span(tokens).subspan(50),
                              [](std::int64_t done, std::int64_t total) {
                                if (done > total / 2) throw Stopped();
                              }),
               Stopped);
  EXPECT_EQ(session.tokens(), 50);
  EXPECT_EQ(digest(session), before);
  EXPECT_EQ(arena.used_bytes(), memory);
}

TEST(PrefillOrderTest, IsByWhatMovesFewerBytesAndByChunksWhereNothingMoves) {
  ModelConfig config = plan::config_of_shape({32, 32, 8, 128, 0, 0, 0});
  const SessionOptions options;
  EXPECT_EQ(prefill_order(config, options, 1 << 20, false).order, PrefillOptions::Order::chunk);
  // 8192 tokens: 3 chunks read what was stored before them, less than 16 MiB a layer. 1M tokens: 512 chunks read half
  // of 4 GiB a layer on average, and the hidden states of a layer are 32 GiB, in and out.
  EXPECT_EQ(prefill_order(config, options, 8192, true).order, PrefillOptions::Order::chunk);
  const PrefillOrder million = prefill_order(config, options, 1 << 20, true);
  EXPECT_EQ(million.order, PrefillOptions::Order::layer);
  EXPECT_NE(million.why.find("GiB"), std::string::npos) << million.why;
  SessionOptions forced;
  forced.prefill.order = PrefillOptions::Order::chunk;
  EXPECT_EQ(prefill_order(config, forced, 1 << 20, true).order, PrefillOptions::Order::chunk);

  // Counted once more in the plainest way: every chunk reads the rows of all whole blocks before it.
  std::uint64_t rows = 0;
  for (std::int64_t at = 0; at < 20000; at += 2048) {
    for (std::int64_t block = 4096; block <= at - 256; block += 4096) rows += 4096;
  }
  const PrefillTraffic traffic = prefill_traffic(config, options, 20000, {}, {});
  EXPECT_EQ(traffic.chunk_major, static_cast<double>(rows * 512 * 8 * 31))
      << "the last layer's attention is not needed";
  EXPECT_EQ(traffic.layer_major, 20000.0 * 4096 * 4 * 63);

  // Sparse reading passes over them three times, from the first chunk on that has something to choose.
  SessionOptions sparse;
  sparse.prefill.kind = PrefillOptions::Kind::sparse;
  EXPECT_EQ(prefill_traffic(config, sparse, 20000, {}, {}).chunk_major, 3 * traffic.chunk_major);

  // The longest that plans take: a block of rows more with every other chunk, 2^20 chunks of 2^11 tokens.
  const double longest = 0x1p31 * 0x1p20 / 2 * 512 * 8 * 31;
  EXPECT_NEAR(prefill_traffic(config, options, std::int64_t{1} << 31, {}, {}).chunk_major, longest, 1e-4 * longest);

  // Each of ten chunks brings the experts that the device does not keep, a layer at a time once if it has room for
  // that.
  ModelConfig mixture = config;
  mixture.experts.count = 128;
  WeightSizes sizes;
  sizes.mixture_bytes = 128'000'000;
  for (const int ring : {8, 136}) {
    const PrefillTraffic with = prefill_traffic(mixture, options, 20000, sizes, {ExpertPlace::link, 28, ring, false});
    EXPECT_EQ(with.chunk_major - traffic.chunk_major, 10e8);
    EXPECT_EQ(with.layer_major - traffic.layer_major, ring == 8 ? 10e8 : 1e8);
  }
}

TEST_F(PrefillOfAModel, CanChangeBetweenAContextAndItsQuestion) {
  SessionOptions options;
  options.cache = {.block_tokens = 16, .window = 8};
  const auto last = std::span(tokens).last(50);
  const auto answer = [&](const PrefillOptions& question) {
    options.prefill = windowed(20, 3);
    Session session(model, arena, options);
    session.append(std::span(tokens).first(100));
    session.set_prefill(question);
    session.append(last.first(49));
    return session.step(last.back());
  };
  EXPECT_EQ(answer(windowed(20, 3)), answer(windowed(20, 3)));
  EXPECT_FALSE(close(answer({}), answer(windowed(20, 3))));
}

TEST_F(PrefillOfAModel, RefusesOptionsOutOfRangeByName) {
  const auto message = [&](const PrefillOptions& prefill) -> std::string {
    try {
      logits(prefill, 24);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(windowed(0, 4)).find("--prefill-window 0"), std::string::npos);
  EXPECT_NE(message(windowed(8, -1)).find("--prefill-sinks -1"), std::string::npos);
  EXPECT_NE(message(topk(8, {0, 1.5})).find("--prefill-k 150%"), std::string::npos);
}

}  // namespace
}  // namespace hayloft::runtime
