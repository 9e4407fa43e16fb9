#include <gtest/gtest.h>

#include <cmath>

#include "gpu/cpu/key_blocks.h"
#include "gpu/make_backend.h"
#include "offload/host/threads.h"
#include "tests/support/cpu_cache.h"
#include "tests/support/each_target.h"

// Sparse prefill: which blocks of keys a block of queries reads, what it makes of them, and what it says of the loss.
namespace hayloft::gpu {
namespace {

using testing::CacheShape;
using testing::normal;
using testing::RandomCache;

constexpr SparseCausal by_mass{.mass = 0.9, .density = 0, .dense_keys = 256};

struct Chunk {
  Chunk(const CacheShape& shape, int tokens, int query_group, std::uint32_t seed = 3)
      : cache(shape),
        T(tokens),
        group(query_group),
        query_heads(shape.kv_heads * query_group),
        q(normal(static_cast<std::size_t>(tokens * query_heads * shape.head_dim), seed, 0.5)) {
    // Neighbours look for much the same.
    const auto wanted = normal(static_cast<std::size_t>(query_heads * shape.head_dim), seed + 1, 2);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] += wanted[i % wanted.size()];
  }

  std::int64_t first() const { return cache.tokens() - T; }
  int d() const { return cache.shape().head_dim; }
  const float* query(int token, int head) const { return q.data() + (std::int64_t{token} * query_heads + head) * d(); }

  // Softmax of one query over the positions up to its own, in double.
  std::vector<double> masses(int token, int head) const {
    std::vector<double> mass(static_cast<std::size_t>(first() + token + 1));
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t p = 0; p < mass.size(); ++p) {
      for (int i = 0; i < d(); ++i)
        mass[p] += query(token, head)[i] * cache.key(head / group, static_cast<std::int64_t>(p), i);
      largest = std::max(largest, mass[p] /= std::sqrt(d()));
    }
    for (double& each : mass) sum += each = std::exp(each - largest);
    for (double& each : mass) each /= sum;
    return mass;
  }

  RandomCache cache;
  int T, group, query_heads;
  std::vector<float> q;
};

struct Ran {
  std::vector<float> out;
  SparseRead read;
};
Ran run(Chunk& chunk, const SparseCausal& how, int thread_count = 2) {
  const offload::Threads threads(thread_count);
  const auto backend = make_cpu_backend(threads);
  Ran ran{std::vector<float>(chunk.q.size(), -1.0f), {}};
  backend->attend_causal_sparse(chunk.cache.view(), chunk.q.data(), chunk.T, chunk.query_heads, how, ran.out.data(),
                                ran.read, {});
  return ran;
}

// Holds what each block of queries reads of a chunk, head after head.
struct Chosen {
  Chosen(Chunk& chunk, const SparseCausal& how) {
    const CacheView view = chunk.cache.view();
    const KeyBlockChoice choice(view, chunk.q.data(), chunk.query_heads, chunk.first(), how);
    const offload::Threads threads(2);
    for (int head = 0; head < view.kv_heads; ++head) {
      const std::vector<QueryBlock> blocks = query_blocks(head, chunk.T, chunk.group);
      queries.insert(queries.end(), blocks.begin(), blocks.end());
      const auto of_head = choice.choose(blocks, threads, read);
      keys.insert(keys.end(), of_head.begin(), of_head.end());
    }
    for (const QueryBlock& each : queries) before.push_back(key_blocks_before(chunk.first(), each));
  }

  std::vector<QueryBlock> queries;
  std::vector<ChosenKeys> keys;
  std::vector<std::int64_t> before;  // blocks of keys
  SparseRead read;
};

Chunk prose(int group = 3, int kv_heads = 2, int tokens = 300) {
  return {
      {.kv_heads = kv_heads, .head_dim = 32, .block_tokens = 64, .stored = 1024, .tail = 401, .key_structure = true},
      tokens,
      group};
}

