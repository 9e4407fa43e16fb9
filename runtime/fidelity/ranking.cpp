#include "runtime/fidelity/ranking.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "index/scan/exact_search.h"
#include "index/scan/sparq_query.h"

namespace hayloft::runtime {
namespace {

double dot(const float* weights, const f16* k, int d) {
  double sum = 0;
  for (int i = 0; i < d; ++i) sum += double{weights[i]} * to_float(k[i]);
  return sum;
}

// The search of index/ that scores a step's store.
struct StoreSearch {
  StoreSearch(const StepQuery& step, const Scores& scores) : gathered(scores.weights) {
    const int d = step.head_dim();
    if (scores.rank < d) {
      gathered.resize(static_cast<std::size_t>(step.query_heads * scores.rank));
      for (int h = 0; h < step.query_heads; ++h) {
        const std::int32_t* const components = scores.components.data() + h / step.group() * scores.rank;
        for (int j = 0; j < scores.rank; ++j) gathered[h * scores.rank + j] = scores.weights[h * d + components[j]];
      }
    }
    search.query_heads = step.query_heads;
    search.rank = scores.rank;
    search.components = scores.components.data();
    search.weights = gathered.data();
    search.keys = scores.keys;
    search.limit = step.store.tokens;
  }
  StoreSearch(const StoreSearch&) = delete;
  StoreSearch& operator=(const StoreSearch&) = delete;

  std::vector<float> gathered;  // [Hq][rank]
  index::ColumnSearch search;
};

struct Candidate {
  double score;
  std::int64_t position;
};

// The first and the number of the query heads that share a list.
struct ListHeads {
  int first;
  int count;
};
ListHeads heads_of(int list, int lists, int query_heads) {
  const int count = query_heads / lists;
  return {list * count, count};
}

// Sum of exp(logit - max) over the store's [begin, end) for each query head of a KV head.
void add_store_range(const StepQuery& step, const index::ColumnSearch& search, int head, gpu::Attended::Range range,
                     const float* max, double* sum) {
  constexpr std::int64_t piece = 8192;
  const int g = step.group();
  std::vector<float> logits(static_cast<std::size_t>(g * piece));
  for (std::int64_t at = range.begin / 64 * 64; at < range.end; at += piece) {  // score_columns begins at multiples
    const std::int64_t end = std::min(at + piece, range.end);
    index::score_columns(step.store, search, head, at, end, logits.data());
    for (int h = 0; h < g; ++h) {
      const float* const row = logits.data() + h * (end - at);
      for (std::int64_t t = std::max(at, range.begin); t < end; ++t) sum[h] += std::exp(row[t - at] - max[h]);
    }
  }
}

}  // namespace

Scores exact_scores(const StepQuery& step) {
  const int d = step.head_dim();
  Scores scores;
  scores.rank = d;
  scores.weights.assign(step.q, step.q + step.query_heads * d);
  const float scale = index::exact_scale(d);
  for (float& weight : scores.weights) weight *= scale;
  scores.components = index::every_component(step.kv_heads(), d);
  scores.keys = index::exact_keys(step.store);
  return scores;
}

Scores sparq_scores(const StepQuery& step, int rank) {
  const int d = step.head_dim();
  index::RankingOptions options;
  options.rank = rank;
  index::SparqQuery query = index::sparq_query(step.q, step.query_heads, step.kv_heads(), d, step.store, options);
  Scores scores;
  scores.rank = rank;
  scores.weights.resize(static_cast<std::size_t>(step.query_heads * d));
  query.spread_out(step.kv_heads(), step.query_heads, d, d, scores.weights.data());
  scores.components = std::move(query.components);
  return scores;
}

RankedPositions rank_positions(const StepQuery& step, const Scores& scores, std::int64_t k, index::SelectPer per,
                               const offload::Threads& threads) {
  const int d = step.head_dim();
  RankedPositions ranking;
  ranking.lists = per == index::SelectPer::kv_head ? step.kv_heads() : step.query_heads;
  ranking.k = k = std::min(k, step.tokens());
  // The tail's logits, and the softmax state that the search over the store continues.
  ranking.tail = score_tail(step.tail, scores.weights.data(), step.query_heads, threads);
  ranking.max = ranking.tail.max;
  ranking.sum = ranking.tail.sum;
  add_sinks({step.sinks.begin(), step.sinks.end()}, ranking.max, ranking.sum);

  const std::int64_t from_store = std::min(k, step.store.tokens);
  std::vector<std::int32_t> found(static_cast<std::size_t>(ranking.lists * from_store));
  if (step.store.tokens > 0) {
    StoreSearch store(step, scores);
    store.search.k = static_cast<int>(from_store);
    store.search.per = per;
    index::search_columns(step.store, store.search, threads,
                          {found.data(), ranking.max.data(), ranking.sum.data(), nullptr});
  }

  ranking.positions.resize(static_cast<std::size_t>(ranking.lists * k));
  threads.parallel_for(ranking.lists, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Candidate> candidates;
    std::vector<f16> space(static_cast<std::size_t>(2 * d));
    for (int list = static_cast<int>(begin); list < end; ++list) {
      const ListHeads heads = heads_of(list, ranking.lists, step.query_heads);
      const int head = heads.first / step.group();
      const auto add = [&](std::int64_t position, auto logit) {
        double score = 0;
        for (int h = heads.first; h < heads.first + heads.count; ++h) {
          score += heads.count == 1 ? logit(h) : std::exp(logit(h) - ranking.max[h]) / ranking.sum[h];
        }
        candidates.push_back({score, position});
      };
      candidates.clear();
      for (std::int64_t i = 0; i < from_store; ++i) {
        const std::int64_t position = found[static_cast<std::size_t>(list * from_store + i)];
        const f16* const key = step.store.keys(head, position, 1, space.data());
        add(position, [&](int h) { return dot(scores.weights.data() + h * d, key, d); });
      }
      for (std::int64_t t = 0; t < step.tail.tokens(); ++t) {
        add(step.tail.first() + t,
            [&](int h) { return double{ranking.tail.logits[static_cast<std::size_t>(h * step.tail.tokens() + t)]}; });
      }
      std::partial_sort(candidates.begin(), candidates.begin() + k, candidates.end(),
                        [](const Candidate& a, const Candidate& b) {
                          return a.score != b.score ? a.score > b.score : a.position < b.position;
                        });
      for (std::int64_t i = 0; i < k; ++i) ranking.positions[list * k + i] = candidates[i].position;
    }
  });
  return ranking;
}

