#include "index/column_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "index/column_scores.h"

namespace hayloft::index {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t piece_bytes = 1 << 20;  // of columns; long enough to hide what starting a piece costs

// The tiles the guess is made from: the first and the last, where attention likes to gather, and up to 16 between.
std::vector<std::int64_t> sample_tiles(std::int64_t tiles) {
  std::vector<std::int64_t> sample{0};
  const std::int64_t between = std::min<std::int64_t>(16, tiles / 32);
  for (std::int64_t i = 1; i <= between; ++i) sample.push_back(i * tiles / (between + 1));
  if (tiles > 1) sample.push_back(tiles - 1);
  return sample;
}

class Scanner {
 public:
  Scanner(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads, ColumnScan& scan)
      : view_(view), search_(search), threads_(threads), scan_(scan), sampled_(static_cast<std::size_t>(scan.tiles)) {}

  void run(const float* start_max, const float* start_sum) {
    const std::int64_t kv_heads = view_.layout->kv_heads;
    if (scan_.tile_sums) {
      std::fill_n(scan_.guesses.get(), search_.query_heads, -infinity);
      const std::vector<std::int64_t> sample = sample_tiles(scan_.tiles);
      const auto count = static_cast<std::int64_t>(sample.size());
      threads_.parallel_for(kv_heads * count, 1, [&](std::int64_t begin, std::int64_t end) {
        Worker worker(*this);
        for (std::int64_t i = begin; i < end; ++i) {
          worker.tile(static_cast<int>(i / count), sample[static_cast<std::size_t>(i % count)]);
        }
      });
      for (int first = 0; first < search_.query_heads; first += scan_.group) {
        guess_group(first, sample, start_max + first, start_sum + first);
      }
      for (const std::int64_t t : sample) sampled_[static_cast<std::size_t>(t)] = true;
    }
    const std::int64_t tile_bytes = std::int64_t{search_.rank} * scan_.tile * static_cast<std::int64_t>(sizeof(f16));
    const std::int64_t total = kv_heads * scan_.tiles;
    const std::int64_t fair = total / (4 * threads_.count());
    threads_.parallel_for(total, std::clamp<std::int64_t>(piece_bytes / tile_bytes, 1, std::max<std::int64_t>(1, fair)),
                          [&](std::int64_t begin, std::int64_t end) {
                            Worker worker(*this);
                            for (std::int64_t i = begin; i < end; ++i) {
                              if (sampled_[static_cast<std::size_t>(i % scan_.tiles)]) continue;
                              worker.tile(static_cast<int>(i / scan_.tiles), i % scan_.tiles);
                            }
                          });
  }

 private:
  // How far above its guess a tile's maximum may lie before the tile takes its own maximum for the reference: exp's
  // relative error grows with the distance.
  static constexpr float trusted_excess = 8;

  // One thread's scratch.
  class Worker {
   public:
    explicit Worker(const Scanner& scanner) : scanner_(scanner), scan_(scanner.scan_) {
      const auto group = static_cast<std::size_t>(scan_.group);
      scores_ = hwy::AllocateAligned<float>(group * static_cast<std::size_t>(ColumnScores::stride(scan_.group)));
      sums_ = hwy::AllocateAligned<float>(group * 16);
      references_.resize(group);
    }

