#include "gpu/cpu/key_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "gpu/cpu/scratch.h"
#include "gpu/cpu/tile_packer.h"
#include "index/scan/exact_search.h"

namespace hayloft::gpu {
namespace {

constexpr int kBatchRows = 128;  // rows of queries that are scored at a time, so that a key is widened once for them
constexpr int kScoredBlocks = kTileKeys / sparse_key_block;

}  // namespace

struct KeyBlockChoice::Batch {
  std::span<const QueryBlock> blocks;
  std::vector<std::vector<int>> tokens;  // of each block: those that choose, that stop the choice, that measure
  std::vector<int> row;                  // of each block its first row; rows are [tokens][query heads of the group]
  int rows = 0;
  std::vector<float> q;    // [rows][d], scaled; and as many zeros as score_tile() may read
  std::int64_t tiles = 0;  // of kTileKeys, whole ones before the last block of queries
  std::vector<float> max;  // [rows][tiles]
  std::vector<float> sum;  // [rows][tiles][kScoredBlocks], relative to the tile's max
};

struct KeyBlockChoice::Masses {
  int rows = 0;
  std::int64_t count = 0;     // blocks of keys
  std::vector<float> blocks;  // [rows][count]
  std::vector<float> own;     // [rows], of the keys behind those

  KeyMass sum(int from, int n) const {  // of n rows
    KeyMass sums;
    sums.blocks.resize(static_cast<std::size_t>(count));
    sums.rows = n;
    for (int row = from; row < from + n; ++row) {
      const float* const of = blocks.data() + row * count;
      for (std::size_t b = 0; b < sums.blocks.size(); ++b) sums.blocks[b] += static_cast<double>(of[b]);
      sums.own += static_cast<double>(own[static_cast<std::size_t>(row)]);
    }
    return sums;
  }
};

void KeyBlockChoice::score_keys(int head, std::int64_t from, int n, const float* q, int rows, float* keys,
                                float* scores) const {
  const KeyTile tile{keys, nullptr, cache_.head_dim};
  TilePacker packer(cache_, head, tile);
  packer.add(from, n);
  score_tile(tile, packer.finish(), q, rows, scores);
}

KeyBlockChoice::Batch KeyBlockChoice::sample(std::span<const QueryBlock> queries) const {
  const int d = cache_.head_dim;
  const int group = query_heads_ / cache_.kv_heads;
  const float scale = index::exact_scale(d);
  Batch batch;
  batch.blocks = queries;
  for (const QueryBlock& block : queries) {
    std::vector<int> tokens = sampled_tokens(block);
    const auto ask = [&](const std::vector<int>& others) { tokens.insert(tokens.end(), others.begin(), others.end()); };
    ask(stopping_tokens(block, how_));
    if (is_measured(first_, block)) ask(measured_tokens(block));
    batch.row.push_back(batch.rows);
    batch.rows += static_cast<int>(tokens.size()) * group;
    for (const std::int64_t token : tokens) {
      const float* const from = q_ + (token * query_heads_ + block.head * group) * d;
      for (int i = 0; i < group * d; ++i) batch.q.push_back(from[i] * scale);
    }
    batch.tokens.push_back(std::move(tokens));
  }
  batch.q.resize(static_cast<std::size_t>((batch.rows + kPaddedQueries) * d));
  return batch;
}

void KeyBlockChoice::score(Batch& batch, const offload::Threads& threads) const {
  const int head = batch.blocks.back().head;
  batch.tiles = key_blocks_before(first_, batch.blocks.back()) / kScoredBlocks;
  batch.max.resize(static_cast<std::size_t>(batch.rows * batch.tiles));
  batch.sum.resize(batch.max.size() * kScoredBlocks);
  threads.parallel_for(batch.tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    const int padded = padded_queries(batch.rows);
    float* const scores = scratch(static_cast<std::size_t>(padded) * kTileKeys + KeyTile::key_floats(cache_.head_dim));
    float* const keys = scores + static_cast<std::int64_t>(padded) * kTileKeys;
    for (std::int64_t tile = begin; tile < end; ++tile) {
      score_keys(head, tile * kTileKeys, kTileKeys, batch.q.data(), batch.rows, keys, scores);
      softmax_blocks({scores, batch.rows, kTileKeys, kTileKeys, sparse_key_block, batch.tiles, batch.max.data() + tile,
                      batch.sum.data() + tile * kScoredBlocks});
    }
  });
}

