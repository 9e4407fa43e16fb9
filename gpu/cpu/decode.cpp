#include "gpu/cpu/cpu_backend.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/pieces.h"
#include "gpu/cpu/rows.h"
#include "index/scan/exact_search.h"

namespace hayloft::gpu {
namespace {

constexpr std::int64_t kMeanRows = 1024;  // tail rows per partial sum of values
constexpr std::int64_t kReadRows = 64;    // rows of integers read at a time: 32 KiB at d = 128
static_assert(kReadRows % kTileRows == 0);

// The mean of V over every token of the store and the tail, f32 [Hkv][d] (SparQ's mean value, arXiv 2312.04985,
// section 4). The store keeps its sum; the tail is added up here.
std::vector<float> mean_values(const CacheView& cache, const offload::Threads& threads) {
  const int d = cache.head_dim;
  const std::int64_t parts = (cache.tail.tokens + kMeanRows - 1) / kMeanRows;
  std::vector<double> sums(static_cast<std::size_t>(cache.kv_heads * parts * d));
  threads.parallel_for(cache.kv_heads * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const f16*> rows(kMeanRows);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % parts * kMeanRows;
      const std::int64_t n = std::min(kMeanRows, cache.tail.tokens - first);
      point_to_rows(cache, static_cast<int>(i / parts), cache.tail.position + first, n, rows.data());
      add_values(rows.data(), n, d, sums.data() + i * d);
    }
  });
  const std::int64_t tokens = cache.store.tokens + cache.tail.tokens;
  std::vector<float> mean(static_cast<std::size_t>(cache.kv_heads * d));
  for (int head = 0; head < cache.kv_heads; ++head) {
    for (int i = 0; i < d; ++i) {
      double sum = cache.store.tokens > 0 ? cache.store.value_sum[head * d + i] : 0.0;
      for (std::int64_t part = 0; part < parts; ++part) sum += sums[(head * parts + part) * d + i];
      mean[head * d + i] = tokens > 0 ? static_cast<float>(sum / static_cast<double>(tokens)) : 0.0f;
    }
  }
  return mean;
}

// The states of all pieces, [states][stride] and [states].
struct States {
  States(std::int64_t states, int stride)
      : weighted(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(states * stride))),
        max(static_cast<std::size_t>(states), AttentionState{}.max),
        sum(static_cast<std::size_t>(states)) {}

  std::unique_ptr<float[]> weighted;  // whoever attends the first rows of a piece clears its own
  std::vector<float> max;
  std::vector<float> sum;
};

// Attends rows [begin, end) for pieces whose states follow one another: one piece, or several that have these rows in
// common. scaled f32 [steps][Hq][padded d].
void attend_pieces(std::span<const AttendStep> steps, int query_heads, const std::vector<float>& scaled,
                   const std::vector<Piece>& all, std::span<const std::size_t> pieces, std::int64_t begin,
                   std::int64_t end, States& states) {
  const Piece& front = all[pieces.front()];
  const CacheView& cache = steps[front.step].cache;
  const int d = cache.head_dim;
  const int stride = padded(d);
  const auto queries_of = [&](const Piece& piece) {
    return scaled.data() + (static_cast<std::int64_t>(piece.step) * query_heads + piece.query) * stride;
  };
  const float* q = queries_of(front);
  std::vector<float> gathered;
  if (pieces.size() > 1) {
    for (const std::size_t i : pieces) {
      const float* const from = queries_of(all[i]);
      gathered.insert(gathered.end(), from, from + front.queries * stride);
    }
    q = gathered.data();
  }
  const int queries = front.queries * static_cast<int>(pieces.size());
  float* const weighted = states.weighted.get() + front.state * stride;
  if (begin == front.begin) std::fill_n(weighted, queries * stride, 0.0f);
  const QueryGroup group{
      q, queries, d, stride, weighted, states.max.data() + front.state, states.sum.data() + front.state};

  const std::int64_t at_once = plain_rows(cache) ? end - begin : std::min(kReadRows, end - begin);
  std::vector<const f16*> rows(static_cast<std::size_t>(at_once));
  std::vector<f16> space(plain_rows(cache) ? 0 : static_cast<std::size_t>(at_once * 2 * d));
  for (std::int64_t first = begin; first < end; first += at_once) {
    const std::int64_t n = std::min(at_once, end - first);
    if (space.empty() && front.list == nullptr) {
      point_to_rows(cache, front.head, first, n, rows.data());
    } else {
      for (std::int64_t row = 0; row < n; ++row) {
        const std::int64_t at = first + row;
        f16* const to = space.empty() ? nullptr : space.data() + row * 2 * d;
        rows[row] = row_of(cache, front.head, front.list ? front.list[at] : at, to);
      }
    }
    attend_rows(rows.data(), n, group);
  }
}

