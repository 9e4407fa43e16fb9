#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "gpu/cuda/api/fetch.h"
#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/causal_run.h"
#include "gpu/cuda/kernels/causal_scores.cuh"
#include "gpu/cuda/memory/upload.h"
#include "gpu/cuda_sparse.h"
#include "gpu/sparse_choice.h"

// Sparse prefill. Keys pass three times: for the normalisers of the queries that are asked, for the masses of blocks of
// keys, which the host then chooses by, and for attention to what it chose. The room for
// masses bounds how many queries are asked together, so that a long chunk over a long context may take more passes.
//
// Rounding: scores are causal.cu's, off by 2^-11 sum |q_i k_i| / sqrt(d) at most. A normaliser is the sum of f32, of a
// million keys some thousands a lane, and off by 2^-11 of itself at most, as the masses are that the host compares. It
// divides attention's own normaliser, off by 2^-10 at most (causal.cu), to say what a measured query caught.
namespace hayloft::gpu::cuda {
namespace {

constexpr int kSparseThreads = 256;
constexpr int kMostParts = 64;  // of the keys, that are read side by side

int padded(int rows) {
  return (rows + kTile - 1) / kTile * kTile;
}

// Chooses for blocks of queries of one chunk, the same of each KV head, together.
class Choice {
 public:
  Choice(const Context& context, const CacheView& cache, const CausalStates& states, std::int64_t first,
         const SparseCausal& how, std::vector<std::vector<QueryBlock>> queries, cudaStream_t stream)
      : context_(context),
        cache_(cache),
        states_(states),
        first_(first),
        how_(how),
        queries_(std::move(queries)),
        end_(first + queries_[0].back().begin + queries_[0].back().tokens),
        chosen_(queries_.size(), std::vector<ChosenKeys>(queries_[0].size())),
        stream_(stream) {}

  // Chooses by keys that come through `rows`.
  void choose(RowStream* rows) {
    if (!is_chosen_for(first_, queries_[0].back(), how_)) return;
    list_rows();
    const std::int64_t blocks = key_blocks_before(first_, queries_[0].back());
    const auto all = static_cast<std::int64_t>(rows_.size());
    const int heads = cache_.kv_heads;
    const Scratch<std::int32_t> sampled(context_, all, stream_);
    cuda::upload(sampled, rows_.data(), rows_.size() * sizeof(std::int32_t), stream_);
    CausalSamples samples;
    samples.rows = sampled;
    samples.count = count_;
    samples.first = static_cast<int>(first_);
    samples.parts = std::clamp(4 * context_.multiprocessors / heads, 1, kMostParts);
    const Scratch<float> sums(context_, 2 * samples.parts * all, stream_);
    samples.max = sums;
    samples.sum = samples.max + samples.parts * all;
    const Scratch<float> masses(context_, heads * choosing_ / kTile * blocks, stream_);

    const dim3 threads(kSparseThreads);
    launch("begin_sums", begin_sums, {dim3(blocks_for(samples.parts * all, kSparseThreads)), threads}, stream_, samples,
           all);
    HAYLOFT_CUDA(cudaMemsetAsync(masses, 0, heads * choosing_ / kTile * blocks * sizeof(float), in_order(stream_)));
    with_causal_tile<false>(cache_.head_dim, [&](auto tile) {
      using Tile = decltype(tile);
      const auto grid = [&](int count) {
        return dim3(blocks_for(count, Tile::rows), static_cast<unsigned>(heads), static_cast<unsigned>(samples.parts));
      };
      pass_over(cache_, rows, 0, end_, first_, [&](const CausalKeys& keys) {
        launch_causal<Tile>("sum_samples", sum_samples<Tile>, grid(count_), stream_, states_, keys, samples);
      });
      launch("finish_samples", finish_samples, {dim3(blocks_for(all, kSparseThreads)), threads}, stream_, samples, all);
      pass_over(cache_, rows, 0, blocks * sparse_key_block, first_, [&](const CausalKeys& keys) {
        launch_causal<Tile>("add_masses", add_masses<Tile>, grid(choosing_), stream_, states_, keys, samples, choosing_,
                            static_cast<int>(blocks), masses.data());
      });
    });
    max_ = fetch(samples.max, all, stream_);
    inverse_ = fetch(samples.sum, all, stream_);
    choose_by(fetch(masses.data(), heads * choosing_ / kTile * blocks, stream_), blocks);
  }