std::vector<float> score_positions(const StepQuery& step, const Scores& scores, const TailScores& tail, int head,
                                   const offload::Threads& threads) {
  constexpr std::int64_t piece = 16384;
  const int g = step.group();
  const std::int64_t stored = step.store.tokens;
  std::vector<float> logits(static_cast<std::size_t>(g * step.tokens()));
  const StoreSearch store(step, scores);
  threads.parallel_for(stored, piece, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> part(static_cast<std::size_t>(g * (end - begin)));
    index::score_columns(step.store, store.search, head, begin, end, part.data());
    for (int h = 0; h < g; ++h) {
      std::copy_n(part.data() + h * (end - begin), end - begin, logits.data() + h * step.tokens() + begin);
    }
  });
  for (int h = 0; h < g; ++h) {
    std::copy_n(tail.logits.data() + (head * g + h) * tail.tokens, tail.tokens,
                logits.data() + h * step.tokens() + stored);
  }
  return logits;
}

bool attended(const StepTrace& trace, int list, std::int64_t position) {
  for (const auto& range : trace.ranges) {
    if (position >= range.begin && position < range.end) return true;
  }
  if (trace.lists == 0) return false;
  const auto first = trace.positions.begin() + static_cast<std::ptrdiff_t>(list) * trace.k;
  return std::binary_search(first, first + trace.k, position);
}

std::vector<double> recall_of(const RankedPositions& ranking, const StepTrace& trace) {
  std::vector<double> recall;
  for (int list = 0; list < ranking.lists; ++list) {
    const std::span<const std::int64_t> best = ranking.list(list);
    const auto caught =
        std::count_if(best.begin(), best.end(), [&](std::int64_t position) { return attended(trace, list, position); });
    recall.push_back(static_cast<double>(caught) / static_cast<double>(ranking.k));
  }
  return recall;
}

std::vector<double> caught_mass(const StepQuery& step, const Scores& scores, const RankedPositions& exact,
                                const StepTrace& trace) {
  const int d = step.head_dim();
  const int g = step.group();
  const StoreSearch store(step, scores);
  std::vector<double> caught(static_cast<std::size_t>(step.query_heads));
  for (const gpu::Attended::Range& range : trace.ranges) {
    const gpu::Attended::Range stored{range.begin, std::min(range.end, step.store.tokens)};
    for (int head = 0; head < step.kv_heads() && stored.begin < stored.end; ++head) {
      add_store_range(step, store.search, head, stored, exact.max.data() + head * g, caught.data() + head * g);
    }
    for (int h = 0; h < step.query_heads; ++h) {
      const float* const logits = exact.tail.logits.data() + h * exact.tail.tokens;
      for (std::int64_t t = std::max(range.begin, step.tail.first()); t < range.end; ++t) {
        caught[h] += std::exp(logits[t - step.tail.first()] - exact.max[h]);
      }
    }
  }
  std::vector<f16> space(static_cast<std::size_t>(2 * d));
  for (int list = 0; list < trace.lists; ++list) {
    const ListHeads heads = heads_of(list, trace.lists, step.query_heads);
    for (int i = 0; i < trace.k; ++i) {
      const std::int64_t position = trace.positions[list * trace.k + i];
      const std::int64_t in_tail = position - step.tail.first();  // of what evicts, lists reach into the tail
      for (int h = heads.first; h < heads.first + heads.count; ++h) {
        const double logit = in_tail >= 0 ? exact.tail.logits[h * exact.tail.tokens + in_tail]
                                          : dot(scores.weights.data() + h * d,
                                                step.store.keys(heads.first / g, position, 1, space.data()), d);
        caught[h] += std::exp(logit - exact.max[h]);
      }
    }
  }
  for (std::size_t h = 0; h < step.sinks.size(); ++h) caught[h] += std::exp(double{step.sinks[h]} - exact.max[h]);
  for (int h = 0; h < step.query_heads; ++h) caught[h] /= exact.sum[h];
  return caught;
}

}  // namespace hayloft::runtime
