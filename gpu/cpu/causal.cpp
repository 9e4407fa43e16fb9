#include "gpu/cpu/cpu_backend.h"

#include <algorithm>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/key_blocks.h"
#include "gpu/cpu/scratch.h"
#include "gpu/cpu/tile_packer.h"
#include "index/scan/exact_search.h"

namespace hayloft::gpu {
namespace {

constexpr int kBlockQueries = 256;  // rows of a block: tokens times query heads of a group
constexpr int kBandTokens = 32;     // a block of a short window: its tile spans window + block keys, mostly masked
constexpr std::int64_t kSplitKeys = 4096;  // the least a segment of keys holds
constexpr std::int64_t kWantedTasks = 64;  // with fewer blocks than this, a block's keys are split into segments

// Returns where the sinks end that a windowed query sees beside its window; where the cache begins when there are none.
std::int64_t sinks_end(const CacheView& cache, const CausalWindow& keep) {
  const std::int64_t oldest = first_position(cache);
  return keep.window > 0 ? std::clamp(keep.sinks, oldest, cache.tokens()) : oldest;
}

// T queries, the first at position `first`, against everything they may see, as a grid of (KV head, block of tokens,
// segment of keys).
class CausalAttention {
 public:
  CausalAttention(const CacheView& cache, const float* q, int T, int query_heads, std::int64_t first,
                  const CausalWindow& keep, const SoftmaxPart& partial, float* out)
      : cache_(cache),
        q_(q),
        out_(out),
        partial_(partial),
        tokens_(T),
        query_heads_(query_heads),
        first_(first),
        window_(keep.window) {
    const std::int64_t window = keep.window;
    oldest_ = first_position(cache);
    sinks_end_ = sinks_end(cache, keep);
    group_ = query_heads / cache.kv_heads;
    block_tokens_ = std::max(1, kBlockQueries / group_);
    if (window > 0 && window < block_tokens_)
      block_tokens_ = std::min(block_tokens_, std::max(static_cast<int>(window), kBandTokens));
    blocks_ = (T + block_tokens_ - 1) / block_tokens_;
    const std::int64_t tasks = static_cast<std::int64_t>(cache.kv_heads) * blocks_;
    const std::int64_t visible =
        window > 0 ? std::min(cache.tokens(), sinks_end_ - oldest_ + window + block_tokens_) : cache.tokens();
    segments_ = std::max<std::int64_t>(1, std::min(kWantedTasks / tasks, visible / kSplitKeys));
    if (segments_ > 1) {
      const std::size_t states = static_cast<std::size_t>(segments_) * T * query_heads;
      weighted_.resize(states * cache.head_dim);
      max_.resize(states);
      sum_.resize(states);
    }
  }

  // From now on the blocks of queries read the blocks of keys that this chooses, and what that caught is added to
  // `read`.
  void choose(const SparseCausal& how, SparseRead& read, const offload::Threads& threads) {
    block_tokens_ = sparse_block_tokens(group_);
    blocks_ = (tokens_ + block_tokens_ - 1) / block_tokens_;
    const KeyBlockChoice choice(cache_, q_, query_heads_, first_, how);
    for (int head = 0; head < cache_.kv_heads; ++head) {
      const std::vector<ChosenKeys> of_head = choice.choose(query_blocks(head, tokens_, group_), threads, read);
      chosen_.insert(chosen_.end(), of_head.begin(), of_head.end());
    }
  }

  void run(const offload::Threads& threads) {
    const std::int64_t per_head = static_cast<std::int64_t>(blocks_) * segments_;
    threads.parallel_for(cache_.kv_heads * per_head, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t in_head = i % per_head;
        attend_block(static_cast<int>(i / per_head), static_cast<int>(in_head / segments_), in_head % segments_);
      }
    });
    if (segments_ == 1) return;
    threads.parallel_for(static_cast<std::int64_t>(tokens_) * query_heads_, 64,
                         [&](std::int64_t begin, std::int64_t end) { merge_segments(begin, end); });
  }