    void tile(int head, std::int64_t index) {
      if (head != head_) {
        columns_.emplace(scanner_.view_, scanner_.search_, head, head * scan_.group, scan_.group);
        head_ = head;
      }
      const int first = head * scan_.group;
      const std::int64_t begin = index * scan_.tile;
      const std::int64_t end = std::min(begin + scan_.tile, scanner_.view_.tokens);
      const std::int64_t subtile = begin / subtile_tokens;
      const auto subtiles = static_cast<int>((end - begin + subtile_tokens - 1) / subtile_tokens);
      TileNotes notes;
      notes.head_maxima = scan_.head_maxima.get() + first * scan_.subtile_stride + subtile;
      notes.maxima_stride = scan_.subtile_stride;
      if (scan_.group_maxima) notes.group_maxima = scan_.group_maxima.get() + head * scan_.subtile_stride + subtile;
      const bool logits = scanner_.search_.rule == GroupRule::logits;
      notes.group_score = logits ? GroupScore::logits : GroupScore::softmax;
      const float* guesses = scan_.guesses.get() + first;
      const bool guessed =
          scan_.tile_sums && std::all_of(guesses, guesses + scan_.group, [](float g) { return g > -infinity; });
      if (guessed) set_references(notes, guesses);
      columns_->score(begin, end, scores_.get(), &notes);

      bool near = guessed;
      for (int h = 0; h < scan_.group; ++h) {
        const float* maxima = notes.head_maxima + h * notes.maxima_stride;
        float most = -infinity;
        for (int i = 0; i < subtiles; ++i) most = std::max(most, maxima[i]);
        scan_.tile_maxima[at(first + h, index)] = most;
        references_[static_cast<std::size_t>(h)] = most;
        near = near && most - guesses[h] <= trusted_excess;
      }
      if (!scan_.tile_sums) return;
      if (!near) {
        set_references(notes, references_.data());
        take_notes(scores_.get(), ColumnScores::stride(scan_.group), scan_.group, subtiles * subtile_tokens, notes);
      }
      for (int h = 0; h < scan_.group; ++h) {
        scan_.tile_references[at(first + h, index)] = notes.references[h];
        scan_.tile_sums[at(first + h, index)] = std::accumulate(sums_.get() + h * 16, sums_.get() + h * 16 + 16, 0.0f);
      }
    }

   private:
    void set_references(TileNotes& notes, const float* references) {
      notes.references = references;
      notes.sums = sums_.get();
      std::fill_n(sums_.get(), scan_.group * 16, 0.0f);
    }
    std::size_t at(int query_head, std::int64_t tile) const {
      return static_cast<std::size_t>(query_head * scan_.tiles + tile);
    }

    const Scanner& scanner_;
    ColumnScan& scan_;
    int head_ = -1;
    std::optional<ColumnScores> columns_;        // of head_
    hwy::AlignedFreeUniquePtr<float[]> scores_;  // [g][stride]
    hwy::AlignedFreeUniquePtr<float[]> sums_;    // [g][16]
    std::vector<float> references_;              // [g]
  };

  // All guesses of a group are lowered alike until the largest logit of the sample is near one of them, so that exp has
  // something to work with even where nearly all of the softmax lies outside the store.
  void guess_group(int first, const std::vector<std::int64_t>& sample, const float* start_max, const float* start_sum) {
    double top = -infinity;
    std::vector<double> log_sums;
    for (int h = 0; h < scan_.group; ++h) {
      const float* maxima = scan_.tile_maxima.get() + (first + h) * scan_.tiles;
      double max = -infinity;
      for (const std::int64_t t : sample) max = std::max<double>(max, maxima[t]);
      log_sums.push_back(guess_log_sum(first + h, sample, start_max[h], start_sum[h]));
      top = std::max(top, max - log_sums.back());
    }
    for (int h = 0; h < scan_.group; ++h) {
      const auto guess = static_cast<float>(log_sums[static_cast<std::size_t>(h)] + top);
      scan_.guesses[static_cast<std::size_t>(first + h)] = std::isfinite(guess) ? guess : -infinity;
    }
  }