// The output of one step's query heads of one KV head, or its partial softmax, from the states of its pieces. mean f32
// [Hkv][d], where there is an alpha.
void merge_pieces(const AttendStep& step, int query_heads, int head, std::span<const Piece> pieces,
                  const States& states, const std::vector<float>& mean) {
  const int d = step.cache.head_dim;
  const int stride = padded(d);
  const int group = query_heads / step.cache.kv_heads;
  const int query = head * group;
  std::fill_n(step.out + query * d, group * d, 0.0f);
  std::vector<AttentionState> merged(static_cast<std::size_t>(group));
  for (int i = 0; i < group; ++i) merged[i].weighted = step.out + (query + i) * d;
  for (const Piece& piece : pieces) {
    if (piece.head != head) continue;
    for (int i = 0; i < piece.queries; ++i) {
      const std::int64_t state = piece.state + i;
      merge_states(merged[piece.query - query + i],
                   {states.weighted.get() + state * stride, states.max[state], states.sum[state]}, d);
    }
  }
  for (int h = query; h < query + group; ++h) {
    float* const y = step.out + h * d;
    if (step.cache.sinks != nullptr) add_sink(merged[h - query], step.cache.sinks[h], d);
    if (step.what.partial.max != nullptr) {
      step.what.partial.max[h] = merged[h - query].max;
      step.what.partial.sum[h] = merged[h - query].sum;
      continue;
    }
    finish_state(merged[h - query], d, y);
    if (!step.what.alpha) continue;
    const float alpha = step.what.alpha[h];
    const float* const v = mean.data() + head * d;
    for (int i = 0; i < d; ++i) y[i] = alpha * y[i] + (1 - alpha) * v[i];
  }
}

}  // namespace

void CpuBackend::attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
                        Stream stream) {
  const AttendStep step{cache, q, what, out};
  attend_together({&step, 1}, query_heads, stream);
}

void CpuBackend::attend_together(std::span<const AttendStep> steps, int query_heads, Stream) {
  if (steps.empty()) return;
  const Stage stage(stages_, "attend");
  const int d = steps.front().cache.head_dim;
  const int kv_heads = steps.front().cache.kv_heads;
  const int stride = padded(d);
  std::vector<float> scaled(steps.size() * static_cast<std::size_t>(query_heads * stride));
  const float scale = index::exact_scale(d);
  float* to = scaled.data();
  for (const AttendStep& step : steps) {
    for (int h = 0; h < query_heads; ++h, to += stride) {
      for (int i = 0; i < d; ++i) to[i] = step.q[h * d + i] * scale;
    }
  }

  const Pieces pieces = cut_pieces(steps, query_heads);
  States states(pieces.states, stride);
  const auto attend_each = [&](std::size_t n, const auto& part) {
    threads_.parallel_for(static_cast<std::int64_t>(n), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) part(static_cast<std::size_t>(i));
    });
  };
  attend_each(pieces.shared.size(), [&](std::size_t i) {
    const SharedRows& rows = pieces.shared[i];
    attend_pieces(steps, query_heads, scaled, pieces.all, rows.pieces, rows.begin, rows.end, states);
  });
  attend_each(pieces.with_rest.size(), [&](std::size_t i) {
    const Piece& piece = pieces.all[pieces.with_rest[i]];
    attend_pieces(steps, query_heads, scaled, pieces.all, {&pieces.with_rest[i], 1}, piece.own, piece.end, states);
  });

  std::vector<std::vector<float>> means(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].what.alpha) means[i] = mean_values(steps[i].cache, threads_);
  }
  attend_each(steps.size() * static_cast<std::size_t>(kv_heads), [&](std::size_t i) {
    const std::size_t step = i / static_cast<std::size_t>(kv_heads);
    const std::size_t first = pieces.first_of[step];
    merge_pieces(steps[step], query_heads, static_cast<int>(i % static_cast<std::size_t>(kv_heads)),
                 std::span(pieces.all).subspan(first, pieces.first_of[step + 1] - first), states, means[step]);
  });
}

}  // namespace hayloft::gpu
