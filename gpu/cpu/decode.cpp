#include "gpu/cpu/cpu_backend.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/rows.h"
#include "index/scan/exact_search.h"

namespace hayloft::gpu {
namespace {

constexpr std::int64_t kRangeRows = 2048;  // rows of a range per piece: a megabyte at d = 128
constexpr std::int64_t kListRows = 128;    // gathered rows per piece
constexpr std::int64_t kMeanRows = 1024;   // tail rows per partial sum of values
constexpr std::int64_t kReadRows = 64;     // rows of integers read at a time: 32 KiB at d = 128

// Rows for the query heads [query, query + queries), all of one KV head: positions [begin, end), or the entries
// [begin, end) of a list of positions.
struct Piece {
  int head;
  int query;
  int queries;
  const std::int32_t* list;  // null: a range
  std::int64_t begin;
  std::int64_t end;
  std::int64_t state;  // index of its first query head's state
};

std::vector<Piece> plan(const CacheView& cache, int query_heads, const Attended& what) {
  const int group = query_heads / cache.kv_heads;
  std::vector<Piece> pieces;
  std::int64_t states = 0;
  const auto cut = [&](Piece piece, std::int64_t end, std::int64_t rows) {
    for (; piece.begin < end; piece.begin += rows) {
      piece.end = std::min(piece.begin + rows, end);
      piece.state = states;
      states += piece.queries;
      pieces.push_back(piece);
    }
  };
  for (int head = 0; head < cache.kv_heads; ++head) {
    for (const Attended::Range& range : what.ranges) {
      cut({head, head * group, group, nullptr, range.begin, 0, 0}, range.end, kRangeRows);
    }
    if (what.lists == cache.kv_heads) {
      cut({head, head * group, group, what.positions + static_cast<std::int64_t>(head) * what.k, 0, 0, 0}, what.k,
          kListRows);
    } else if (what.lists == query_heads) {
      for (int query = head * group; query < (head + 1) * group; ++query) {
        cut({head, query, 1, what.positions + static_cast<std::int64_t>(query) * what.k, 0, 0, 0}, what.k, kListRows);
      }
    }
  }
  return pieces;
}

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
      for (std::int64_t row = 0; row < n; ++row) {
        rows[row] = row_of(cache, static_cast<int>(i / parts), cache.tail.position + first + row, nullptr);
      }
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

}  // namespace

void CpuBackend::attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
                        Stream) {
  const Stage stage(stages_, "attend");
  const int d = cache.head_dim;
  const int stride = padded(d);
  const int group = query_heads / cache.kv_heads;
  std::vector<float> scaled(static_cast<std::size_t>(query_heads * stride));
  const float scale = index::exact_scale(d);
  for (int h = 0; h < query_heads; ++h) {
    for (int i = 0; i < d; ++i) scaled[h * stride + i] = q[h * d + i] * scale;
  }

  const std::vector<Piece> pieces = plan(cache, query_heads, what);
  const std::int64_t states = pieces.empty() ? 0 : pieces.back().state + pieces.back().queries;
  const auto weighted = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(states * stride));
  std::vector<float> max(static_cast<std::size_t>(states), AttentionState{}.max);
  std::vector<float> sum(static_cast<std::size_t>(states));
  threads_.parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at_once = plain_rows(cache) ? std::max(kRangeRows, kListRows) : kReadRows;
    std::vector<const f16*> rows(static_cast<std::size_t>(at_once));
    std::vector<f16> space(plain_rows(cache) ? 0 : static_cast<std::size_t>(at_once * 2 * d));
    for (std::int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[i];
      float* values = weighted.get() + piece.state * stride;
      std::fill_n(values, piece.queries * stride, 0.0f);
      const QueryGroup queries{scaled.data() + piece.query * stride,
                               piece.queries,
                               d,
                               stride,
                               values,
                               max.data() + piece.state,
                               sum.data() + piece.state};
      for (std::int64_t first = piece.begin; first < piece.end; first += at_once) {
        const std::int64_t n = std::min(at_once, piece.end - first);
        for (std::int64_t row = 0; row < n; ++row) {
          const std::int64_t at = first + row;
          f16* const to = space.empty() ? nullptr : space.data() + row * 2 * d;
          rows[row] = row_of(cache, piece.head, piece.list ? piece.list[at] : at, to);
        }
        attend_rows(rows.data(), n, queries);
      }
    }
  });

  const std::vector<float> mean = what.alpha ? mean_values(cache, threads_) : std::vector<float>();
  threads_.parallel_for(cache.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    std::fill(out + begin * group * d, out + end * group * d, 0.0f);
    std::vector<AttentionState> merged(static_cast<std::size_t>(query_heads));
    for (int h = 0; h < query_heads; ++h) merged[h].weighted = out + h * d;
    for (const Piece& piece : pieces) {
      if (piece.head < begin || piece.head >= end) continue;
      for (int i = 0; i < piece.queries; ++i) {
        const std::int64_t state = piece.state + i;
        merge_states(merged[piece.query + i], {weighted.get() + state * stride, max[state], sum[state]}, d);
      }
    }
    for (std::int64_t h = begin * group; h < end * group; ++h) {
      float* y = out + h * d;
      finish_state(merged[h], d, y);
      if (!what.alpha) continue;
      const float alpha = what.alpha[h];
      const float* v = mean.data() + h / group * d;
      for (int i = 0; i < d; ++i) y[i] = alpha * y[i] + (1 - alpha) * v[i];
    }
  });
}

}  // namespace hayloft::gpu
