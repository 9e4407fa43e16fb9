#include <faiss/IndexFlat.h>
#include <omp.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "index/scan/blas_places.h"
#include "index/scan/search.h"
#include "index/scan/top_positions.h"
#include "offload/error.h"

namespace hayloft::index {
namespace {

using Id = decltype(faiss::Index::ntotal);  // idx_t, whose home differs between versions of Faiss

struct FaissHit {
  float score;
  std::int32_t position;
};

// The k best of one block for one query, and every other position that scores the same as the last of them: Faiss keeps
// whichever of equals it met first or last.
void search_block(const faiss::IndexFlatIP& block, const float* query, int k, std::int64_t first,
                  std::vector<FaissHit>& hits) {
  std::vector<float> scores;
  std::vector<Id> ids;
  const Id tokens = block.ntotal;
  for (Id ask = std::min<Id>(tokens, k + Id{1});; ask = std::min(tokens, 2 * ask)) {
    scores.resize(static_cast<std::size_t>(ask));
    ids.resize(static_cast<std::size_t>(ask));
    block.search(1, query, ask, scores.data(), ids.data());
    if (ask == tokens || scores.back() < scores[static_cast<std::size_t>(k) - 1]) break;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0) hits.push_back({scores[i], static_cast<std::int32_t>(first + ids[i])});
  }
}

}  // namespace

void faiss_flat_search(const offload::LayerView& view, const float* query, int query_heads, std::int64_t limit, int k,
                       const offload::Threads& threads, std::int32_t* positions) {
  const offload::BlockLayout& layout = *view.layout;
  if (query_heads < layout.kv_heads || query_heads % layout.kv_heads != 0) {
    fail("Faiss search: {} query heads cannot share {} KV heads; use a multiple", query_heads, layout.kv_heads);
  }
  if (limit < 0 || limit > view.tokens || k < 0 || k > limit) {
    fail("Faiss search: k {} of {} positions is out of range; the store holds {} tokens", k, limit, view.tokens);
  }
  if (k == 0) return;
  const int group = query_heads / layout.kv_heads;
  const int d = layout.head_dim;
  const std::int64_t block_tokens = layout.block_tokens;
  const std::int64_t blocks = (limit + block_tokens - 1) / block_tokens;
  prepare_blas(threads);

  std::vector<std::vector<FaissHit>> hits(static_cast<std::size_t>(query_heads * blocks));  // [Hq][blocks]
  threads.parallel_for(layout.kv_heads * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    const BlasPlace place;
    omp_set_num_threads(1);
    std::vector<float> keys;
    std::vector<f16> space;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto head = static_cast<int>(i / blocks);
      const std::int64_t first = i % blocks * block_tokens;
      const std::int64_t tokens = std::min(block_tokens, limit - first);
      keys.resize(static_cast<std::size_t>(tokens * d));
      space.resize(layout.row_format == offload::RowFormat::f16 ? 0 : static_cast<std::size_t>(tokens * 2 * d));
      const f16* row = view.keys(head, first, tokens, space.data());
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (int c = 0; c < d; ++c) keys[static_cast<std::size_t>(t * d + c)] = to_float(row[t * 2 * d + c]);
      }
      faiss::IndexFlatIP index(d);
      index.add(tokens, keys.data());
      for (int h = head * group; h < (head + 1) * group; ++h) {
        search_block(index, query + static_cast<std::ptrdiff_t>(h) * d,
                     static_cast<int>(std::min<std::int64_t>(k, tokens)), first,
                     hits[static_cast<std::size_t>(h * blocks + i % blocks)]);
      }
    }
  });

  threads.parallel_for(query_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      TopPositions top(k, 0, -std::numeric_limits<float>::infinity());
      for (std::int64_t b = 0; b < blocks; ++b) {
        std::vector<FaissHit>& some = hits[static_cast<std::size_t>(h * blocks + b)];
        std::sort(some.begin(), some.end(),
                  [](const FaissHit& x, const FaissHit& y) { return x.position < y.position; });
        for (const FaissHit& hit : some) top.offer(hit.position, 1, &hit.score, nullptr, 0);
      }
      top.finish(positions + h * k, nullptr, 0);
    }
  });
}

}  // namespace hayloft::index
