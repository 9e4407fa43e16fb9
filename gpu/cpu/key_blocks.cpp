#include "gpu/cpu/key_blocks.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/elementwise.h"
#include "gpu/cpu/rows.h"
#include "gpu/cpu/scratch.h"
#include "index/scan/blas_places.h"
#include "index/scan/exact_search.h"

namespace hayloft::gpu {
namespace {

constexpr int kSampled = 4;        // tokens of a block of queries that are scored
constexpr int kMeasuredEvery = 8;  // one block of queries in so many is measured by as many other tokens
constexpr int kScoredKeys = 256;   // keys that are scored at a time, a multiple of the block

// Above this share of the blocks all are read: it costs as much, and loses nothing.
constexpr double kDenseShare = 0.75;

std::vector<int> sampled_tokens(const QueryBlock& queries) {
  std::vector<int> tokens;
  const int count = std::min(kSampled, queries.tokens);
  for (int i = 0; i < count; ++i) tokens.push_back(queries.begin + (2 * i + 1) * queries.tokens / (2 * count));
  return tokens;
}

// Others than the sampled ones, as far as there are others.
std::vector<int> measured_tokens(const QueryBlock& queries) {
  std::vector<int> tokens;
  const int count = std::min(kSampled, queries.tokens);
  for (int i = 0; i < count; ++i) tokens.push_back(queries.begin + i * queries.tokens / count);
  return tokens;
}

}  // namespace

KeyBlockChoice::Masses KeyBlockChoice::masses(const QueryBlock& queries, const std::vector<int>& tokens) const {
  const index::BlasPlace place;
  const int d = cache_.head_dim;
  const int group = query_heads_ / cache_.kv_heads;
  const int rows = static_cast<int>(tokens.size()) * group;
  const std::int64_t blocks = blocks_before(queries);
  const std::int64_t own = blocks * sparse_key_block;
  const std::int64_t end = first_ + queries.begin + queries.tokens;

  float* const scores = scratch(static_cast<std::size_t>(rows) * (kScoredKeys + d) + kScoredKeys * d);
  float* const q = scores + static_cast<std::int64_t>(rows) * kScoredKeys;
  float* const keys = q + static_cast<std::int64_t>(rows) * d;
  const float scale = index::exact_scale(d);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const std::int64_t token = tokens[t];
    const float* const from = q_ + (token * query_heads_ + queries.head * group) * d;
    for (int i = 0; i < group * d; ++i) q[static_cast<std::int64_t>(t) * group * d + i] = from[i] * scale;
  }
  const auto score = [&](std::int64_t from, int n) {
    f16 space[2 * 256];
    for (int i = 0; i < n; ++i) widen(row_of(cache_, queries.head, from + i, space), DType::f16, d, keys + i * d);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, d, 1, q, d, keys, d, 0, scores, kScoredKeys);
  };

  Masses found;
  found.rows = rows;
  found.blocks.resize(static_cast<std::size_t>(rows * blocks));
  found.own.resize(static_cast<std::size_t>(rows));
  std::vector<float> max(static_cast<std::size_t>(rows * blocks));
  for (std::int64_t key = 0; key < own; key += kScoredKeys) {
    const int n = static_cast<int>(std::min<std::int64_t>(kScoredKeys, own - key));
    score(key, n);
    const std::int64_t block = key / sparse_key_block;
    softmax_blocks(
        {scores, rows, n, kScoredKeys, sparse_key_block, blocks, max.data() + block, found.blocks.data() + block});
  }
  // The keys behind the blocks, of which each query sees those up to its own.
  std::vector<double> own_sum(static_cast<std::size_t>(rows));
  std::vector<float> own_max(static_cast<std::size_t>(rows), -std::numeric_limits<float>::infinity());
  for (std::int64_t key = own; key < end; key += kScoredKeys) {
    const int n = static_cast<int>(std::min<std::int64_t>(kScoredKeys, end - key));
    score(key, n);
    for (int row = 0; row < rows; ++row) {
      const float* const s = scores + static_cast<std::int64_t>(row) * kScoredKeys;
      const std::int64_t seen = first_ + tokens[static_cast<std::size_t>(row / group)] + 1 - key;
      const auto count = static_cast<int>(std::clamp<std::int64_t>(seen, 0, n));
      if (count == 0) continue;
      const float largest = std::max(own_max[static_cast<std::size_t>(row)], *std::max_element(s, s + count));
      double& sum = own_sum[static_cast<std::size_t>(row)];
      if (sum > 0) sum *= std::exp(own_max[static_cast<std::size_t>(row)] - largest);
      own_max[static_cast<std::size_t>(row)] = largest;
      for (int i = 0; i < count; ++i) sum += std::exp(s[i] - largest);
    }
  }
  for (int row = 0; row < rows; ++row) {
    float* const mass = found.blocks.data() + row * blocks;
    const float* const top = max.data() + row * blocks;
    float& behind = found.own[static_cast<std::size_t>(row)];
    const float own_top = own_max[static_cast<std::size_t>(row)];
    const float largest = std::max(own_top, blocks == 0 ? own_top : *std::max_element(top, top + blocks));
    double sum = own_sum[static_cast<std::size_t>(row)] * std::exp(own_top - largest);
    behind = static_cast<float>(sum);
    for (std::int64_t b = 0; b < blocks; ++b) sum += mass[b] *= std::exp(top[b] - largest);
    const auto share = static_cast<float>(1 / sum);
    behind *= share;
    for (std::int64_t b = 0; b < blocks; ++b) mass[b] *= share;
  }
  return found;
}

