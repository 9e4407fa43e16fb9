#include "index/scan/columns/column_scan.h"

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "index/scan/columns/column_scores.h"
#include "index/scan/kept_scores.h"
#include "index/scan/softmax.h"

namespace hayloft::index {
namespace {

constexpr std::int64_t piece_bytes = 1 << 20;  // of columns; long enough to hide what starting a piece costs

// The guess is made from stretches of this many tokens.
constexpr std::int64_t sample_tokens = 256;

// Returns where samples start: the first and the last, where attention likes to gather, and up to 16 between.
std::vector<std::int64_t> sample_starts(std::int64_t tokens) {
  const std::int64_t stretches = (tokens + sample_tokens - 1) / sample_tokens;
  const std::int64_t between = std::min<std::int64_t>(16, stretches / 32);
  std::vector<std::int64_t> starts{0};
  for (std::int64_t i = 1; i <= between; ++i) starts.push_back(i * stretches / (between + 1) * sample_tokens);
  if (stretches > 1) starts.push_back((stretches - 1) * sample_tokens);
  return starts;
}

// A thread's memory from one scan to the next: fresh pages for every scan would cost as much as reading a tenth of
// them.
class Scratch {
 public:
  explicit Scratch(std::size_t floats) {
    thread_local hwy::AlignedFreeUniquePtr<float[]> memory;
    thread_local std::size_t capacity = 0;
    if (capacity < floats) {
      memory = hwy::AllocateAligned<float>(floats);
      capacity = floats;
    }
    next_ = memory.get();
  }
  float* take(std::size_t floats) { return std::exchange(next_, next_ + floats); }

 private:
  float* next_;
};

class Scanner {
 public:
  Scanner(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads, ColumnScan& scan,
          KeptScores* kept)
      : view_(view), search_(search), threads_(threads), scan_(scan), kept_(kept) {}

  void guess(const float* start_max, const float* start_sum) {
    const std::vector<std::int64_t> starts = sample_starts(view_.tokens);
    threads_.parallel_for(view_.layout->kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      Worker worker(*this);
      for (std::int64_t head = begin; head < end; ++head) {
        worker.guess(static_cast<int>(head), starts, start_max, start_sum);
      }
    });
  }

  void run() {
    const std::int64_t tile_bytes = std::int64_t{search_.rank} * column_bytes(format(), scan_.tile);
    const std::int64_t total = view_.layout->kv_heads * scan_.tiles;
    const std::int64_t fair = std::max<std::int64_t>(1, total / (4 * threads_.count()));
    const std::int64_t grain = std::clamp<std::int64_t>(piece_bytes / tile_bytes, 1, fair);
    threads_.parallel_for(total, grain, [&](std::int64_t begin, std::int64_t end) {
      Worker worker(*this);
      for (std::int64_t i = begin; i < end; ++i) worker.tile(static_cast<int>(i / scan_.tiles), i % scan_.tiles);
    });
  }

 private:
  offload::ColumnFormat format() const {
    return search_.keys == KeySource::rows ? offload::ColumnFormat::f16 : view_.layout->columns;
  }

  // A tile whose maximum lies further than this above its guess takes its own maximum for the reference: exp's relative
  // error grows with the distance.
  static constexpr float trusted_excess = 8;

  // One thread's scratch.
  class Worker {
   public:
    explicit Worker(const Scanner& scanner) : scanner_(scanner), scan_(scanner.scan_) {
      const auto group = static_cast<std::size_t>(scan_.group);
      scores_ = hwy::AllocateAligned<float>(group * static_cast<std::size_t>(ColumnScores::stride(scan_.tile)));
      sums_ = hwy::AllocateAligned<float>(group * 16);
      references_.resize(group);
    }

    // Sets the guesses of the KV head's query heads.
    void guess(int head, const std::vector<std::int64_t>& starts, const float* start_max, const float* start_sum) {
      go_to(head);
      const int first = head * scan_.group;
      const auto count = static_cast<std::int64_t>(starts.size());
      std::vector<PartialSoftmax> states(static_cast<std::size_t>(scan_.group * count));  // [g][count]
      const auto end_of = [&](std::int64_t i) {
        return std::min(starts[static_cast<std::size_t>(i)] + sample_tokens, scanner_.view_.tokens);
      };
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t begin = starts[static_cast<std::size_t>(i)];
        const auto quant_groups = static_cast<int>((end_of(i) - begin + quant_group_tokens - 1) / quant_group_tokens);
        if (i + 1 < count) columns_->prefetch(starts[static_cast<std::size_t>(i + 1)], end_of(i + 1));
        std::vector<float> maxima(static_cast<std::size_t>(scan_.group * quant_groups));
        TileNotes notes;
        notes.head_maxima = maxima.data();
        notes.maxima_stride = quant_groups;
        columns_->score(begin, end_of(i), scores_.get(), &notes);
        for (int h = 0; h < scan_.group; ++h) {
          references_[static_cast<std::size_t>(h)] =
              *std::max_element(maxima.begin() + h * quant_groups, maxima.begin() + (h + 1) * quant_groups);
        }
        set_references(notes, references_.data());
        take_notes(scores_.get(), ColumnScores::stride(scan_.tile), scan_.group, quant_groups * quant_group_tokens,
                   notes);
        for (int h = 0; h < scan_.group; ++h) {
          states[static_cast<std::size_t>(h * count + i)] = {references_[static_cast<std::size_t>(h)], sum(h)};
        }
      }
      guess_group(first, states, count, start_max + first, start_sum + first);
    }

