#include "index/scan/rest_masses.h"

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>

#include "index/scan/columns/column_scores.h"
#include "index/scan/kept_scores.h"
#include "index/scan/rest_kernels.h"
#include "index/scan/top_positions.h"

namespace hayloft::index {
namespace {

constexpr std::int64_t kPieceTokens = 2048;        // that a thread takes at a time where scores are kept
constexpr std::int64_t kScoredPieceTokens = 8192;  // and where they are found anew

std::uint32_t mixed_position(std::uint64_t key, std::uint32_t position) {
  std::uint32_t x = position * 0x9e3779b1u + static_cast<std::uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13) ^ static_cast<std::uint32_t>(key >> 32)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Sums of the masses of one tile, and of their squares.
struct TileSums {
  double sum = 0;
  double squares = 0;
};

// A position that may be drawn.
struct Candidate {
  float priority;
  std::int32_t position;
  float p;
  std::int32_t at;  // of its masses
};

bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.priority != b.priority ? a.priority > b.priority : a.position < b.position;
}

class MassScan {
 public:
  MassScan(const offload::LayerView& view, const RestSearch& search)
      : view_(view),
        search_(search),
        kept_(search.kept != nullptr && !search.kept->empty() ? search.kept : nullptr),
        group_(search.scores.query_heads / view.layout->kv_heads),
        heads_(search.scores.per_query_head() ? 1 : group_),
        tile_(ColumnScores::tile_tokens(search.scores, group_)),
        stride_(ColumnScores::stride(tile_)),
        tiles_((search.scores.limit + tile_ - 1) / tile_),
        sums_(static_cast<std::size_t>(search.scores.query_heads * tiles_)) {
    if (search.count > 0) {
      const std::int64_t lists = search.scores.query_heads / heads_;
      maxima_.resize(static_cast<std::size_t>(lists * maxima()));
    }
  }

  // Fills the sums, and the largest priorities.
  void run(const offload::Threads& threads) {
    const std::int64_t grain =
        std::max<std::int64_t>(1, (kept_ == nullptr ? kScoredPieceTokens : kPieceTokens) / tile_);
    threads.parallel_for(view_.layout->kv_heads * tiles_, grain, [&](std::int64_t begin, std::int64_t end) {
      Reader reader(*this);
      for (std::int64_t i = begin; i < end; ++i) scan(static_cast<int>(i / tiles_), i % tiles_, reader);
    });
  }

  TileSums sums(int query_head) const {
    TileSums all;
    for (std::int64_t i = query_head * tiles_; i < (query_head + 1) * tiles_; ++i) {
      all.sum += sums_[static_cast<std::size_t>(i)].sum;
      all.squares += sums_[static_cast<std::size_t>(i)].squares;
    }
    return all;
  }

