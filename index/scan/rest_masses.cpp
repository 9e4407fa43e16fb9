#include "index/scan/rest_masses.h"

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <span>

#include "index/scan/columns/column_kernels.h"
#include "index/scan/columns/column_scores.h"

namespace hayloft::index {
namespace {

constexpr std::int64_t kPartTokens = 8192;  // of one KV head scanned at a time; a multiple of every tile
constexpr float kMostExponent = 60;         // of a mass

// Returns the bits from which a position's random number is made. 32-bit arithmetic alone, so that it is the same
// in vectors and on devices.
inline std::uint32_t mixed_position(std::uint64_t key, std::uint32_t position) {
  std::uint32_t x = position * 0x9e3779b1u + static_cast<std::uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13) ^ static_cast<std::uint32_t>(key >> 32)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

inline float unit_number(std::uint32_t bits) {
  return (static_cast<float>(static_cast<std::int32_t>(bits >> 9)) + 0.5f) * 0x1p-23f;
}

// Keeps the best of what is offered: the largest ranks, ties to the smaller position.
class Candidates {
 public:
  Candidates(int best, int heads) : best_(static_cast<std::size_t>(best)), heads_(static_cast<std::size_t>(heads)) {}

  // Ranks below it have no chance.
  float least() const { return least_; }
  // masses [heads], `stride` floats from one to the next.
  void offer(std::int32_t position, float rank, float p, const float* masses, std::int64_t stride) {
    const auto at = static_cast<std::int32_t>(p_.size());
    entries_.push_back({rank, position, at});
    p_.push_back(p);
    for (std::size_t h = 0; h < heads_; ++h) masses_.push_back(masses[static_cast<std::int64_t>(h) * stride]);
    if (entries_.size() >= 2 * best_ + 64) cut();
  }
  void take(const Candidates& other) {
    for (const Entry& e : other.entries_) {
      if (e.rank >= least_) {
        const auto at = static_cast<std::size_t>(e.at);
        offer(e.position, e.rank, other.p_[at], other.masses_.data() + at * heads_, 1);
      }
    }
  }

  // The draw of `count`, one less than are kept.
  RestMasses::Draw draw(int count) {
    cut();
    RestMasses::Draw draw;
    float threshold = 0;
    const auto n = static_cast<std::size_t>(count);
    if (entries_.size() > n) {
      threshold = entries_[n].rank;
      entries_.resize(n);
    }
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.position < b.position; });
    draw.masses.resize(entries_.size() * heads_);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto at = static_cast<std::size_t>(entries_[i].at);
      draw.positions.push_back(entries_[i].position);
      draw.chances.push_back(p_[at] >= threshold ? 1 : p_[at] / threshold);
      for (std::size_t h = 0; h < heads_; ++h) draw.masses[h * entries_.size() + i] = masses_[at * heads_ + h];
    }
    return draw;
  }

 private:
  struct Entry {
    float rank;
    std::int32_t position;
    std::int32_t at;  // in p_ and masses_
  };
  static bool better(const Entry& a, const Entry& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position < b.position;
  }

  // Leaves the best, the last of which comes last.
  void cut() {
    if (entries_.size() < best_) return;
    const auto last = entries_.begin() + static_cast<std::ptrdiff_t>(best_) - 1;
    std::nth_element(entries_.begin(), last, entries_.end(), better);
    entries_.resize(best_);
    least_ = entries_.back().rank;
    std::vector<float> p;
    std::vector<float> masses;
    for (Entry& e : entries_) {
      const auto at = static_cast<std::size_t>(e.at);
      e.at = static_cast<std::int32_t>(p.size());
      p.push_back(p_[at]);
      masses.insert(masses.end(), masses_.begin() + static_cast<std::ptrdiff_t>(at * heads_),
                    masses_.begin() + static_cast<std::ptrdiff_t>((at + 1) * heads_));
    }
    p_ = std::move(p);
    masses_ = std::move(masses);
  }

  std::size_t best_;
  std::size_t heads_;
  float least_ = 0;
  std::vector<Entry> entries_;
  std::vector<float> p_;
  std::vector<float> masses_;  // [.][heads]
};