KeyBlockChoice::Masses KeyBlockChoice::masses(const Batch& batch, std::size_t block) const {
  const int d = cache_.head_dim;
  const int group = query_heads_ / cache_.kv_heads;
  const QueryBlock& queries = batch.blocks[block];
  const std::vector<int>& tokens = batch.tokens[block];
  const int rows = static_cast<int>(tokens.size()) * group;
  const std::int64_t blocks = key_blocks_before(first_, queries);
  const std::int64_t tiles = blocks / kScoredBlocks;  // the rest is scored here
  const std::int64_t own = blocks * sparse_key_block;
  const std::int64_t end = first_ + queries.begin + queries.tokens;
  const float* const q = batch.q.data() + std::int64_t{batch.row[block]} * d;
  float* const scores = scratch(static_cast<std::size_t>(padded_queries(rows)) * kTileKeys + KeyTile::key_floats(d));
  float* const keys = scores + static_cast<std::int64_t>(padded_queries(rows)) * kTileKeys;

  Masses found;
  found.rows = rows;
  found.count = blocks;
  found.blocks.resize(static_cast<std::size_t>(rows * blocks));
  found.own.resize(static_cast<std::size_t>(rows));
  constexpr float none = -std::numeric_limits<float>::infinity();
  std::vector<float> rest_max(static_cast<std::size_t>(rows), none),
      rest(static_cast<std::size_t>(rows) * kScoredBlocks);
  if (const auto n = static_cast<int>(own - tiles * kTileKeys); n > 0) {
    score_keys(queries.head, tiles * kTileKeys, n, q, rows, keys, scores);
    softmax_blocks({scores, rows, n, kTileKeys, sparse_key_block, 1, rest_max.data(), rest.data()});
  }
  // The keys behind the blocks, of which each query sees those up to its own.
  std::vector<double> own_sum(static_cast<std::size_t>(rows));
  std::vector<float> own_max(static_cast<std::size_t>(rows), none);
  for (std::int64_t key = own; key < end; key += kTileKeys) {
    const int n = static_cast<int>(std::min<std::int64_t>(kTileKeys, end - key));
    score_keys(queries.head, key, n, q, rows, keys, scores);
    for (int row = 0; row < rows; ++row) {
      const float* const s = scores + static_cast<std::int64_t>(row) * kTileKeys;
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
    const std::int64_t in_batch = batch.row[block] + row;
    const float* const tile_max = batch.max.data() + in_batch * batch.tiles;
    const float* const tile_sum = batch.sum.data() + in_batch * batch.tiles * kScoredBlocks;
    const float top = rest_max[static_cast<std::size_t>(row)], own_top = own_max[static_cast<std::size_t>(row)];
    const float largest =
        std::max({own_top, top, tiles == 0 ? own_top : *std::max_element(tile_max, tile_max + tiles)});
    double sum = own_sum[static_cast<std::size_t>(row)] * std::exp(own_top - largest);
    float& behind = found.own[static_cast<std::size_t>(row)];
    behind = static_cast<float>(sum);
    float* const mass = found.blocks.data() + row * blocks;
    for (std::int64_t b = 0; b < blocks;) {
      const std::int64_t tile = b / kScoredBlocks;
      const float* const from = tile < tiles ? tile_sum + b : rest.data() + row * kScoredBlocks;
      const float factor = std::exp((tile < tiles ? tile_max[tile] : top) - largest);
      float added = 0;
      const std::int64_t count = std::min<std::int64_t>(kScoredBlocks, blocks - b);
      for (std::int64_t i = 0; i < count; ++i) added += mass[b + i] = from[i] * factor;
      sum += added;
      b += count;
    }
    const auto share = static_cast<float>(1 / sum);
    behind *= share;
    for (std::int64_t b = 0; b < blocks; ++b) mass[b] *= share;
  }
  return found;
}

ChosenKeys KeyBlockChoice::choose_block(const Batch& batch, std::size_t block, SparseRead& read) const {
  const QueryBlock& queries = batch.blocks[block];
  const int group = query_heads_ / cache_.kv_heads;
  const int sampled = static_cast<int>(sampled_tokens(queries).size()) * group;  // rows
  const int stopping = static_cast<int>(stopping_tokens(queries, how_).size()) * group;
  const int choosing = sampled + stopping;
  ChosenKeys chosen;
  Masses all;
  if (is_chosen_for(first_, queries, how_)) {
    all = masses(batch, block);
    chosen = choose_keys(all.sum(0, sampled), all.sum(sampled, stopping), how_);
  }
  read.heads.resize(static_cast<std::size_t>(query_heads_));
  count_read(first_, queries, group, how_, chosen, read);
  if (!is_measured(first_, queries)) return chosen;
  for (int row = 0; row < sampled; ++row) {  // measured are as many
    double caught = 1;
    if (chosen) {
      caught = static_cast<double>(all.own[static_cast<std::size_t>(choosing + row)]);
      const float* const mass = all.blocks.data() + (choosing + row) * all.count;
      for (const std::int32_t b : *chosen) caught += static_cast<double>(mass[b]);
    }
    count_caught(caught, read.heads[static_cast<std::size_t>(queries.head * group + row % group)]);
  }
  return chosen;
}

std::vector<ChosenKeys> KeyBlockChoice::choose(std::span<const QueryBlock> queries, const offload::Threads& threads,
                                               SparseRead& read) const {
  std::vector<ChosenKeys> chosen(queries.size());
  const int group = query_heads_ / cache_.kv_heads;
  const std::size_t tokens = sampled_tokens(queries.front()).size() + stopping_tokens(queries.front(), how_).size();
  const std::size_t rows = tokens * static_cast<std::size_t>(group);
  const std::size_t together = std::max<std::size_t>(1, kBatchRows / rows);
  for (std::size_t from = 0; from < queries.size(); from += together) {
    Batch batch = sample(queries.subspan(from, std::min(together, queries.size() - from)));
    if (first_ + batch.blocks.back().begin >= how_.dense_keys) score(batch, threads);
    std::mutex adding;
    threads.parallel_for(static_cast<std::int64_t>(batch.blocks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      SparseRead own;
      for (std::int64_t i = begin; i < end; ++i) {
        const auto block = static_cast<std::size_t>(i);
        chosen[from + block] = choose_block(batch, block, own);
      }
      const std::lock_guard lock(adding);
      read.add(own);
    });
  }
  return chosen;
}

}  // namespace hayloft::gpu