  // The draw of a list: only spans whose largest priority may be among the best are looked at.
  RestMasses::Draw draw(int list) const {
    const auto count = static_cast<std::size_t>(search_.count);
    const auto best = count + 1;
    const std::span<const float> of_list =
        std::span(maxima_).subspan(static_cast<std::size_t>(list * maxima()), static_cast<std::size_t>(maxima()));
    const float least = std::max(0.0f, kth_largest(of_list, static_cast<std::int64_t>(best)));
    std::vector<Candidate> candidates;
    std::vector<float> masses;  // [candidates][heads]
    Reader reader(*this);
    alignas(64) std::array<float, draw_span_tokens> p;
    alignas(64) std::array<float, draw_span_tokens> priorities;
    std::array<std::int32_t, draw_span_tokens> at;
    for (std::int64_t begin = 0; begin < search_.scores.limit; begin += draw_span_tokens) {
      const auto of_span =
          of_list.subspan(static_cast<std::size_t>(begin / draw_span_tokens) * draw_span_maxima, draw_span_maxima);
      const float most = *std::max_element(of_span.begin(), of_span.end());
      if (most <= 0 || most < least) continue;
      const std::int64_t end = std::min(begin + draw_span_tokens, search_.scores.limit);
      const float* const x = reader.masses(list * heads_, begin, end);
      const int n = padded(end - begin);
      const Starts starts(search_, begin, n);
      const int high = draw_candidates({x, stride_, heads_, n}, {search_.key, starts.data()}, least, p.data(),
                                       priorities.data(), at.data());
      for (const std::int32_t t : std::span(at).first(static_cast<std::size_t>(high))) {
        candidates.push_back({priorities[static_cast<std::size_t>(t)], static_cast<std::int32_t>(begin) + t,
                              p[static_cast<std::size_t>(t)], static_cast<std::int32_t>(candidates.size())});
        for (int h = 0; h < heads_; ++h) masses.push_back(x[std::ptrdiff_t{h} * stride_ + t]);
      }
    }
    float threshold = 0;
    if (candidates.size() > count) {
      const auto next = candidates.begin() + static_cast<std::ptrdiff_t>(count);
      std::nth_element(candidates.begin(), next, candidates.end(), ranks_before);
      threshold = next->priority;
      candidates.resize(count);
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.position < b.position; });
    RestMasses::Draw draw;
    draw.masses.resize(candidates.size() * static_cast<std::size_t>(heads_));
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Candidate& c = candidates[i];
      draw.positions.push_back(c.position);
      draw.chances.push_back(c.p >= threshold ? 1 : c.p / threshold);
      for (std::size_t h = 0; h < static_cast<std::size_t>(heads_); ++h) {
        draw.masses[h * candidates.size() + i] =
            masses[static_cast<std::size_t>(c.at) * static_cast<std::size_t>(heads_) + h];
      }
    }
    return draw;
  }

 private:
  // Maxima of a list; tiles hold whole spans.
  std::int64_t maxima() const { return tiles_ * tile_ / draw_span_tokens * draw_span_maxima; }
  // Kernels go over whole multiples of 64.
  static int padded(std::int64_t n) { return static_cast<int>((n + 63) / 64 * 64); }

  // The first position of each 16 masses of a tile.
  class Starts {
   public:
    Starts(const RestSearch& search, std::int64_t begin, std::int64_t n) {
      for (std::int64_t t = 0; t < n; t += 16) starts_[static_cast<std::size_t>(t / 16)] = position(search, begin + t);
    }
    const std::uint32_t* data() const { return starts_.data(); }

   private:
    // Blocks hold 16 tokens at least, and whole multiples of them.
    static std::uint32_t position(const RestSearch& search, std::int64_t t) {
      return static_cast<std::uint32_t>(search.shard.alone() ? t : search.shard.whole(t, search.block_tokens));
    }
    std::array<std::uint32_t, 2048 / 16> starts_;  // of the longest tile
  };

  // One thread's scores that are found anew.
  class Reader {
   public:
    explicit Reader(const MassScan& scan)
        : scan_(scan), sums_(hwy::AllocateAligned<float>(static_cast<std::size_t>(scan.heads_) * 32)) {
      if (scan.kept_ != nullptr) return;
      scores_ =
          hwy::AllocateAligned<float>(static_cast<std::size_t>(scan.group_) * static_cast<std::size_t>(scan.stride_));
    }

    // The scores of positions [begin, end) of one tile, [g][stride].
    float* tile(int head, std::int64_t begin, std::int64_t end) {
      if (scan_.kept_ != nullptr) return scan_.kept_->tile(head, begin / scan_.tile_);
      return score(head, head * scan_.group_, scan_.group_, begin, end);
    }

    // The masses of positions [begin, end) of one span, of the query heads of a list, [heads][stride].
    const float* masses(int first, std::int64_t begin, std::int64_t end) {
      const int head = first / scan_.group_;
      if (scan_.kept_ != nullptr) {
        return scan_.kept_->tile(head, begin / scan_.tile_) +
               static_cast<std::ptrdiff_t>(first - head * scan_.group_) * scan_.stride_ + begin % scan_.tile_;
      }
      float* const x = score(head, first, scan_.heads_, begin, end);
      for (int h = 0; h < scan_.heads_; ++h) {
        scan_.make_masses(first + h, begin, end, x + std::ptrdiff_t{h} * scan_.stride_);
      }
      return x;
    }

    // Zeros, [heads of a list][32].
    float* sums() {
      std::fill_n(sums_.get(), scan_.heads_ * 32, 0.0f);
      return sums_.get();
    }

   private:
    float* score(int head, int first, int heads, std::int64_t begin, std::int64_t end) {
      if (first != first_) columns_.emplace(scan_.view_, scan_.search_.scores, head, first, heads, scan_.tile_);
      first_ = first;
      columns_->score(begin, end, scores_.get());
      return scores_.get();
    }

    const MassScan& scan_;
    hwy::AlignedFreeUniquePtr<float[]> sums_;
    hwy::AlignedFreeUniquePtr<float[]> scores_;  // [g][stride]
    std::optional<ColumnScores> columns_;        // of the query heads from first_ on
    int first_ = -1;
  };

  void scan(int head, std::int64_t index, Reader& reader) {
    const std::int64_t begin = index * tile_;
    const std::int64_t end = std::min(begin + tile_, search_.scores.limit);
    float* const x = reader.tile(head, begin, end);
    const int n = padded(end - begin);
    const Starts starts(search_, begin, n);
    for (int h = 0; h < group_; ++h) make_masses(head * group_ + h, begin, end, x + std::ptrdiff_t{h} * stride_);
    for (int first = 0; first < group_; first += heads_) {
      float* const sums = reader.sums();
      float* const squares = sums + heads_ * 16;
      const std::int64_t list = (head * group_ + first) / heads_;
      float* const most =
          maxima_.empty() ? nullptr : maxima_.data() + list * maxima() + begin / draw_span_tokens * draw_span_maxima;
      note_masses({x + std::ptrdiff_t{first} * stride_, stride_, heads_, n}, {search_.key, starts.data()}, sums,
                  squares, most);
      for (int h = 0; h < heads_; ++h) {
        TileSums& of_head = sums_[static_cast<std::size_t>((head * group_ + first + h) * tiles_ + index)];
        of_head.sum = std::accumulate(sums + h * 16, sums + h * 16 + 16, 0.0);
        of_head.squares = std::accumulate(squares + h * 16, squares + h * 16 + 16, 0.0);
      }
    }
  }

  // Makes a query head's scores of [begin, end) masses, up to the next multiple of 64: nothing of what is attended.
  void make_masses(int query_head, std::int64_t begin, std::int64_t end, float* x) const {
    const int n = padded(end - begin);
    const LogitLine& line = search_.lines[query_head];
    scores_to_masses(x, n, line.slope, line.offset - search_.log_sums[query_head]);
    std::fill(x + (end - begin), x + n, 0.0f);
    const int k = search_.scores.k;
    const std::int32_t* const first = search_.taken + static_cast<std::ptrdiff_t>(query_head / heads_) * k;
    for (const std::int32_t* at = std::lower_bound(first, first + k, begin); at != first + k && *at < end; ++at) {
      x[*at - begin] = 0;
    }
  }

  const offload::LayerView& view_;
  const RestSearch& search_;
  KeptScores* kept_;  // null: scores are found anew
  int group_;
  int heads_;  // of a list
  int tile_;
  int stride_;
  std::int64_t tiles_;
  std::vector<TileSums> sums_;  // [Hq][tiles]
  std::vector<float> maxima_;   // [lists][maxima()]
};

}  // namespace