TEST(SparseCausal, TheOutputIsThatOfExactAttentionToTheChosenBlocks) {
  test::for_each_target([] {
    for (const int group : {1, 3, 8}) {
      Chunk chunk = prose(group);
      SparseCausal how = by_mass;
      if (group == 8) how.density = 0.3;  // so many heads want all that there is
      const Ran ran = run(chunk, how);
      const Chosen choice(chunk, how);
      int sparse = 0;
      for (std::size_t n = 0; n < choice.queries.size(); ++n) {
        const QueryBlock& block = choice.queries[n];
        const ChosenKeys& chosen = choice.keys[n];
        if (chosen) ++sparse;
        for (const int token : {block.begin, block.begin + block.tokens - 1}) {
          std::vector<std::int64_t> positions;
          if (chosen) {
            for (const std::int32_t b : *chosen) {
              for (int i = 0; i < sparse_key_block; ++i) positions.push_back(std::int64_t{b} * sparse_key_block + i);
            }
          }
          const std::int64_t own = chosen ? choice.before[n] * sparse_key_block : 0;
          for (std::int64_t p = own; p <= chunk.first() + token; ++p) positions.push_back(p);
          for (int g = 0; g < group; ++g) {
            const int head = block.head * group + g;
            const testing::Expected expected = attention(chunk.cache, block.head, chunk.query(token, head), positions);
            for (int i = 0; i < chunk.d(); ++i) {
              const auto at = static_cast<std::size_t>((token * chunk.query_heads + head) * chunk.d() + i);
              ASSERT_NEAR(ran.out[at], expected.y[static_cast<std::size_t>(i)], expected.tolerance)
                  << "group " << group << " token " << token << " head " << head;
            }
          }
        }
      }
      EXPECT_GT(sparse, 0) << "something was left out";
    }
  });
}

// Sums the masses of four tokens of a block of queries, at the same place of its four parts, of eight places.
struct Asked {
  Asked(const Chunk& chunk, const QueryBlock& block, std::size_t blocks, int place) : mass(blocks) {
    const int tokens = std::min(4, block.tokens);
    for (int i = 0; i < tokens; ++i) {
      for (int g = 0; g < chunk.group; ++g) {
        const int token = block.begin + (8 * i + place) * block.tokens / (8 * tokens);
        const auto of = chunk.masses(token, block.head * chunk.group + g);
        for (std::size_t p = 0; p < of.size(); ++p)
          (p / sparse_key_block < blocks ? mass[p / sparse_key_block] : own) += of[p];
      }
    }
    rows = tokens * chunk.group;
  }

  std::vector<double> mass;  // of each block of keys before
  double own = 0;            // of the keys behind
  double rows = 0;
};

TEST(SparseCausal, TheHeaviestBlocksAreChosenUntilTheMassIsThere) {
  Chunk chunk = prose();
  for (const SparseCausal& how : {by_mass, SparseCausal{.mass = 0.1, .fidelity = 0.85, .dense_keys = 256}}) {
    const Chosen choice(chunk, how);
    const double wanted = how.fidelity > 0 ? how.fidelity : how.mass;
    for (std::size_t n = 0; n < choice.queries.size(); ++n) {
      const ChosenKeys& chosen = choice.keys[n];
      ASSERT_TRUE(chosen);
      const auto blocks = static_cast<std::size_t>(choice.before[n]);
      const Asked sampled(chunk, choice.queries[n], blocks, 4);
      const Asked stopping(chunk, choice.queries[n], blocks, how.fidelity > 0 ? 2 : 4);
      const double slack = 1e-4 * sampled.rows;  // single precision: exp and sums of 1,500 terms
      std::vector<bool> taken(blocks);
      for (const std::int32_t b : *chosen) taken[static_cast<std::size_t>(b)] = true;
      EXPECT_TRUE(taken[0]) << "the sinks";
      double caught = stopping.own, heaviest_left = 0;
      std::size_t lightest = 0;  // but for the first block
      for (std::size_t b = 0; b < blocks; ++b) {
        if (taken[b]) caught += stopping.mass[b];
        if (!taken[b]) heaviest_left = std::max(heaviest_left, sampled.mass[b]);
        if (taken[b] && b > 0 && (lightest == 0 || sampled.mass[b] < sampled.mass[lightest])) lightest = b;
      }
      ASSERT_GT(lightest, 0u);
      EXPECT_GE(sampled.mass[lightest], heaviest_left - slack);
      EXPECT_GE(caught, wanted * stopping.rows - slack);
      EXPECT_LT(caught - stopping.mass[lightest], wanted * stopping.rows + slack) << "and no more";
    }
  }
}