// Sums of n masses, a multiple of 64, and of their squares.
void add_masses(const float* x, int n, double& sum, double& squares) {
  std::array<float, 16> sums{};
  std::array<float, 16> of_squares{};
  for (int i = 0; i < n; i += 16) {
    for (std::size_t lane = 0; lane < 16; ++lane) {
      const float mass = x[i + static_cast<int>(lane)];
      sums[lane] += mass;
      of_squares[lane] += mass * mass;
    }
  }
  sum += std::accumulate(sums.begin(), sums.end(), 0.0);
  squares += std::accumulate(of_squares.begin(), of_squares.end(), 0.0);
}

// One part of one KV head's positions gives these.
struct MassPart {
  std::vector<double> sum;
  std::vector<double> squares;
  std::vector<Candidates> candidates;  // [lists of the head]
};

// The scan of the parts: scores become masses tile by tile, in place.
class MassScan {
 public:
  MassScan(const offload::LayerView& view, const RestSearch& search)
      : view_(view),
        search_(search),
        group_(search.scores.query_heads / view.layout->kv_heads),
        heads_(search.scores.per_query_head() ? 1 : group_) {
    for (int h = 0; h < search.scores.query_heads; ++h) {
      references_.push_back(search.log_sums[h] - search.lines[h].offset);
    }
  }

  int heads() const { return heads_; }

  MassPart scan(int head, std::int64_t begin, std::int64_t end) const {
    const int tile = ColumnScores::tile_tokens(search_.scores, group_);
    const int stride = ColumnScores::stride(tile);
    ColumnScores columns(view_, search_.scores, head, head * group_, group_, tile);
    const auto scores =
        hwy::AllocateAligned<float>(static_cast<std::size_t>(group_) * static_cast<std::size_t>(stride));
    const auto added = hwy::AllocateAligned<float>(static_cast<std::size_t>(tile) + 64);
    const auto ranks = hwy::AllocateAligned<float>(static_cast<std::size_t>(tile) + 64);
    const int lists = group_ / heads_;
    MassPart part;
    part.sum.resize(static_cast<std::size_t>(group_));
    part.squares.resize(static_cast<std::size_t>(group_));
    for (int list = 0; list < lists; ++list) part.candidates.emplace_back(search_.count + 1, heads_);
    for (std::int64_t t = begin; t < end;) {
      const std::int64_t stop = std::min(end, (t / tile + 1) * tile);
      const int n = static_cast<int>((stop - t + 63) / 64 * 64);
      columns.score(t, stop, scores.get());
      for (int h = 0; h < group_; ++h) {
        float* const x = scores.get() + static_cast<std::ptrdiff_t>(h) * stride;
        const float reference = references_[static_cast<std::size_t>(head * group_ + h)];
        const float most = reference + kMostExponent;
        const float slope = search_.lines[head * group_ + h].slope;
        for (int i = 0; i < n; ++i) {
          const float logit = slope * x[i];
          x[i] = most < logit ? most : logit;
        }
        group_scores(GroupScore::softmax, x, stride, 1, n, &reference, x);
        std::fill(x + (stop - t), x + n, 0.0f);
        leave_out(head * group_ + h, t, stop, x);
        add_masses(x, n, part.sum[static_cast<std::size_t>(h)], part.squares[static_cast<std::size_t>(h)]);
      }
      for (int list = 0; list < lists && search_.count > 0; ++list) {
        const float* const x = scores.get() + static_cast<std::ptrdiff_t>(list) * heads_ * stride;
        const float* p = x;
        if (heads_ > 1) {
          group_scores(GroupScore::logits, x, stride, heads_, n, nullptr, added.get());
          p = added.get();
        }
        offer(t, n, p, x, stride, ranks.get(), part.candidates[static_cast<std::size_t>(list)]);
      }
      t = stop;
    }
    return part;
  }

