#include "runtime/cluster/rank_finds.h"

#include <algorithm>
#include <span>

#include "index/ann/key_rows.h"
#include "runtime/cluster/candidates.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime::cluster {
namespace {

// A count as two numbers that f32 holds exactly, up to 2^48: notes are f32.
constexpr std::uint64_t half_count = std::uint64_t{1} << 24;

std::vector<float> as_note(const std::vector<std::uint64_t>& counts) {
  std::vector<float> note;
  for (const std::uint64_t count : counts) {
    note.push_back(static_cast<float>(count / half_count));
    note.push_back(static_cast<float>(count % half_count));
  }
  return note;
}

// Own positions [Hq][k] as whole ones, with the products of their keys.
Candidates scored(const LayerStep& at, const Part& part, const float* q, const std::vector<std::int32_t>& positions,
                  int most) {
  Candidates own(at.query_heads, 1, most);
  const auto k = static_cast<int>(positions.size()) / at.query_heads;
  if (k == 0) return own;
  const int group = at.group();
  at.backend.threads().parallel_for(at.query_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      const std::int32_t* const found = positions.data() + h * k;
      const std::size_t first = own.index(static_cast<int>(h), 0);
      const index::KeyRows rows(part.cache().store, static_cast<int>(h) / group);
      index::score_rows(rows, q + h * at.head_dim(), found, k, own.logits.data() + first);
      std::transform(found, found + k, own.positions.begin() + static_cast<std::ptrdiff_t>(first),
                     [&](std::int32_t position) { return static_cast<std::int32_t>(part.whole(position)); });
    }
  });
  return own;
}

}  // namespace

Finds find_over_ranks(Communicator& ranks, const Step& step, const SelectionPlan& plan, const float* q,
                      const OwnSearch& search) {
  if (plan.k == 0) return {};
  const LayerStep& at = step.at;
  const Part part(at.cache);
  const std::int64_t limit = part.own(plan.limit);
  const auto k = static_cast<int>(std::min<std::int64_t>(plan.k, limit));
  std::vector<std::int32_t> positions(static_cast<std::size_t>(at.query_heads) * static_cast<std::size_t>(k));
  const std::vector<std::uint64_t> counts = search(part.cache().store, limit, k, positions.data());
  const GatheredCandidates all(ranks, scored(at, part, q, positions, plan.k), as_note(counts));
  const auto by_product = [](int, std::span<const float> products) { return products.front(); };
  Finds finds;
  finds.positions = all.best(plan.k, by_product, at.backend.threads()).positions;
  finds.counted.resize(counts.size());
  for (int rank = 0; rank < ranks.ranks(); ++rank) {
    const offload::Shard shard{rank, ranks.ranks()};
    const std::int64_t there = shard.own(plan.limit, at.cache.store.layout->block_tokens);
    finds.scored += static_cast<std::uint64_t>(at.query_heads * std::min<std::int64_t>(plan.k, there));
    const std::span<const float> halves = all.note(rank);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      finds.counted[i] +=
          static_cast<std::uint64_t>(halves[2 * i]) * half_count + static_cast<std::uint64_t>(halves[2 * i + 1]);
    }
  }
  return finds;
}

}  // namespace hayloft::runtime::cluster
