#include "gpu/cpu/pieces.h"

#include <algorithm>
#include <tuple>

#include "gpu/cpu/rows.h"

namespace hayloft::gpu {
namespace {

static_assert(kRangeRows % kTileRows == 0);

void cut_step(const AttendStep& step, std::size_t index, int query_heads, std::vector<Piece>& pieces) {
  const int group = query_heads / step.cache.kv_heads;
  const Attended& what = step.what;
  const auto cut = [&](Piece piece, std::int64_t end, std::int64_t rows) {
    for (; piece.begin < end; piece.begin += rows) {
      piece.end = std::min(piece.begin + rows, end);
      piece.own = piece.begin;
      pieces.push_back(piece);
    }
  };
  const auto list = [&](int i) { return what.positions + static_cast<std::int64_t>(i) * what.k; };
  const auto size = [&](int i) { return what.sizes == nullptr ? what.k : what.sizes[i]; };
  for (int head = 0; head < step.cache.kv_heads; ++head) {
    for (const Attended::Range& range : what.ranges) {
      cut({index, head, head * group, group, nullptr, range.begin, 0}, range.end, kRangeRows);
    }
    if (what.lists == step.cache.kv_heads) {
      cut({index, head, head * group, group, list(head), 0, 0}, size(head), kListRows);
    } else if (what.lists == query_heads) {
      for (int query = head * group; query < (head + 1) * group; ++query) {
        cut({index, head, query, 1, list(query), 0, 0}, size(query), kListRows);
      }
    }
  }
}

const std::byte* block_at(const offload::LayerView& store, std::int64_t position) {
  return store.blocks[static_cast<std::size_t>(store.block_of(position))];
}

// Returns where the rows end that both tails have, those of one sequence or of caches forked from one another.
std::int64_t end_of_common_tail(const CacheView& a, const CacheView& b) {
  const bool same = a.tail.rows == b.tail.rows && a.tail.capacity == b.tail.capacity && a.tail.first == b.tail.first &&
                    a.tail.position == b.tail.position;
  if (same) return std::min(a.tokens(), b.tokens());
  std::int64_t end = 0;
  for (const TailOrigin& of_a : a.origins) {
    for (const TailOrigin& of_b : b.origins) {
      if (of_a.cache == of_b.cache) end = std::max(end, std::min(of_a.end, of_b.end));
    }
  }
  return end;
}

// Returns the end of the positions from `begin` on, at most `end`, that lie in the same blocks in both, or in what
// their tails have in common.
std::int64_t end_of_common(const CacheView& a, const CacheView& b, std::int64_t begin, std::int64_t end) {
  const std::int64_t stored = std::min({end, a.store.tokens, b.store.tokens});
  while (begin < stored && block_at(a.store, begin) == block_at(b.store, begin)) {
    begin = (begin / a.store.layout->block_tokens + 1) * a.store.layout->block_tokens;
  }
  if (begin < stored || a.store.tokens != b.store.tokens) return std::min(begin, stored);
  return std::min(end, std::max(stored, end_of_common_tail(a, b)));
}

// Returns what two pieces have alike that may begin with the same rows: the block that the position is in, or the
// oldest origin of a tail's row there, and the tail itself where it has none.
std::uintptr_t start_of(const CacheView& cache, std::int64_t position) {
  if (position < cache.store.tokens) return reinterpret_cast<std::uintptr_t>(block_at(cache.store, position));
  const auto origin = std::ranges::find_if(cache.origins, [&](const TailOrigin& of) { return of.end > position; });
  if (origin != cache.origins.end()) return static_cast<std::uintptr_t>(origin->cache);
  return reinterpret_cast<std::uintptr_t>(cache.tail.rows);
}

// Pieces of one KV head that begin at the same position in the same block share what they all have in common; where
// one of them goes on behind it, whole tiles of that.
std::vector<SharedRows> find_shared(std::span<const AttendStep> steps, std::span<const Piece> pieces) {
  const auto cache = [&](std::size_t i) -> const CacheView& { return steps[pieces[i].step].cache; };
  const auto key = [&](std::size_t i) {
    return std::tuple(pieces[i].head, pieces[i].begin, start_of(cache(i), pieces[i].begin));
  };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].list == nullptr) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, key);
  std::vector<SharedRows> shared;
  for (auto from = order.begin(); from != order.end();) {
    const auto to = std::find_if(from, order.end(), [&](std::size_t i) { return key(i) != key(*from); });
    const std::int64_t begin = pieces[*from].begin;
    std::int64_t end = pieces[*from].end;
    std::int64_t longest = end;
    for (auto i = from; i != to; ++i) {
      end = end_of_common(cache(*from), cache(*i), begin, std::min(end, pieces[*i].end));
      longest = std::max(longest, pieces[*i].end);
    }
    if (end < longest && end > begin) end -= (end - begin) % kTileRows;
    if (to - from > 1 && begin < end) shared.push_back({{from, to}, begin, end});
    from = to;
  }
  return shared;
}

}  // namespace

Pieces cut_pieces(std::span<const AttendStep> steps, int query_heads) {
  Pieces pieces;
  pieces.first_of.push_back(0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    cut_step(steps[i], i, query_heads, pieces.all);
    pieces.first_of.push_back(pieces.all.size());
  }
  const auto take_states = [&](Piece& piece) {
    piece.state = pieces.states;
    pieces.states += piece.queries;
  };
  if (steps.size() > 1) pieces.shared = find_shared(steps, pieces.all);
  for (const SharedRows& rows : pieces.shared) {
    for (const std::size_t i : rows.pieces) {
      pieces.all[i].own = rows.end;
      take_states(pieces.all[i]);
    }
  }
  for (std::size_t i = 0; i < pieces.all.size(); ++i) {
    Piece& piece = pieces.all[i];
    if (piece.own == piece.begin) take_states(piece);
    if (piece.own < piece.end) pieces.with_rest.push_back(i);
  }
  return pieces;
}

}  // namespace hayloft::gpu