 private:
  // Takes what is attended of [begin, end) out of a query head's masses.
  void leave_out(int query_head, std::int64_t begin, std::int64_t end, float* x) const {
    const int k = search_.scores.k;
    const std::int32_t* const first = search_.taken + static_cast<std::ptrdiff_t>(query_head / heads_) * k;
    const std::int32_t* at = std::lower_bound(first, first + k, begin);
    for (; at != first + k && *at < end; ++at) x[*at - begin] = 0;
  }

  void offer(std::int64_t begin, int n, const float* p, const float* x, int stride, float* ranks,
             Candidates& candidates) const {
    if (search_.shard.alone()) {
      for (int i = 0; i < n; ++i) {
        ranks[i] = p[i] / unit_number(mixed_position(search_.key, static_cast<std::uint32_t>(begin + i)));
      }
    } else {
      for (int i = 0; i < n; ++i) {
        const std::int64_t position = search_.shard.whole(begin + i, search_.block_tokens);
        ranks[i] = p[i] / unit_number(mixed_position(search_.key, static_cast<std::uint32_t>(position)));
      }
    }
    for (int i = 0; i < n; ++i) {
      if (ranks[i] > 0 && ranks[i] >= candidates.least()) {
        candidates.offer(static_cast<std::int32_t>(begin + i), ranks[i], p[i], x + i, stride);
      }
    }
  }

  const offload::LayerView& view_;
  const RestSearch& search_;
  std::vector<float> references_;  // [Hq]
  int group_;
  int heads_;  // of a list
};

}  // namespace

float drawn_number(std::uint64_t key, std::int32_t position) {
  return unit_number(mixed_position(key, static_cast<std::uint32_t>(position)));
}

RestMasses rest_masses(const offload::LayerView& view, const RestSearch& search, const offload::Threads& threads) {
  require_valid(view, search.scores);
  const auto query_heads = static_cast<std::size_t>(search.scores.query_heads);
  RestMasses rest;
  rest.sum.resize(query_heads);
  rest.squares.resize(query_heads);
  rest.draws.resize(static_cast<std::size_t>(search.scores.lists(view.layout->kv_heads, search.scores.query_heads)));
  if (search.scores.limit == 0) return rest;
  const MassScan scan(view, search);
  const std::int64_t limit = search.scores.limit;
  const std::int64_t parts = (limit + kPartTokens - 1) / kPartTokens;
  std::vector<MassPart> found(static_cast<std::size_t>(view.layout->kv_heads * parts));
  threads.parallel_for(static_cast<std::int64_t>(found.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % parts * kPartTokens;
      found[static_cast<std::size_t>(i)] =
          scan.scan(static_cast<int>(i / parts), first, std::min(limit, first + kPartTokens));
    }
  });
  const std::size_t group = query_heads / static_cast<std::size_t>(view.layout->kv_heads);
  const std::size_t lists = group / static_cast<std::size_t>(scan.heads());  // of a KV head
  for (std::size_t head = 0; head < static_cast<std::size_t>(view.layout->kv_heads); ++head) {
    const auto of_head =
        std::span(found).subspan(head * static_cast<std::size_t>(parts), static_cast<std::size_t>(parts));
    for (std::size_t h = 0; h < group; ++h) {
      for (const MassPart& part : of_head) {
        rest.sum[head * group + h] += part.sum[h];
        rest.squares[head * group + h] += part.squares[h];
      }
    }
    for (std::size_t list = 0; list < lists && search.count > 0; ++list) {
      Candidates all(search.count + 1, scan.heads());
      for (const MassPart& part : of_head) all.take(part.candidates[list]);
      rest.draws[head * lists + list] = all.draw(search.count);
    }
  }
  return rest;
}

}  // namespace hayloft::index
