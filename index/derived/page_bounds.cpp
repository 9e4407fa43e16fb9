#include "index/derived/page_bounds.h"

#include <algorithm>
#include <array>
#include <limits>

namespace hayloft::index {
namespace {

constexpr int most_components = offload::most_head_dim;
constexpr std::int64_t piece_pages = 32;  // of one head, at a time

// f16 in an order of integers, which vectors compare; its own inverse.
std::int16_t ordered(std::uint16_t bits) {
  const auto x = static_cast<std::int16_t>(bits);
  return static_cast<std::int16_t>(x ^ (static_cast<std::int16_t>(x >> 15) & 0x7fff));
}

struct Bounds {
  std::array<std::int16_t, most_components> most;
  std::array<std::int16_t, most_components> least;

  Bounds() {
    most.fill(std::numeric_limits<std::int16_t>::min());
    least.fill(std::numeric_limits<std::int16_t>::max());
  }
  void take(const f16* key, int d) {
    for (int j = 0; j < d; ++j) {
      const std::int16_t x = ordered(key[j].bits);
      most[j] = std::max(most[j], x);
      least[j] = std::min(least[j], x);
    }
  }
};

f16 value(std::int16_t order) {
  return {static_cast<std::uint16_t>(ordered(static_cast<std::uint16_t>(order)))};
}

}  // namespace

void bound_pages(const offload::LayerView& view, int page_tokens, const offload::Threads& threads,
                 DerivedColumns& pages) {
  const int d = view.layout->head_dim;
  const std::int64_t whole = view.tokens / page_tokens;
  while (pages.size() < whole) {
    const std::int64_t first = pages.size();
    const DerivedColumns::Space space = pages.space(whole - first);
    const std::int64_t pieces = (space.entries + piece_pages - 1) / piece_pages;
    threads.parallel_for(view.layout->kv_heads * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto head = static_cast<int>(i / pieces);
        const std::int64_t from = i % pieces * piece_pages;
        for (std::int64_t p = from; p < std::min<std::int64_t>(from + piece_pages, space.entries); ++p) {
          Bounds bounds;
          f16 row[2 * most_components];
          for (std::int64_t t = (first + p) * page_tokens; t < (first + p + 1) * page_tokens; ++t) {
            bounds.take(view.keys(head, t, 1, row), d);
          }
          for (int j = 0; j < d; ++j) {
            space.column(head, j)[p] = value(bounds.most[j]);
            space.column(head, d + j)[p] = value(bounds.least[j]);
          }
        }
      }
    });
    pages.commit(space.entries);
  }
}

std::vector<float> bound_weights(const std::vector<float>& q, int head_dim) {
  std::vector<float> weights;
  weights.reserve(2 * q.size());
  for (auto head = q.begin(); head != q.end(); head += head_dim) {
    for (int j = 0; j < head_dim; ++j) weights.push_back(std::max(head[j], 0.0f));
    for (int j = 0; j < head_dim; ++j) weights.push_back(std::min(head[j], 0.0f));
  }
  return weights;
}

}  // namespace hayloft::index