    void tile(int head, std::int64_t index) {
      go_to(head);
      const int first = head * scan_.group;
      const std::int64_t begin = index * scan_.tile;
      const std::int64_t end = std::min(begin + scan_.tile, scanner_.view_.tokens);
      const std::int64_t quant_group = begin / quant_group_tokens;
      const auto quant_groups = static_cast<int>((end - begin + quant_group_tokens - 1) / quant_group_tokens);
      TileNotes notes;
      notes.head_maxima = scan_.head_maxima + first * scan_.quant_group_stride + quant_group;
      notes.maxima_stride = scan_.quant_group_stride;
      if (scan_.head_seconds != nullptr) {
        notes.seconds = scan_.head_seconds + first * scan_.quant_group_stride + quant_group;
        notes.places = scan_.head_places + first * scan_.quant_group_stride + quant_group;
      }
      if (scan_.group_maxima) notes.group_maxima = scan_.group_maxima + head * scan_.quant_group_stride + quant_group;
      const bool logits = scanner_.search_.rule == GroupRule::logits;
      notes.group_score = logits ? GroupScore::logits : GroupScore::softmax;
      const float* guesses = scan_.guesses + first;
      const bool guessed =
          scan_.tile_sums && std::all_of(guesses, guesses + scan_.group, [](float g) { return g > -infinity; });
      if (guessed) set_references(notes, guesses);
      float* const scores = scanner_.kept_ == nullptr ? scores_.get() : scanner_.kept_->tile(head, index);
      columns_->score(begin, end, scores, &notes);

      bool near = guessed;
      for (int h = 0; h < scan_.group; ++h) {
        const float* maxima = notes.head_maxima + h * notes.maxima_stride;
        float most = -infinity;
        for (int i = 0; i < quant_groups; ++i) most = std::max(most, maxima[i]);
        scan_.tile_maxima[at(first + h, index)] = most;
        references_[static_cast<std::size_t>(h)] = most;
        near = near && most - guesses[h] <= trusted_excess;
      }
      if (!scan_.tile_sums) return;
      if (!near) {
        set_references(notes, references_.data());
        take_notes(scores, ColumnScores::stride(scan_.tile), scan_.group, quant_groups * quant_group_tokens, notes);
      }
      for (int h = 0; h < scan_.group; ++h) {
        scan_.tile_references[at(first + h, index)] = notes.references[h];
        scan_.tile_sums[at(first + h, index)] = sum(h);
      }
    }

   private:
    void go_to(int head) {
      if (head == head_) return;
      columns_.emplace(scanner_.view_, scanner_.search_, head, head * scan_.group, scan_.group, scan_.tile);
      head_ = head;
    }
    float sum(int h) const { return std::accumulate(sums_.get() + h * 16, sums_.get() + h * 16 + 16, 0.0f); }
    void set_references(TileNotes& notes, const float* references) {
      notes.references = references;
      notes.sums = sums_.get();
      std::fill_n(sums_.get(), scan_.group * 16, 0.0f);
    }
    std::size_t at(int query_head, std::int64_t tile) const {
      return static_cast<std::size_t>(query_head * scan_.tiles + tile);
    }

    // All guesses of a group are lowered alike until the largest logit of the sample is near one of them, so that exp
    // has something to work with even where nearly all of the softmax lies outside the store.
    void guess_group(int first, const std::vector<PartialSoftmax>& states, std::int64_t count, const float* start_max,
                     const float* start_sum) {
      std::vector<double> log_sums;
      double top = -infinity;
      for (int h = 0; h < scan_.group; ++h) {
        const std::span<const PartialSoftmax> sample(states.data() + h * count, static_cast<std::size_t>(count));
        float max = -infinity;
        for (const PartialSoftmax& s : sample) max = std::max(max, s.max);
        log_sums.push_back(guess_log_sum(sample, std::max(max, start_max[h]), start_max[h], start_sum[h]));
        top = std::max(top, max - log_sums.back());
      }
      for (int h = 0; h < scan_.group; ++h) {
        const auto guess = static_cast<float>(log_sums[static_cast<std::size_t>(h)] + top);
        scan_.guesses[static_cast<std::size_t>(first + h)] = std::isfinite(guess) ? guess : -infinity;
      }
    }