 private:
  void attend_block(int head, int block, std::int64_t segment) {
    const int d = cache_.head_dim;
    const int t0 = block * block_tokens_;
    const int block_tokens = std::min(block_tokens_, tokens_ - t0);
    const int rows = block_tokens * group_;
    const int padded = padded_queries(rows);
    const int stride = weighted_stride(d);
    float* const space = scratch(KeyTile::key_floats(d) + KeyTile::value_floats(d) + kPaddedQueries * kTileKeys +
                                 static_cast<std::size_t>(padded) * (stride + d + 2));
    const KeyTile tile{space, space + KeyTile::key_floats(d), d};
    float* const scores = tile.values + KeyTile::value_floats(d);
    float* const weighted = scores + kPaddedQueries * kTileKeys;
    float* const q = weighted + static_cast<std::int64_t>(padded) * stride;
    float* const max = q + static_cast<std::int64_t>(padded) * d;
    float* const sum = max + padded;
    const TileQueries queries{q, rows, group_, weighted, max, sum, scores};

    load_queries(head, t0, block_tokens, q);
    std::fill_n(q + static_cast<std::int64_t>(rows) * d, static_cast<std::int64_t>(padded - rows) * d, 0.0f);
    std::fill_n(weighted, static_cast<std::int64_t>(padded) * stride, 0.0f);
    std::fill_n(max, padded, AttentionState{}.max);
    std::fill_n(sum, padded, 0.0f);

    const std::int64_t first = first_ + t0;  // the first query's position
    const std::int64_t keys_end = std::min(first + block_tokens, cache_.tokens());
    // Keys are packed one after the other; the first token sees [visible_from, visible_to) of a tile of them.
    TilePacker packer(cache_, head, tile);
    const auto attend = [&](std::int64_t visible_from, std::int64_t visible_to) {
      attend_tile(tile, packer.finish(), visible_from, visible_to, queries);
    };
    const auto attend_keys = [&](std::int64_t from, std::int64_t to, bool windowed) {
      for (std::int64_t k0 = from; k0 < to; k0 += tile_keys(d)) {
        packer.add(k0, static_cast<int>(std::min<std::int64_t>(tile_keys(d), to - k0)));
        attend(windowed ? first - window_ + 1 - k0 : -first_ - tokens_, first + 1 - k0);
      }
    };
    const std::size_t at = static_cast<std::size_t>(head) * static_cast<std::size_t>(blocks_) + block;
    if (!chosen_.empty() && chosen_[at]) {
      const std::vector<std::int32_t>& listed = *chosen_[at];
      const std::size_t part = (listed.size() + static_cast<std::size_t>(segments_) - 1) / segments_;
      const std::size_t last = std::min(listed.size(), (static_cast<std::size_t>(segment) + 1) * part);
      for (std::size_t i = static_cast<std::size_t>(segment) * part; i < last;) {
        for (int n = 0; i < last && n < tile_keys(d); ++i, n += sparse_key_block)
          packer.add(std::int64_t{listed[i]} * sparse_key_block, sparse_key_block);
        attend(-first_ - tokens_, kTileKeys);  // every query sees them all
      }
      if (segment + 1 == segments_) attend_keys(first / sparse_key_block * sparse_key_block, keys_end, false);
      store_states(head, t0, segment, queries);
      return;
    }
    // Sinks are seen whatever the window, so they come apart from the keys behind them; in the first blocks the two
    // touch. A segment is its share of the sinks and the keys behind them, one after the other.
    const std::int64_t sinks_end = std::min(sinks_end_, keys_end);
    const std::int64_t lowest = window_ > 0 ? std::max(sinks_end, first - window_ + 1) : oldest_;
    const std::int64_t sinks = sinks_end - oldest_;
    const std::int64_t count = sinks + keys_end - lowest;
    const std::int64_t share = (count + segments_ - 1) / segments_;
    const std::int64_t from = std::min(segment * share, count);
    const std::int64_t to = std::min(from + share, count);
    attend_keys(oldest_ + from, oldest_ + std::min(to, sinks), false);
    attend_keys(lowest + std::max<std::int64_t>(0, from - sinks), lowest + to - sinks, window_ > 0);
    store_states(head, t0, segment, queries);
  }

  // Row m of a block is token m / g, query head m % g of the group; scaled by 1 / sqrt(d).
  void load_queries(int head, int t0, int block_tokens, float* to) const {
    const int d = cache_.head_dim;
    const float scale = index::exact_scale(d);
    for (int t = 0; t < block_tokens; ++t) {
      const float* from = q_ + query_index(head, t0 + t) * d;
      for (int i = 0; i < group_ * d; ++i) *to++ = from[i] * scale;
    }
  }

