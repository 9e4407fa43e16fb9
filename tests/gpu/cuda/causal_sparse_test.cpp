#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "gpu/cuda_sparse.h"
#include "tests/gpu/cuda/backends.h"

// Sparse prefill on CUDA against the CPU backend, which chooses by the same rule.
namespace hayloft::testing {
namespace {

struct Ran {
  std::vector<float> out;
  gpu::SparseRead read;
};

class CausalSparse : public CudaTest {
 protected:
  // Queries of neighbours look for much the same; their components fit an f16.
  static std::vector<float> queries(int T, int query_heads, int head_dim) {
    const auto row = static_cast<std::size_t>(query_heads * head_dim);
    std::vector<float> q = normal(static_cast<std::size_t>(T) * row, 3, 0.5);
    const std::vector<float> wanted = normal(row, 4, 2);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = to_float(to_f16(q[i] + wanted[i % row]));
    return q;
  }

  Ran on_cpu(SharedCache& cache, const std::vector<float>& q, int T, int query_heads, const gpu::SparseCausal& how) {
    Ran ran{std::vector<float>(q.size()), {}};
    cpu->attend_causal_sparse(cache.on_cpu(), q.data(), T, query_heads, how, ran.out.data(), ran.read, {});
    return ran;
  }

  static Ran on_cuda(gpu::Backend& backend, SharedCache& cache, const std::vector<float>& q, int T, int query_heads,
                     const gpu::SparseCausal& how) {
    const gpu::Buffer device_q = upload(backend, q);
    const gpu::Buffer out = backend.allocate(q.size() * sizeof(float), backend.stream());
    Ran ran;
    backend.attend_causal_sparse(cache.on_cuda(), device_q.as<float>(), T, query_heads, how, out.as<float>(), ran.read,
                                 backend.stream());
    ran.out = download<float>(backend, out);
    return ran;
  }

  // Blocks of keys are far apart in mass, so that both backends choose the same; outputs are off by the rounding of
  // weights to f16, 2^-11, twice, of values below 5, and what is caught by 2^-10.
  void expect_alike(SharedCache& cache, int T, int group, const gpu::SparseCausal& how) {
    const int query_heads = cache.values().shape().kv_heads * group;
    const std::vector<float> q = queries(T, query_heads, cache.values().shape().head_dim);
    const Ran cuda_ran = on_cuda(*cuda, cache, q, T, query_heads, how), cpu_ran = on_cpu(cache, q, T, query_heads, how);
    EXPECT_TRUE(near(cuda_ran.out, cpu_ran.out, 5 * 2 * std::ldexp(1, -11)));
    EXPECT_EQ(cuda_ran.read.visible, cpu_ran.read.visible);
    EXPECT_EQ(cuda_ran.read.attended, cpu_ran.read.attended);
    ASSERT_EQ(cuda_ran.read.heads.size(), cpu_ran.read.heads.size());
    for (std::size_t h = 0; h < cpu_ran.read.heads.size(); ++h) {
      EXPECT_EQ(cuda_ran.read.heads[h].rows, cpu_ran.read.heads[h].rows);
      EXPECT_NEAR(cuda_ran.read.heads[h].share(), cpu_ran.read.heads[h].share(), std::ldexp(1, -10));
    }
    EXPECT_LT(cpu_ran.read.attended, cpu_ran.read.visible) << "something was left out";
    ASSERT_EQ(cuda_ran.read.choices.size(), cpu_ran.read.choices.size());
    for (std::size_t h = 0; h < cpu_ran.read.choices.size(); ++h) {
      EXPECT_EQ(cuda_ran.read.choices[h].made, cpu_ran.read.choices[h].made);
      EXPECT_EQ(cuda_ran.read.choices[h].whole, cpu_ran.read.choices[h].whole);
    }
  }

  void expect_alike_of(int head_dim, int group) {
    SCOPED_TRACE(fmt::format("d = {}, g = {}", head_dim, group));
    SharedCache cache(*cuda, {.kv_heads = 2,
                              .head_dim = head_dim,
                              .block_tokens = 32,
                              .stored = 512,
                              .tail = 150,
                              .seed = 2,
                              .key_structure = true});
    expect_alike(cache, 70, group, {.mass = 0.9, .density = 0.3, .dense_keys = 64});
  }

  struct Place {
    std::int64_t stored, tail;
    int T, group;
  };
  // In one list of queries and several, whose tokens tiles of rows do not divide; keys in the store, across, and in the
  // tail alone, beginning and ending within a block of keys.
  static constexpr Place places[] = {{512, 150, 300, 3}, {0, 777, 301, 3},  {512, 3, 40, 4},  {700, 0, 33, 2},
                                     {512, 60, 1, 4},    {512, 62, 130, 7}, {96, 500, 514, 1}};