    // The first and the last stretch count once, the others stand for all between; the largest of these counts once
    // too, for it may be the one place that matters.
    double guess_log_sum(std::span<const PartialSoftmax> sample, double max, double start_max, double start_sum) const {
      const auto share = [max](const PartialSoftmax& s) { return s.sum * std::exp(s.max - max); };
      double sum = start_sum != 0 ? start_sum * std::exp(start_max - max) : 0.0;
      sum += share(sample.front());
      if (sample.size() > 1) sum += share(sample.back());
      if (sample.size() > 3) {
        double most = 0;
        double between = 0;
        for (const PartialSoftmax& s : sample.subspan(1, sample.size() - 2)) {
          most = std::max(most, share(s));
          between += share(s);
        }
        const auto rest = static_cast<double>(sample.size() - 3);
        const double stretches = static_cast<double>(scanner_.view_.tokens) / sample_tokens;
        sum += most + (between - most) / rest * (stretches - 3);
      }
      return max + std::log(sum);
    }

    const Scanner& scanner_;
    ColumnScan& scan_;
    int head_ = -1;
    std::optional<ColumnScores> columns_;        // of head_
    hwy::AlignedFreeUniquePtr<float[]> scores_;  // [g][stride]
    hwy::AlignedFreeUniquePtr<float[]> sums_;    // [g][16]
    std::vector<float> references_;              // [g]
  };

  const offload::LayerView& view_;
  const ColumnSearch& search_;
  const offload::Threads& threads_;
  ColumnScan& scan_;
  KeptScores* kept_;  // null: no scores are kept
};

}  // namespace

PartialSoftmax ColumnScan::softmax(int query_head, PartialSoftmax outside) const {
  const auto row = static_cast<std::size_t>(query_head) * static_cast<std::size_t>(tiles);
  const float* maxima = tile_maxima + row;
  const float* references = tile_references + row;
  const float* sums = tile_sums + row;
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
                        bool with_softmax, const float* start_max, const float* start_sum, KeptScores* kept) {
  ColumnScan scan;
  const int kv_heads = view.layout->kv_heads;
  scan.group = search.query_heads / kv_heads;
  scan.tile = ColumnScores::tile_tokens(search, scan.group);
  scan.tiles = (view.tokens + scan.tile - 1) / scan.tile;
  scan.quant_groups = (view.tokens + quant_group_tokens - 1) / quant_group_tokens;
  scan.quant_group_stride = (scan.quant_groups + 63) / 64 * 64;
  const auto query_heads = static_cast<std::size_t>(search.query_heads);
  const auto row = static_cast<std::size_t>(scan.quant_group_stride);
  const auto tile_row = static_cast<std::size_t>(scan.tiles);
  const bool grouped = !search.per_query_head() && scan.group > 1;
  Scratch scratch((3 * query_heads + static_cast<std::size_t>(kv_heads)) * row + query_heads * (3 * tile_row + 1));
  scan.head_maxima = scratch.take(query_heads * row);
  if (grouped) {
    scan.group_maxima = scratch.take(static_cast<std::size_t>(kv_heads) * row);
  } else {
    scan.head_seconds = scratch.take(query_heads * row);
    scan.head_places = reinterpret_cast<std::uint8_t*>(scratch.take(query_heads * row / sizeof(float)));
  }
  scan.tile_maxima = scratch.take(query_heads * tile_row);
  if (with_softmax) {
    scan.tile_references = scratch.take(query_heads * tile_row);
    scan.tile_sums = scratch.take(query_heads * tile_row);
    scan.guesses = scratch.take(query_heads);
  }
  for (std::size_t h = 0; h < query_heads; ++h) {
    float* maxima = scan.head_maxima + h * row;
    std::fill(maxima + scan.quant_groups, maxima + row, -infinity);
  }
  const std::int64_t floats = std::int64_t{scan.group} * ColumnScores::stride(scan.tile);
  const bool keep = kept != nullptr && kept->start(kv_heads, scan.tiles, floats);
  Scanner scanner(view, search, threads, scan, keep ? kept : nullptr);
  if (with_softmax) scanner.guess(start_max, start_sum);
  scanner.run();
  return scan;
}

}  // namespace hayloft::index
