#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/select/scan.h"
#include "gpu/cuda/memory/upload.h"

namespace hayloft::gpu::cuda {
namespace {

// Bounds the rows of a layer and KV head: as many as a step may read, several times over.
constexpr std::size_t kMostRows = 4096;

// Queries, [Hkv][d], whose largest components are the columns that were read most.
std::vector<float> queries_of(std::span<const float> runs, const CacheView& cache, int runs_of_head) {
  const int planes = runs_of_head / cache.head_dim;
  std::vector<float> q;
  for (std::size_t run = 0; run < runs.size(); run += static_cast<std::size_t>(planes)) {
    float use = 0;
    for (int plane = 0; plane < planes; ++plane) use += runs[run + static_cast<std::size_t>(plane)];
    q.push_back(use);
  }
  return q;
}

// Lists of one length, ascending: those that are shorter take positions from the beginning besides.
std::vector<std::int32_t> lists_of(const std::vector<std::vector<std::int32_t>>& rows, std::int64_t tokens,
                                   std::size_t& k) {
  for (const auto& of_head : rows) k = std::max(k, of_head.size());
  k = std::min({k, kMostRows, static_cast<std::size_t>(tokens)});
  std::vector<std::int32_t> lists;
  for (const auto& of_head : rows) {
    std::vector<std::int32_t> list(of_head.begin(),
                                   of_head.begin() + static_cast<std::ptrdiff_t>(std::min(k, of_head.size())));
    for (std::int32_t position = 0; list.size() < k; ++position) {
      if (!std::binary_search(of_head.begin(), of_head.end(), position)) list.push_back(position);
    }
    std::sort(list.begin(), list.end());
    lists.insert(lists.end(), list.begin(), list.end());
  }
  return lists;
}

bool sound(const std::vector<std::vector<std::int32_t>>& rows, const CacheView& cache) {
  if (rows.size() != static_cast<std::size_t>(cache.kv_heads)) return false;
  return std::all_of(rows.begin(), rows.end(), [&](const auto& list) {
    return std::is_sorted(list.begin(), list.end(), std::less_equal<>()) &&
           (list.empty() || (list.front() >= 0 && list.back() < cache.store.tokens));
  });
}

bool sound(std::span<const float> runs) {
  return std::all_of(runs.begin(), runs.end(), [](float use) { return use >= 0 && std::isfinite(use); });
}

}  // namespace

HotReads CudaBackend::hot_reads(const CacheView& cache, Stream queue) {
  native(queue);
  HotReads hot{columns_.run_uses(cache.store), rows_.positions(cache.store)};
  for (auto& positions : hot.rows) {
    if (positions.size() > kMostRows) positions.resize(kMostRows);
    std::sort(positions.begin(), positions.end());
  }
  return hot;
}

void CudaBackend::warm(const CacheView& cache, const HotReads& hot, Stream queue) {
  const cudaStream_t stream = native(queue);
  if (cache.store.tokens == 0 || !tables_.pinned(cache.store)) return;  // nothing is kept of what is copied
  const RunLayout layout(*cache.store.layout);
  const auto runs = static_cast<std::size_t>(layout.kv_heads) * static_cast<std::size_t>(layout.runs);
  const std::size_t width = static_cast<std::size_t>(cache.kv_heads) * static_cast<std::size_t>(cache.head_dim);
  if (hot.runs.size() == runs && sound(hot.runs) && columns_.keeps(cache.store)) {
    // A selection that reads as many runs as there is room for, those that were used most, fills the slots with them.
    const int slots = columns_.count_uses(cache, hot.runs, stream);
    const int most = std::min(cache.head_dim, most_scanned(context_, cache.store.layout->columns));
    SparqSelect args{{.rank = std::min(slots, most)}, 0, cache.store.tokens};
    if (in_planes(cache.store.layout->columns)) args.bits = std::min(slots, layout.runs);
    if (slots > 0) {
      const std::vector<float> queries = queries_of(hot.runs, cache, layout.runs);
      const Scratch<float> q(context_, static_cast<std::int64_t>(width), stream);
      const Scratch<float> alpha(context_, cache.kv_heads, stream);
      upload(q.data(), queries.data(), queries.size() * sizeof(float), stream);
      select_sparq(cache, q, cache.kv_heads, args, nullptr, alpha, queue);
    }
  }
  if (rows_.most_bytes() == 0 || !sound(hot.rows, cache)) return;
  std::size_t k = 0;
  const std::vector<std::int32_t> lists = lists_of(hot.rows, cache.store.tokens, k);
  if (k == 0) return;
  const Scratch<std::int32_t> positions(context_, static_cast<std::int64_t>(lists.size()), stream);
  const Scratch<float> q(context_, static_cast<std::int64_t>(2 * width), stream);  // and what comes out
  upload(positions.data(), lists.data(), lists.size() * sizeof(std::int32_t), stream);
  HAYLOFT_CUDA(cudaMemsetAsync(q.data(), 0, width * sizeof(float), in_order(stream)));
  Attended what;
  what.positions = positions;
  what.lists = cache.kv_heads;
  what.k = static_cast<int>(k);
  attend(cache, q, cache.kv_heads, what, q.data() + width, queue);
}

}  // namespace hayloft::gpu::cuda