  // Attends to what was chosen and to the keys of the queries' own, which come through `rows`.
  void attend(RowStream* rows) const {
    std::vector<std::int32_t> named;
    std::vector<ListPart> of_lists;
    list_blocks(named, of_lists);
    const Scratch<std::int32_t> blocks(context_, static_cast<std::int64_t>(named.size()), stream_);
    cuda::upload(blocks, named.data(), named.size() * sizeof(std::int32_t), stream_);
    const Scratch<ListPart> parts(context_, static_cast<std::int64_t>(of_lists.size()), stream_);
    cuda::upload(parts, of_lists.data(), of_lists.size() * sizeof(ListPart), stream_);
    CausalLists lists;
    lists.blocks = blocks;
    lists.parts = parts;
    lists.lists = static_cast<int>(queries_[0].size());
    lists.rows = sparse_block_tokens(states_.group) * states_.group;
    lists.first_row = queries_[0].front().begin * states_.group;
    lists.first = static_cast<int>(first_);
    pass_over(cache_, rows, 0, end_, first_, [&](const CausalKeys& keys) {
      with_causal_tile<false>(cache_.head_dim, [&](auto tile) {
        using Tile = decltype(tile);
        const dim3 grid(static_cast<unsigned>(lists.lists) * blocks_for(lists.rows, Tile::rows),
                        static_cast<unsigned>(cache_.kv_heads));
        launch_causal<Tile>("attend_listed_keys", attend_listed_keys<Tile>, grid, stream_, states_, keys, lists);
      });
    });
  }

  // Holds f32 [Hkv][T g] of the states, when all have attended; nothing where all keys are read.
  struct Attended {
    std::vector<float> scale, max, sum;
  };
  // Adds what was read, and what measured queries caught of it.
  void count(const Attended& of, SparseRead& read) const {
    for (std::size_t head = 0; head < queries_.size(); ++head) {
      int at = choosing_;
      for (std::size_t n = 0; n < queries_[head].size(); ++n) {
        const QueryBlock& queries = queries_[head][n];
        count_read(first_, queries, states_.group, how_, chosen_[head][n], read);
        if (!is_measured(first_, queries)) continue;
        for (const int token : measured_tokens(queries)) {
          for (int g = 0; g < states_.group; ++g, ++at) {
            double caught = 1;
            if (chosen_[head][n]) {
              const std::size_t row =
                  head * static_cast<std::size_t>(states_.rows) + static_cast<std::size_t>(token * states_.group + g);
              const auto own = head * static_cast<std::size_t>(count_) + static_cast<std::size_t>(at);
              const float largest = of.max[row] * (of.scale[row] * kLog2OfE);
              caught = std::exp2(double{largest - max_[own]}) * of.sum[row] / kWeightScale * inverse_[own];
            }
            count_caught(caught,
                         read.heads[head * static_cast<std::size_t>(states_.group) + static_cast<std::size_t>(g)]);
          }
        }
        at = padded(at);
      }
    }
  }

 private:
  // Lists the rows that are asked: those that choose and that stop the choice, a block of queries behind the other,
  // then those that measure.
  void list_rows() {
    const int heads = cache_.kv_heads;
    std::vector<std::vector<std::int32_t>> of_heads(static_cast<std::size_t>(heads));
    const auto list = [&](const std::vector<int>& tokens, std::vector<std::int32_t>& rows) {
      for (const int token : tokens) {
        for (int g = 0; g < states_.group; ++g) rows.push_back(token * states_.group + g);
      }
      rows.resize(static_cast<std::size_t>(padded(static_cast<int>(rows.size()))), -1);
    };
    for (std::size_t head = 0; head < of_heads.size(); ++head) {
      for (const QueryBlock& queries : queries_[head]) {
        list(sampled_tokens(queries), of_heads[head]);
        list(stopping_tokens(queries, how_), of_heads[head]);
      }
      choosing_ = static_cast<int>(of_heads[head].size());
      for (const QueryBlock& queries : queries_[head]) {
        if (is_measured(first_, queries)) list(measured_tokens(queries), of_heads[head]);
      }
      count_ = std::max(count_, static_cast<int>(of_heads[head].size()));
    }
    for (std::vector<std::int32_t>& rows : of_heads) {
      rows.resize(static_cast<std::size_t>(count_), -1);
      rows_.insert(rows_.end(), rows.begin(), rows.end());
    }
  }

  // masses [Hkv][choosing / kTile][blocks].
  void choose_by(const std::vector<float>& masses, std::int64_t blocks) {
    const std::size_t of_head = queries_[0].size();
    context_.threads.parallel_for(
        static_cast<std::int64_t>(queries_.size() * of_head), 1, [&](std::int64_t from, std::int64_t to) {
          for (std::int64_t i = from; i < to; ++i) {
            const std::size_t head = static_cast<std::size_t>(i) / of_head, n = static_cast<std::size_t>(i) % of_head;
            const QueryBlock& queries = queries_[head][n];
            if (!is_chosen_for(first_, queries, how_)) continue;
            const float* of = masses.data() + static_cast<std::int64_t>(head) * choosing_ / kTile * blocks;
            for (std::size_t before = 0; before < n; ++before) {
              const QueryBlock& passed = queries_[head][before];
              of += blocks * (groups(sampled_tokens(passed)) + groups(stopping_tokens(passed, how_)));
            }
            const std::int64_t before = key_blocks_before(first_, queries);
            const std::vector<int> sampled = sampled_tokens(queries);
            chosen_[head][n] =
                choose_keys(sum(of, blocks, before, sampled),
                            sum(of + groups(sampled) * blocks, blocks, before, stopping_tokens(queries, how_)), how_);
          }
        });
  }