TEST(SparseCausal, ADensityTakesThatShareOfTheBlocks) {
  Chunk chunk = prose();
  const Chosen choice(chunk, {.mass = 0.9, .density = 0.25, .dense_keys = 256});
  for (std::size_t n = 0; n < choice.queries.size(); ++n) {
    ASSERT_TRUE(choice.keys[n]);
    EXPECT_EQ(static_cast<double>(choice.keys[n]->size()), std::ceil(0.25 * static_cast<double>(choice.before[n])));
  }
}

TEST(SparseCausal, WhatReadsEverythingIsExactToTheBit) {
  Chunk chunk = prose();
  const offload::Threads threads(2);
  const auto backend = make_cpu_backend(threads);
  std::vector<float> exact(chunk.q.size());
  backend->attend_causal(chunk.cache.view(), chunk.q.data(), chunk.T, chunk.query_heads, {}, exact.data(), {});
  for (const SparseCausal& how : {SparseCausal{.density = 1, .dense_keys = 256}, SparseCausal{.dense_keys = 1 << 20}}) {
    const Ran ran = run(chunk, how);
    EXPECT_EQ(ran.out, exact);
    EXPECT_EQ(ran.read.attended, ran.read.visible);
    for (const SparseRead::Head& head : ran.read.heads) EXPECT_EQ(head.share(), 1);
  }
}

TEST(SparseCausal, NothingDependsOnTheNumberOfThreads) {
  Chunk chunk = prose(4, 1, 700);
  const Ran one = run(chunk, by_mass, 1), two = run(chunk, by_mass, 2);
  EXPECT_EQ(one.out, two.out);
  EXPECT_EQ(one.read.visible, two.read.visible);
  EXPECT_EQ(one.read.attended, two.read.attended);
  ASSERT_EQ(one.read.heads.size(), 4u);
  for (std::size_t h = 0; h < 4; ++h) {
    EXPECT_EQ(one.read.heads[h].rows, two.read.heads[h].rows);
    EXPECT_EQ(one.read.heads[h].caught, two.read.heads[h].caught);
  }
}

TEST(SparseCausal, SaysWhatOtherQueriesCatch) {
  constexpr std::size_t group = 4;
  Chunk chunk = prose(group, 1, 640);
  const Ran ran = run(chunk, by_mass);
  const Chosen choice(chunk, by_mass);
  std::vector<double> caught(group);
  std::vector<std::uint64_t> rows(group);
  std::uint64_t visible = 0;
  for (int t = 0; t < chunk.T; ++t) visible += group * static_cast<std::uint64_t>(chunk.first() + t + 1);
  for (std::size_t n = 0; n < choice.queries.size(); ++n) {
    const QueryBlock& block = choice.queries[n];
    const ChosenKeys& chosen = choice.keys[n];
    if ((chunk.first() + block.begin) / block.tokens % 8 != 0) continue;  // one block in eight is measured
    for (int i = 0; i < 4; ++i) {
      for (std::size_t g = 0; g < group; ++g) {
        const auto of = chunk.masses(block.begin + i * block.tokens / 4, static_cast<int>(g));
        ++rows[g];
        for (std::size_t p = 0; p < of.size(); ++p) {
          const auto b = static_cast<std::int64_t>(p) / sparse_key_block;
          const bool read = !chosen || b >= choice.before[n] ||
                            std::ranges::find(*chosen, static_cast<std::int32_t>(b)) != chosen->end();
          if (read) caught[g] += of[p];
        }
      }
    }
  }
  EXPECT_EQ(ran.read.visible, visible);
  EXPECT_LT(ran.read.attended, visible);
  for (std::size_t g = 0; g < group; ++g) {
    ASSERT_GT(rows[g], 0u);
    EXPECT_EQ(ran.read.heads[g].rows, rows[g]);
    EXPECT_NEAR(ran.read.heads[g].share(), caught[g] / static_cast<double>(rows[g]), 1e-4);
  }
}

}  // namespace
}  // namespace hayloft::gpu
