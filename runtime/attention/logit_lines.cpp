#include "runtime/attention/logit_lines.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "index/scan/exact_search.h"
#include "index/scan/rest_kernels.h"
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
    if (at_.backend.name() == "cpu") return;
    const auto d = static_cast<std::size_t>(at_.head_dim());
    copies_.resize(static_cast<std::size_t>(at_.kv_heads() * count_) * d);
    for (std::int64_t i = 0; i < at_.kv_heads() * count_; ++i) {
      at_.backend.to_host(copies_.data() + static_cast<std::size_t>(i) * d, slot(i / count_, i % count_),
                          d * sizeof(f16), at_.stream);
    }
  }

  index::LineKeys of(std::int64_t head) const {
    const int d = at_.head_dim();
    const auto n = static_cast<int>(count_);
    if (copies_.empty()) return {slot(head, 0), apart_ * 2 * d, n, d};
    return {copies_.data() + head * count_ * d, d, n, d};
  }

 private:
  const f16* slot(std::int64_t head, std::int64_t i) const {
    return at_.cache.tail.rows + (head * at_.cache.tail.capacity + first_ + i * apart_) * 2 * at_.head_dim();
  }

  const LayerStep& at_;
  std::int64_t apart_;
  std::int64_t count_;
  std::int64_t first_;       // slot of the tail
  std::vector<f16> copies_;  // [Hkv][count][d], where the tail is not in host memory
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

std::vector<index::LogitLine> logit_lines(const Step& step, const SelectionPlan& plan, const Ranking& ranking,
                                          const HostRanking& ready, const std::vector<std::int32_t>& taken) {
  const LayerStep& at = step.at;
  std::vector<index::LogitLine> lines(static_cast<std::size_t>(at.query_heads));
  if (ranking.source == Ranking::Source::keys) return lines;
  const int d = at.head_dim();
  const TailKeys tail(step);
  std::vector<float> query = query_on_host(step);
  for (float& x : query) x *= index::exact_scale(d);
  const std::vector<float> weights = ready.key_weights();
  const index::ColumnSearch search = ready.search(0, 0);
  const bool with_taken = search.planes == nullptr;
  const int heads = at.query_heads / plan.lists;  // of a list
  at.backend.threads().parallel_for(at.kv_heads(), 1, [&](std::int64_t begin, std::int64_t end) {
    const auto row = static_cast<std::size_t>(index::line_row(line_samples) + (with_taken ? plan.k : 0));
    const auto floats = static_cast<std::size_t>(at.group()) * row;
    const auto columns =
        std::make_unique_for_overwrite<f16[]>(static_cast<std::size_t>(d * index::line_row(line_samples)));
    std::vector<float> approximate(floats), exact(floats), key(static_cast<std::size_t>(d));
    std::vector<f16> space(static_cast<std::size_t>(2 * d));
    std::vector<std::uint8_t> planes(with_taken ? 0 : static_cast<std::size_t>(d));
    for (std::int64_t head = begin; head < end; ++head) {
      std::fill(planes.begin(), planes.end(), std::uint8_t{0});
      for (std::int64_t j = head * search.rank; j < (head + 1) * search.rank && !with_taken; ++j) {
        planes[static_cast<std::size_t>(search.components[j])] = search.planes[j];
      }
      const index::LineKeys keys = tail.of(head);
      const std::int64_t first = head * at.group();
      if (keys.n > 0) {
        index::line_logits(keys, weights.data() + first * d, query.data() + first * d, at.group(),
                           with_taken ? nullptr : planes.data(), columns.get(), approximate.data(), exact.data(),
                           static_cast<int>(row));
      }
      for (std::int64_t h = 0; h < at.group(); ++h) {
        float* const a = approximate.data() + static_cast<std::size_t>(h) * row;
        float* const l = exact.data() + static_cast<std::size_t>(h) * row;
        int n = keys.n;
        for (int i = 0; i < plan.k && with_taken; ++i, ++n) {
          const std::int32_t position = taken[static_cast<std::size_t>((first + h) / heads * plan.k + i)];
          widen_lanes(at.cache.store.keys(static_cast<int>(head), position, 1, space.data()), key.size(), key.data());
          a[n] = dot_lanes(key.data(), weights.data() + (first + h) * d, key.size());
          l[n] = dot_lanes(key.data(), query.data() + (first + h) * d, key.size());
        }
        lines[static_cast<std::size_t>(first + h)] = lowered(fit_line(a, l, n));
      }
    }
  });
  return lines;
}

}  // namespace hayloft::runtime