  // Sums masses [groups of rows][blocks] of the tokens' queries over the first `before` blocks.
  KeyMass sum(const float* masses, std::int64_t blocks, std::int64_t before, const std::vector<int>& tokens) const {
    KeyMass mass;
    mass.blocks.resize(static_cast<std::size_t>(before));
    for (int group = 0; group < groups(tokens); ++group) {
      const float* const of = masses + group * blocks;
      for (std::size_t b = 0; b < mass.blocks.size(); ++b) mass.blocks[b] += static_cast<double>(of[b]);
    }
    mass.rows = static_cast<int>(tokens.size()) * states_.group;
    mass.own = mass.rows;
    for (const double each : mass.blocks) mass.own -= each;
    return mass;
  }

  // Lists blocks of keys: behind what was chosen of those before the queries come their own. Lists of all blocks are
  // parts of one.
  void list_blocks(std::vector<std::int32_t>& blocks, std::vector<ListPart>& parts) const {
    const auto end_of = [&](const QueryBlock& of) {
      return static_cast<std::int32_t>((first_ + of.begin + of.tokens - 1) / sparse_key_block + 1);
    };
    for (std::int32_t block = 0; block < end_of(queries_[0].back()); ++block) blocks.push_back(block);
    for (std::size_t head = 0; head < queries_.size(); ++head) {
      for (std::size_t n = 0; n < queries_[head].size(); ++n) {
        const QueryBlock& of = queries_[head][n];
        const ChosenKeys& chosen = chosen_[head][n];
        if (!chosen) {
          parts.push_back({0, end_of(of)});
          continue;
        }
        const auto begin = static_cast<int>(blocks.size());
        blocks.insert(blocks.end(), chosen->begin(), chosen->end());
        for (auto own = static_cast<std::int32_t>(key_blocks_before(first_, of)); own < end_of(of); ++own) {
          blocks.push_back(own);
        }
        parts.push_back({begin, static_cast<int>(blocks.size())});
      }
    }
  }

  // Returns the groups of kTile rows that the tokens' queries fill.
  int groups(const std::vector<int>& tokens) const {
    return padded(static_cast<int>(tokens.size()) * states_.group) / kTile;
  }

  const Context& context_;
  const CacheView& cache_;
  const CausalStates& states_;
  std::int64_t first_;
  const SparseCausal& how_;
  std::vector<std::vector<QueryBlock>> queries_;  // [Hkv]
  std::int64_t end_;                              // of the keys that the last of them sees
  std::vector<std::vector<ChosenKeys>> chosen_;   // of each block of queries
  cudaStream_t stream_;
  std::vector<std::int32_t> rows_;  // [Hkv][count]
  int choosing_ = 0;                // rows of a KV head that choose
  int count_ = 0;
  std::vector<float> max_, inverse_;  // [Hkv][count]
};

}  // namespace

void CudaBackend::attend_causal_sparse(const CacheView& cache, const float* q, int T, int query_heads,
                                       const SparseCausal& how, float* out, SparseRead& read, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (T <= 0) return;
  const std::int64_t first = cache.tokens() - T;
  const int group = query_heads / cache.kv_heads;
  const auto at_once =
      static_cast<std::size_t>(cuda_lists_at_once(cache.kv_heads, group, first + T, how, context_.mass_bytes));
  read.heads.resize(static_cast<std::size_t>(query_heads));
  const std::size_t blocks = query_blocks(0, T, group).size();
  const auto queries_of = [&](std::size_t from, std::size_t to) {
    std::vector<std::vector<QueryBlock>> some;
    for (int head = 0; head < cache.kv_heads; ++head) {
      const std::vector<QueryBlock> of = query_blocks(head, T, group);
      some.emplace_back(of.begin() + static_cast<std::ptrdiff_t>(from), of.begin() + static_cast<std::ptrdiff_t>(to));
    }
    return some;
  };

  if (!is_chosen_for(first, query_blocks(0, T, group).back(), how)) {
    CausalStates states;
    states.group = group;
    Choice(context_, cache, states, first, how, queries_of(0, blocks), stream).count({}, read);
    return attend_causal(cache, q, T, query_heads, {}, out, queue);
  }

  CausalQueries attended(context_, cache, T, query_heads, stream);
  const CausalStates& states = attended.states();
  attended.begin(q);
  std::optional<RowStream> rows;
  if (cache.store.tokens > 0) rows.emplace(context_, cache, cache.kv_heads, cache.store.tokens, stream);
  std::vector<Choice> choices;
  for (std::size_t from = 0; from < blocks; from += at_once) {
    Choice& choice = choices.emplace_back(context_, cache, states, first, how,
                                          queries_of(from, std::min(blocks, from + at_once)), stream);
    choice.choose(rows ? &*rows : nullptr);
    choice.attend(rows ? &*rows : nullptr);
  }
  const std::int64_t count = cache.kv_heads * states.rows;
  const Choice::Attended all{fetch(states.scale, count, stream), fetch(states.max, count, stream),
                             fetch(states.sum, count, stream)};
  for (const Choice& choice : choices) choice.count(all, read);
  attended.finish({}, out);
}

}  // namespace hayloft::gpu::cuda