  // The first and the last tile count once, the others stand for all between; the largest of these counts once too,
  // for it may be the one place that matters.
  double guess_log_sum(int query_head, const std::vector<std::int64_t>& sample, float start_max,
                       float start_sum) const {
    const float* references = scan_.tile_references.get() + query_head * scan_.tiles;
    const float* sums = scan_.tile_sums.get() + query_head * scan_.tiles;
    double max = start_max;
    for (const std::int64_t t : sample) max = std::max<double>(max, references[t]);
    const auto share = [&](std::int64_t t) { return sums[t] * std::exp(references[t] - max); };
    double sum = start_sum != 0 ? start_sum * std::exp(start_max - max) : 0.0;
    sum += share(sample.front());
    if (sample.size() > 1) sum += share(sample.back());
    if (sample.size() > 2) {
      double most = 0;
      double between = 0;
      for (std::size_t i = 1; i + 1 < sample.size(); ++i) {
        most = std::max(most, share(sample[i]));
        between += share(sample[i]);
      }
      const auto count = static_cast<double>(sample.size() - 2);
      const auto stand_for = static_cast<double>(scan_.tiles - 2);
      sum += count > 1 ? most + (between - most) / (count - 1) * (stand_for - 1) : between * stand_for;
    }
    return max + std::log(sum);
  }

  const offload::LayerView& view_;
  const ColumnSearch& search_;
  const offload::Threads& threads_;
  ColumnScan& scan_;
  std::vector<bool> sampled_;
};

}  // namespace

ColumnScan::State ColumnScan::state(int query_head, State outside) const {
  const auto row = static_cast<std::size_t>(query_head) * static_cast<std::size_t>(tiles);
  const float* maxima = tile_maxima.get() + row;
  const float* references = tile_references.get() + row;
  const float* sums = tile_sums.get() + row;
  float max = outside.max;
  for (std::int64_t t = 0; t < tiles; ++t) max = std::max(max, maxima[t]);
  const auto share = [&](double sum, float reference) {
    return sum == 0 ? 0 : sum * std::exp(static_cast<double>(reference) - max);
  };
  // Nearly every tile has the guess for its reference: one exp for all of those.
  const float guess = guesses[static_cast<std::size_t>(query_head)];
  double guessed = 0;
  double sum = share(outside.sum, outside.max);
  for (std::int64_t t = 0; t < tiles; ++t) {
    if (references[t] == guess) {
      guessed += sums[t];
    } else {
      sum += share(sums[t], references[t]);
    }
  }
  return {max, sum + share(guessed, guess)};
}

ColumnScan scan_columns(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads,
                        bool with_softmax, const float* start_max, const float* start_sum) {
  ColumnScan scan;
  const int kv_heads = view.layout->kv_heads;
  scan.group = search.query_heads / kv_heads;
  scan.tile = ColumnScores::tile_tokens(scan.group);
  scan.tiles = (view.tokens + scan.tile - 1) / scan.tile;
  scan.subtiles = (view.tokens + subtile_tokens - 1) / subtile_tokens;
  scan.subtile_stride = (scan.subtiles + 63) / 64 * 64;
  const auto query_heads = static_cast<std::size_t>(search.query_heads);
  const auto row = static_cast<std::size_t>(scan.subtile_stride);
  const auto tile_row = static_cast<std::size_t>(scan.tiles);
  scan.head_maxima = hwy::AllocateAligned<float>(query_heads * row);
  if (search.per == SelectPer::kv_head && scan.group > 1) {
    scan.group_maxima = hwy::AllocateAligned<float>(static_cast<std::size_t>(kv_heads) * row);
  }
  scan.tile_maxima = hwy::AllocateAligned<float>(query_heads * tile_row);
  if (with_softmax) {
    scan.tile_references = hwy::AllocateAligned<float>(query_heads * tile_row);
    scan.tile_sums = hwy::AllocateAligned<float>(query_heads * tile_row);
    scan.guesses = hwy::AllocateAligned<float>(query_heads);
  }
  for (std::size_t h = 0; h < query_heads; ++h) {
    float* maxima = scan.head_maxima.get() + h * row;
    std::fill(maxima + scan.subtiles, maxima + row, -infinity);
  }
  Scanner(view, search, threads, scan).run(start_max, start_sum);
  return scan;
}

}  // namespace hayloft::index