  void expect_alike_at(const Place& place, SharedCache::Host host) {
    const auto& [stored, tail, T, group] = place;
    SCOPED_TRACE(fmt::format("{} stored, {} in the tail, {} queries, g = {}", stored, tail, T, group));
    SharedCache cache(*cuda,
                      {.kv_heads = 2,
                       .head_dim = 32,
                       .block_tokens = 32,
                       .stored = stored,
                       .tail = tail,
                       .seed = 5,
                       .key_structure = true},
                      host);
    expect_alike(cache, T, group, {.mass = 0.9, .density = 0.3, .dense_keys = 40});
  }
};

// Tries every combination.
class CausalSparseSlow : public CausalSparse {};

TEST_F(CausalSparse, EveryHeadDimensionAndGroup) {
  expect_alike_of(8, 1);
  for (const int group : {1, 3, 8}) expect_alike_of(64, group);
  expect_alike_of(512, 3);
  expect_alike_of(80, 3);
  expect_alike_of(128, 8);
  expect_alike_of(256, 1);
}

TEST_F(CausalSparseSlow, EveryHeadDimensionWithEveryGroup) {
  for (const int head_dim : {8, 64, 80, 128, 256, 320, 512}) {
    for (const int group : {1, 3, 8}) expect_alike_of(head_dim, group);
  }
}

TEST_F(CausalSparse, KeysAndQueriesWhereverTheyLie) {
  auto host = SharedCache::Host::pinned;
  for (const Place& place : places) {
    expect_alike_at(place, host);
    host = host == SharedCache::Host::pinned ? SharedCache::Host::pageable : SharedCache::Host::pinned;
  }
}

TEST_F(CausalSparseSlow, KeysAndQueriesWhereverTheyLieInAnyMemory) {
  for (const Place& place : places) {
    for (const auto host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) expect_alike_at(place, host);
  }
}

TEST_F(CausalSparse, ByMassAndByFidelityOfAnyRows) {
  for (const offload::RowFormat rows : {offload::RowFormat::f16, offload::RowFormat::int8, offload::RowFormat::int4}) {
    SCOPED_TRACE(offload::name(rows));
    SharedCache cache(*cuda, {.kv_heads = 1,
                              .head_dim = 32,
                              .block_tokens = 64,
                              .stored = 1024,
                              .tail = 401,
                              .seed = 5,
                              .rows = rows,
                              .key_structure = true});
    expect_alike(cache, 300, 3, {.mass = 0.9, .density = 0, .dense_keys = 256});
    expect_alike(cache, 300, 3, {.fidelity = 0.8, .dense_keys = 256});
  }
}

// Masses of fewer queries at a time choose the same keys.
TEST_F(CausalSparse, ManyQueriesChooseInSeveralLots) {
  const CacheShape shape{
      .kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 512, .tail = 401, .seed = 5, .key_structure = true};
  SharedCache cache(*cuda, shape);
  constexpr int T = 300, group = 8;  // five lists
  const gpu::SparseCausal how{.mass = 0.9, .density = 0.3, .dense_keys = 256};
  const std::vector<float> q = queries(T, 2 * group, 32);
  const Ran together = on_cuda(*cuda, cache, q, T, 2 * group, how);
  constexpr std::uint64_t two_lists = 2 * 2 * 2 * 57 * sizeof(float);  // of 57 blocks, by two sums and KV heads
  ASSERT_EQ(gpu::cuda_lists_at_once(2, group, 913, how, two_lists), 2u);
  const auto small = make_cuda({.mass_bytes = two_lists});
  SharedCache again(*small, shape);
  const Ran apart = on_cuda(*small, again, q, T, 2 * group, how);
  EXPECT_EQ(together.out, apart.out);
  EXPECT_EQ(together.read.attended, apart.read.attended);
  for (std::size_t h = 0; h < together.read.heads.size(); ++h) {
    EXPECT_EQ(together.read.heads[h].rows, apart.read.heads[h].rows);
    EXPECT_EQ(together.read.heads[h].caught, apart.read.heads[h].caught);
  }
}

TEST_F(CausalSparse, WhatReadsEverythingIsExactToTheBit) {
  SharedCache cache(*cuda, {.kv_heads = 2,
                            .head_dim = 64,
                            .block_tokens = 32,
                            .stored = 512,
                            .tail = 150,
                            .seed = 2,
                            .key_structure = true});
  constexpr int T = 200, query_heads = 6;
  const std::vector<float> q = queries(T, query_heads, 64);
  const gpu::Buffer device_q = upload(*cuda, q);
  const gpu::Buffer out = cuda->allocate(q.size() * sizeof(float), cuda->stream());
  cuda->attend_causal(cache.on_cuda(), device_q.as<float>(), T, query_heads, {}, out.as<float>(), cuda->stream());
  const std::vector<float> exact = download<float>(*cuda, out);
  for (const gpu::SparseCausal& how :
       {gpu::SparseCausal{.density = 1, .dense_keys = 64}, gpu::SparseCausal{.dense_keys = 1 << 20}}) {
    const Ran ran = on_cuda(*cuda, cache, q, T, query_heads, how);
    EXPECT_EQ(ran.out, exact);
    EXPECT_EQ(ran.read.attended, ran.read.visible);
    for (const gpu::SparseRead::Head& head : ran.read.heads) EXPECT_EQ(head.share(), 1);
  }
}

}  // namespace
}  // namespace hayloft::testing