  void store_states(int head, int t0, std::int64_t segment, const TileQueries& queries) {
    const int d = cache_.head_dim;
    for (int m = 0; m < queries.rows; ++m) {
      const std::int64_t at = query_index(head, t0 + m / group_) + m % group_;
      float* const weighted = queries.weighted + static_cast<std::int64_t>(m) * weighted_stride(d);
      const AttentionState state{weighted, queries.max[m], queries.sum[m]};
      if (segments_ == 1) {
        finish(state, at);
      } else {
        const std::int64_t slot = segment * tokens_ * query_heads_ + at;
        std::copy_n(state.weighted, d, weighted_.begin() + slot * d);
        max_[slot] = state.max;
        sum_[slot] = state.sum;
      }
    }
  }

  void merge_segments(std::int64_t begin, std::int64_t end) {
    const int d = cache_.head_dim;
    for (std::int64_t at = begin; at < end; ++at) {
      AttentionState merged{weighted_.data() + at * d, max_[at], sum_[at]};
      for (std::int64_t segment = 1; segment < segments_; ++segment) {
        const std::int64_t slot = segment * tokens_ * query_heads_ + at;
        merge_states(merged, {weighted_.data() + slot * d, max_[slot], sum_[slot]}, d);
      }
      finish(merged, at);
    }
  }

  void finish(AttentionState state, std::int64_t at) {
    const int d = cache_.head_dim;
    if (cache_.sinks != nullptr) add_sink(state, cache_.sinks[at % query_heads_], d);
    if (partial_.max == nullptr) return finish_state(state, d, out_ + at * d);
    std::copy_n(state.weighted, d, out_ + at * d);
    partial_.max[at] = state.max;
    partial_.sum[at] = state.sum;
  }

  // Index of a token's first query head of `head` in [T][Hq].
  std::int64_t query_index(int head, int token) const {
    return static_cast<std::int64_t>(token) * query_heads_ + head * group_;
  }

  const CacheView& cache_;
  const float* q_;
  float* out_;
  SoftmaxPart partial_;  // null: outputs
  int tokens_;
  int query_heads_;
  std::int64_t first_;      // position of the first query
  std::int64_t window_;     // 0: every position up to the query's own
  std::int64_t oldest_;     // the oldest position there is
  std::int64_t sinks_end_;  // sinks are [oldest_, sinks_end_)
  int group_ = 1;
  int block_tokens_ = 1;
  int blocks_ = 0;
  std::int64_t segments_ = 1;
  std::vector<ChosenKeys> chosen_;  // [KV heads][blocks]
  std::vector<float> weighted_;     // [segments][T][Hq][d], only when keys are split
  std::vector<float> max_;          // [segments][T][Hq]
  std::vector<float> sum_;
};

}  // namespace

void CpuBackend::attend_causal(const CacheView& cache, const float* q, int T, int query_heads,
                               const CausalWindow& window, float* out, Stream stream) {
  if (T <= 0) return;
  if (T == 1) {  // a decode step: it streams the rows instead of widening them
    const std::int64_t end = cache.tokens();
    const std::int64_t oldest = first_position(cache);
    Attended all;
    const std::int64_t sinks = sinks_end(cache, window);
    all.ranges[0] = {oldest, sinks};
    all.ranges[1] = {window.window > 0 ? std::max(sinks, end - window.window) : sinks, end};
    return attend(cache, q, query_heads, all, out, stream);
  }
  const Stage stage(stages_, "attend_causal");
  CausalAttention(cache, q, T, query_heads, cache.tokens() - T, window, {}, out).run(threads_);
}

void CpuBackend::attend_causal_sparse(const CacheView& cache, const float* q, int T, int query_heads,
                                      const SparseCausal& how, float* out, SparseRead& read, Stream) {
  if (T <= 0) return;
  const Stage stage(stages_, "attend_causal");
  CausalAttention attention(cache, q, T, query_heads, cache.tokens() - T, {}, {}, out);
  attention.choose(how, read, threads_);
  attention.run(threads_);
}

void CpuBackend::attend_causal_part(const CacheView& part, const float* q, int T, int query_heads, std::int64_t first,
                                    const SoftmaxPart& partial, float* out, Stream) {
  if (T <= 0) return;
  const Stage stage(stages_, "attend_causal");
  CausalAttention(part, q, T, query_heads, first, {}, partial, out).run(threads_);
}

}  // namespace hayloft::gpu