std::vector<std::int32_t> KeyBlockChoice::heaviest(const Masses& sampled, std::int64_t blocks) const {
  std::vector<double> mass(static_cast<std::size_t>(blocks));
  for (int row = 0; row < sampled.rows; ++row) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      mass[static_cast<std::size_t>(b)] +=
          static_cast<double>(sampled.blocks[static_cast<std::size_t>(row * blocks + b)]);
    }
  }
  for (double& each : mass) each = std::isfinite(each) ? each : 0;  // a query that is not finite fails its token later
  std::vector<std::int32_t> order(static_cast<std::size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  // The first block holds the sinks, on which attention rests that has nowhere else to go.
  std::sort(order.begin() + 1, order.end(), [&](std::int32_t a, std::int32_t b) {
    const double x = mass[static_cast<std::size_t>(a)], y = mass[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });

  double caught = std::accumulate(sampled.own.begin(), sampled.own.end(), 0.0);
  std::size_t taken = 0;
  const auto enough = [&] {
    if (how_.density > 0) return static_cast<double>(taken) >= how_.density * static_cast<double>(blocks);
    return caught >= how_.mass * sampled.rows;
  };
  do {
    caught += mass[static_cast<std::size_t>(order[taken])];
    ++taken;
  } while (taken < order.size() && !enough());
  order.resize(taken);
  std::sort(order.begin(), order.end());
  return order;
}

void KeyBlockChoice::measure(const QueryBlock& queries, const std::vector<std::int32_t>* chosen,
                             SparseRead& read) const {
  const int group = query_heads_ / cache_.kv_heads;
  const std::int64_t blocks = blocks_before(queries);
  const std::vector<int> tokens = measured_tokens(queries);
  const auto head = [&](int row) -> SparseRead::Head& {
    return read.heads[static_cast<std::size_t>(queries.head * group + row % group)];
  };
  if (chosen == nullptr) {
    for (int row = 0; row < static_cast<int>(tokens.size()) * group; ++row) {
      ++head(row).rows;
      head(row).caught += static_cast<std::uint64_t>(1 / SparseRead::unit);
    }
    return;
  }
  const Masses all = masses(queries, tokens);
  for (int row = 0; row < all.rows; ++row) {
    double caught = static_cast<double>(all.own[static_cast<std::size_t>(row)]);
    for (const std::int32_t b : *chosen)
      caught += static_cast<double>(all.blocks[static_cast<std::size_t>(row * blocks + b)]);
    ++head(row).rows;
    head(row).caught += static_cast<std::uint64_t>(caught > 0 ? std::min(caught, 1.0) / SparseRead::unit : 0);
  }
}

std::optional<std::vector<std::int32_t>> KeyBlockChoice::choose(const QueryBlock& queries, SparseRead& read) const {
  const std::int64_t blocks = blocks_before(queries);
  const std::int64_t before = first_ + queries.begin;
  std::optional<std::vector<std::int32_t>> chosen;
  if (before >= how_.dense_keys) {
    chosen = heaviest(masses(queries, sampled_tokens(queries)), blocks);
    if (static_cast<double>(chosen->size()) > kDenseShare * static_cast<double>(blocks)) chosen.reset();
  }
  read.heads.resize(static_cast<std::size_t>(query_heads_));
  const auto own = static_cast<std::uint64_t>(queries.tokens) * static_cast<std::uint64_t>(queries.tokens + 1) / 2;
  const auto all = static_cast<std::uint64_t>(before) * static_cast<std::uint64_t>(queries.tokens);
  const auto left = chosen ? static_cast<std::uint64_t>(blocks - static_cast<std::int64_t>(chosen->size())) : 0;
  const auto group = static_cast<std::uint64_t>(query_heads_ / cache_.kv_heads);
  read.visible += group * (all + own);
  read.attended += group * (all + own - left * sparse_key_block * static_cast<std::uint64_t>(queries.tokens));
  if ((before / std::max(1, queries.tokens) + queries.head) % kMeasuredEvery == 0) {
    measure(queries, chosen ? &*chosen : nullptr, read);
  }
  return chosen;
}

}  // namespace hayloft::gpu
