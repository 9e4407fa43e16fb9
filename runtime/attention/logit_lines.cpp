#include "runtime/attention/logit_lines.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "index/scan/exact_search.h"
#include "index/scan/rest_kernels.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/lanes.h"

namespace hayloft::runtime {
namespace {

// A line that leaves much unexplained makes more of the rest than there is: the newest tokens, over which it is fitted,
// are attended to more than most, and too large a share harms more than one as much too small. So it is lowered by half
// of the variance that it leaves. Measured on two models (docs/methods.md); nothing else is behind it.
index::LogitLine lowered(index::LogitLine line) {
  line.offset -= std::min(line.residual, 2.0f) / 2;
  return line;
}

// The keys of a step's tail that its lines are fitted over, evenly spread over the newest ones.
class TailKeys {
 public:
  explicit TailKeys(const Step& step) : at_(step.at) {
    const gpu::TailView& tail = at_.cache.tail;
    const std::int64_t newest = std::min(line_tokens, tail.tokens);
    apart_ = std::max<std::int64_t>(1, (newest + line_samples - 1) / line_samples);
    count_ = (newest + apart_ - 1) / apart_;
    first_ = tail.first + tail.tokens - 1 - (count_ - 1) * apart_;
    // Each copy is a wait for the device: one for all of a head.
    if (at_.backend.name() != "cpu") copies_.emplace(at_.backend, at_.cache, at_.stream, newest);
  }

  index::LineKeys of(std::int64_t head) const {
    const gpu::TailView& tail = at_.cache.tail;
    const std::int64_t apart = apart_ * 2 * at_.head_dim();
    const auto n = static_cast<int>(count_);
    if (n == 0) return {nullptr, apart, n, at_.head_dim()};
    if (!copies_) {
      return {tail.rows + (head * tail.capacity + first_) * 2 * at_.head_dim(), apart, n, at_.head_dim()};
    }
    const std::int64_t first = first_ - (tail.first + tail.tokens - copies_->tokens());
    return {copies_->rows().row(static_cast<int>(head), first, nullptr), apart, n, at_.head_dim()};
  }

 private:
  const LayerStep& at_;
  std::int64_t apart_;
  std::int64_t count_;
  std::int64_t first_;              // slot of the tail
  std::optional<HostTail> copies_;  // where the tail is not in host memory
};

}  // namespace

index::LogitLine fit_line(const float* approximate, const float* exact, std::int64_t n) {
  constexpr double least_slope = 0.05;
  constexpr double most_slope = 1.2;
  if (n == 0) return {};
  double sum_a = 0;
  double sum_l = 0;
  for (std::int64_t t = 0; t < n; ++t) {
    sum_a += double{approximate[t]};
    sum_l += double{exact[t]};
  }
  const auto count = static_cast<double>(n);
  const double mean_a = sum_a / count;
  const double mean_l = sum_l / count;
  double aa = 0;
  double al = 0;
  double ll = 0;
  for (std::int64_t t = 0; t < n; ++t) {
    const double x = double{approximate[t]} - mean_a;
    const double y = double{exact[t]} - mean_l;
    aa += x * x;
    al += x * y;
    ll += y * y;
  }
  const double slope = std::clamp(aa > 0 ? al / aa : 1.0, least_slope, most_slope);
  return {static_cast<float>(slope), static_cast<float>(mean_l - slope * mean_a),
          static_cast<float>(std::max(0.0, (ll - 2 * slope * al + slope * slope * aa) / count))};
}

bool fits_taken(const HostRanking& ready, const Ranking& ranking) {
  return ranking.source != Ranking::Source::keys && ready.search(0, 0).planes == nullptr;
}

TakenLogits taken_logits(const Step& step, const offload::LayerView& store, int lists, int k, const HostRanking& ready,
                         const std::vector<std::int32_t>& taken) {
  const LayerStep& at = step.at;
  const auto d = static_cast<std::size_t>(at.head_dim());
  const auto row = static_cast<std::size_t>(k);
  const int heads = at.query_heads / lists;  // of a list
  std::vector<float> query = query_on_host(step);
  for (float& x : query) x *= index::exact_scale(at.head_dim());
  const std::vector<float> weights = ready.key_weights();
  TakenLogits logits;
  logits.approximate.resize(static_cast<std::size_t>(at.query_heads) * row);
  logits.exact.resize(logits.approximate.size());
  at.backend.threads().parallel_for(lists, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> key(d);
    std::vector<f16> space(2 * d);
    for (std::int64_t list = begin; list < end; ++list) {
      const auto first = static_cast<std::size_t>(list * heads);
      for (std::size_t i = 0; i < row; ++i) {
        const std::int32_t position = taken[static_cast<std::size_t>(list) * row + i];
        if (position < 0 || position >= store.tokens) continue;
        widen_lanes(store.keys(static_cast<int>(first) / at.group(), position, 1, space.data()), d, key.data());
        for (std::size_t h = first; h < first + static_cast<std::size_t>(heads); ++h) {
          logits.approximate[h * row + i] = dot_lanes(key.data(), weights.data() + h * d, d);
          logits.exact[h * row + i] = dot_lanes(key.data(), query.data() + h * d, d);
        }
      }
    }
  });
  return logits;
}