float drawn_number(std::uint64_t key, std::int32_t position) {
  const std::uint32_t bits = mixed_position(key, static_cast<std::uint32_t>(position));
  return (static_cast<float>(static_cast<std::int32_t>(bits >> 9)) + 0.5f) * 0x1p-23f;
}

RestMasses rest_masses(const offload::LayerView& view, const RestSearch& search, const offload::Threads& threads) {
  require_valid(view, search.scores);
  const auto query_heads = static_cast<std::size_t>(search.scores.query_heads);
  RestMasses rest;
  rest.sum.resize(query_heads);
  rest.squares.resize(query_heads);
  rest.draws.resize(static_cast<std::size_t>(search.scores.lists(view.layout->kv_heads, search.scores.query_heads)));
  if (search.scores.limit == 0) return rest;
  MassScan scan(view, search);
  scan.run(threads);
  for (std::size_t h = 0; h < query_heads; ++h) {
    const TileSums sums = scan.sums(static_cast<int>(h));
    rest.sum[h] = sums.sum;
    rest.squares[h] = sums.squares;
  }
  if (search.count > 0) {
    threads.parallel_for(static_cast<std::int64_t>(rest.draws.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t list = begin; list < end; ++list) {
        rest.draws[static_cast<std::size_t>(list)] = scan.draw(static_cast<int>(list));
      }
    });
  }
  if (search.kept != nullptr) search.kept->clear();  // there are masses in it now
  return rest;
}

}  // namespace hayloft::index
