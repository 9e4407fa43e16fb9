#include "index/scan/attention_mass.h"

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/softmax.h"

namespace hayloft::index {
namespace {

constexpr std::int64_t tile_queries = 16;
constexpr std::int64_t tile_keys = 256;  // their scores stay in the first-level cache while the components are added
constexpr std::int64_t piece_tiles = 8;  // of queries, at a time

std::int64_t padded(std::int64_t n) {
  return (n + quant_group_tokens - 1) / quant_group_tokens * quant_group_tokens;
}

// One thread's scratch: the scores of 16 queries with every key.
class Worker {
 public:
  explicit Worker(const AttentionMass& problem)
      : problem_(problem),
        // Not a power of two: the queries' scores would compete for the same cache sets.
        stride_(static_cast<int>(padded(problem.visible[problem.n - 1]) + 80)),
        scores_(hwy::AllocateAligned<float>(static_cast<std::size_t>(tile_queries * stride_))),
        maxima_(hwy::AllocateAligned<float>(static_cast<std::size_t>(tile_queries * stride_ / quant_group_tokens))),
        sums_(hwy::AllocateAligned<float>(static_cast<std::size_t>(tile_queries * 16))),
        group_(hwy::AllocateAligned<float>(static_cast<std::size_t>(stride_))) {
    for (int c = 0; c < problem.head_dim; ++c) {
      offsets_.push_back(c * problem.stride * static_cast<std::int64_t>(sizeof(f16)));
    }
  }

  // Queries [first, first + heads).
  void add(std::int64_t first, int heads, std::vector<double>& mass) {
    const std::int64_t* const visible = problem_.visible + first;
    const auto keys = static_cast<int>(visible[heads - 1]);
    const auto quant_groups = static_cast<int>(padded(keys) / quant_group_tokens);
    score(first, heads, keys);
    for (int h = 0; h < heads; ++h) {
      float* const row = scores_.get() + std::ptrdiff_t{h} * stride_;
      std::fill(row + visible[h], row + padded(keys), -std::numeric_limits<float>::infinity());
    }
    TileNotes notes;
    notes.head_maxima = maxima_.get();
    notes.maxima_stride = quant_groups;
    take_notes(scores_.get(), stride_, heads, quant_groups * quant_group_tokens, notes);
    float references[tile_queries];
    for (int h = 0; h < heads; ++h) {
      references[h] = *std::max_element(maxima_.get() + h * quant_groups, maxima_.get() + (h + 1) * quant_groups);
    }
    notes.references = references;
    notes.sums = sums_.get();
    std::fill_n(sums_.get(), heads * 16, 0.0f);
    take_notes(scores_.get(), stride_, heads, quant_groups * quant_group_tokens, notes);
    for (int h = 0; h < heads; ++h) {
      float sum = std::accumulate(sums_.get() + h * 16, sums_.get() + (h + 1) * 16, 0.0f);
      if (problem_.sinks != nullptr) merge_sums(references[h], sum, problem_.sinks[first + h], 1);
      references[h] += std::log(sum);
    }
    group_scores(GroupScore::softmax, scores_.get(), stride_, heads, quant_groups * quant_group_tokens, references,
                 group_.get());
    for (int t = 0; t < keys; ++t) mass[static_cast<std::size_t>(t)] += group_[static_cast<std::size_t>(t)];
  }

 private:
  void score(std::int64_t first, int heads, int keys) {
    HeadQuery query;
    query.offsets = offsets_.data();
    query.weights = problem_.queries + first * problem_.head_dim;
    query.weight_stride = problem_.head_dim;
    query.rank = problem_.head_dim;
    query.heads = heads;
    for (std::int64_t t = 0; t < keys; t += tile_keys) {
      const auto n = static_cast<int>(std::min<std::int64_t>(tile_keys, keys - t));
      score_run(query, {reinterpret_cast<const std::byte*>(problem_.columns + t)}, {}, n, scores_.get() + t, stride_,
                nullptr);
    }
  }

  const AttentionMass& problem_;
  std::vector<std::int64_t> offsets_;
  int stride_;
  hwy::AlignedFreeUniquePtr<float[]> scores_;  // [16][stride]
  hwy::AlignedFreeUniquePtr<float[]> maxima_;  // [16][quantisation groups]
  hwy::AlignedFreeUniquePtr<float[]> sums_;    // [16][16]
  hwy::AlignedFreeUniquePtr<float[]> group_;   // [stride]
};

}  // namespace

void add_attention_mass(const AttentionMass& problem, const offload::Threads& threads, std::vector<double>& mass) {
  if (problem.n == 0) return;
  const std::int64_t piece = piece_tiles * tile_queries;
  const std::int64_t pieces = (problem.n + piece - 1) / piece;
  std::vector<std::vector<double>> partial(static_cast<std::size_t>(pieces));
  threads.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    Worker worker(problem);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t last = std::min(problem.n, (i + 1) * piece);
      std::vector<double>& sum = partial[static_cast<std::size_t>(i)];
      sum.resize(static_cast<std::size_t>(problem.visible[last - 1]));
      for (std::int64_t q = i * piece; q < last; q += tile_queries) {
        worker.add(q, static_cast<int>(std::min(tile_queries, last - q)), sum);
      }
    }
  });
  for (const std::vector<double>& sum : partial) {
    for (std::size_t t = 0; t < sum.size(); ++t) mass[t] += sum[t];
  }
}

}  // namespace hayloft::index