std::vector<index::LogitLine> logit_lines(const Step& step, const Ranking& ranking, const HostRanking& ready,
                                          const TakenLogits& taken) {
  const LayerStep& at = step.at;
  std::vector<index::LogitLine> lines(static_cast<std::size_t>(at.query_heads));
  if (ranking.source == Ranking::Source::keys) return lines;
  const int d = at.head_dim();
  const TailKeys tail(step);
  std::vector<float> query = query_on_host(step);
  for (float& x : query) x *= index::exact_scale(d);
  const std::vector<float> weights = ready.key_weights();
  const index::ColumnSearch search = ready.search(0, 0);
  const bool by_planes = search.planes != nullptr;
  const std::size_t more = taken.exact.size() / lines.size();  // of a query head
  at.backend.threads().parallel_for(at.kv_heads(), 1, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t row = static_cast<std::size_t>(index::line_row(line_samples)) + more;
    const std::size_t floats = static_cast<std::size_t>(at.group()) * row;
    const auto columns =
        std::make_unique_for_overwrite<f16[]>(static_cast<std::size_t>(d * index::line_row(line_samples)));
    std::vector<float> approximate(floats), exact(floats);
    std::vector<std::uint8_t> planes(by_planes ? static_cast<std::size_t>(d) : 0);
    for (std::int64_t head = begin; head < end; ++head) {
      std::fill(planes.begin(), planes.end(), std::uint8_t{0});
      for (std::int64_t j = head * search.rank; j < (head + 1) * search.rank && by_planes; ++j) {
        planes[static_cast<std::size_t>(search.components[j])] = search.planes[j];
      }
      const index::LineKeys keys = tail.of(head);
      const std::int64_t first = head * at.group();
      if (keys.n > 0) {
        index::line_logits(keys, weights.data() + first * d, query.data() + first * d, at.group(),
                           by_planes ? planes.data() : nullptr, columns.get(), approximate.data(), exact.data(),
                           static_cast<int>(row));
      }
      for (std::int64_t h = 0; h < at.group(); ++h) {
        float* const a = approximate.data() + static_cast<std::size_t>(h) * row;
        float* const l = exact.data() + static_cast<std::size_t>(h) * row;
        const auto of_head = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first + h) * more);
        std::copy_n(taken.approximate.begin() + of_head, more, a + keys.n);
        std::copy_n(taken.exact.begin() + of_head, more, l + keys.n);
        lines[static_cast<std::size_t>(first + h)] = lowered(fit_line(a, l, keys.n + static_cast<std::int64_t>(more)));
      }
    }
  });
  return lines;
}

}  // namespace hayloft::runtime
