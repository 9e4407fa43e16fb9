#include "runtime/attention/logit_lines.h"

#include <algorithm>
#include <cmath>

#include "index/scan/exact_search.h"
#include "offload/store/planes.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/lanes.h"

namespace hayloft::runtime {
namespace {

// Makes keys [n][d] those that a search reads in their place: of component c its first planes[c] planes over the range
// of these keys, as offload::plane_key() has them; components of no plane are not looked at.
void read_as_planes(std::vector<float>& keys, int n, int d, const std::vector<int>& planes) {
  const auto width = static_cast<std::size_t>(d);
  std::vector<float> lo(keys.begin(), keys.begin() + d);
  std::vector<float> hi = lo;
  for (int t = 1; t < n; ++t) {
    const float* const key = keys.data() + std::ptrdiff_t{t} * d;
    for (std::size_t c = 0; c < width; ++c) {
      lo[c] = key[c] < lo[c] ? key[c] : lo[c];
      hi[c] = hi[c] < key[c] ? key[c] : hi[c];
    }
  }
  // q = floor(key * by + plus) within 0 to top is the code's first planes; 2 q + 1 - 2^planes steps from the centre.
  std::vector<float> by(width), plus(width), top(width), base(width), step(width);
  for (std::size_t c = 0; c < width; ++c) {
    const offload::PlaneRange range = offload::plane_range(lo[c], hi[c]);
    const float half = to_float(range.half);
    const float centre = to_float(range.centre);
    const auto cells = static_cast<float>(1 << planes[c]);
    const float unit = half * offload::plane_step(planes[c]);
    by[c] = half > 0 ? cells / 2 / half : 0;
    plus[c] = cells / 2 - centre * by[c];
    top[c] = cells - 1;
    step[c] = 2 * unit;
    base[c] = centre + unit * (1 - cells);
  }
  for (int t = 0; t < n; ++t) {
    float* const key = keys.data() + std::ptrdiff_t{t} * d;
    for (std::size_t c = 0; c < width; ++c) {
      float q = key[c] * by[c] + plus[c];
      q = q < 0 ? 0 : q;
      q = top[c] < q ? top[c] : q;
      key[c] = base[c] + step[c] * static_cast<float>(static_cast<std::int32_t>(q));
    }
  }
}

// A line that leaves much unexplained makes more of the rest than there is: the newest tokens, over which it is fitted,
// are attended to more than most, and too large a share harms more than one as much too small. So it is lowered by half
// of the variance that it leaves. Measured on two models (docs/methods.md); nothing else is behind it.
index::LogitLine lowered(index::LogitLine line) {
  line.offset -= std::min(line.residual, 2.0f) / 2;
  return line;
}

// The keys of one KV head that its lines are fitted over: of the tail, in host memory.
class LineKeys {
 public:
  explicit LineKeys(const Step& step) : at_(step.at) {
    const gpu::TailView& tail = at_.cache.tail;
    const std::int64_t newest = std::min(line_tokens, tail.tokens);
    const std::int64_t apart = std::max<std::int64_t>(1, (newest + line_samples - 1) / line_samples);
    for (std::int64_t slot = tail.tokens - 1; slot >= tail.tokens - newest; slot -= apart) slots_.push_back(slot);
    const auto d = static_cast<std::size_t>(at_.head_dim());
    keys_.resize(static_cast<std::size_t>(at_.kv_heads()) * slots_.size() * d);
    if (at_.backend.memory().budget_bytes > 0) {  // each copy is a wait for the device: one for all of a head
      const HostTail rows(at_.backend, at_.cache, at_.stream, line_tokens);
      for (std::size_t i = 0; i < keys_.size() / d; ++i) {
        const auto head = static_cast<int>(i / slots_.size());
        const std::int64_t t = slots_[i % slots_.size()] - (tail.tokens - rows.tokens());
        std::copy_n(rows.rows().row(head, t, nullptr), d, keys_.begin() + static_cast<std::ptrdiff_t>(i * d));
      }
      return;
    }
    for (std::size_t head = 0; head < static_cast<std::size_t>(at_.kv_heads()); ++head) {
      for (std::size_t t = 0; t < slots_.size(); ++t) {
        const std::int64_t row = static_cast<std::int64_t>(head) * tail.capacity + tail.first + slots_[t];
        at_.backend.to_host(keys_.data() + (head * slots_.size() + t) * d, tail.rows + row * 2 * at_.head_dim(),
                            d * sizeof(f16), at_.stream);
      }
    }
  }

  int tokens() const { return static_cast<int>(slots_.size()); }
  void widen(std::int64_t head, std::vector<float>& out) const {
    const std::size_t n = slots_.size() * static_cast<std::size_t>(at_.head_dim());
    out.resize(n);
    widen_lanes(keys_.data() + static_cast<std::size_t>(head) * n, n, out.data());
  }

 private:
  const LayerStep& at_;
  std::vector<std::int64_t> slots_;
  std::vector<f16> keys_;  // [Hkv][tokens][d]
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
  const LineKeys tail(step);
  std::vector<float> query = query_on_host(step);
  for (float& x : query) x *= index::exact_scale(d);
  const std::vector<float> weights = ready.key_weights();
  const index::ColumnSearch search = ready.search(0, 0);
  const std::size_t more = taken.exact.size() / lines.size();  // of a query head
  at.backend.threads().parallel_for(at.kv_heads(), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> keys, read, approximate, exact;
    for (std::int64_t head = begin; head < end; ++head) {
      tail.widen(head, keys);
      const int n = tail.tokens();
      if (search.planes != nullptr) {
        std::vector<int> planes(static_cast<std::size_t>(d));
        for (std::int64_t j = head * search.rank; j < (head + 1) * search.rank; ++j) {
          planes[static_cast<std::size_t>(search.components[j])] = search.planes[j];
        }
        read = keys;
        if (n > 0) read_as_planes(read, n, d, planes);
      }
      const float* const by = search.planes == nullptr ? keys.data() : read.data();
      for (std::int64_t h = head * at.group(); h < (head + 1) * at.group(); ++h) {
        approximate.resize(static_cast<std::size_t>(n));
        exact.resize(static_cast<std::size_t>(n));
        for (int t = 0; t < n; ++t) {
          const auto i = static_cast<std::size_t>(t);
          approximate[i] = dot_lanes(by + std::ptrdiff_t{t} * d, weights.data() + h * d, static_cast<std::size_t>(d));
          exact[i] = dot_lanes(keys.data() + std::ptrdiff_t{t} * d, query.data() + h * d, static_cast<std::size_t>(d));
        }
        const auto first = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(h) * more);
        const auto count = static_cast<std::ptrdiff_t>(more);
        approximate.insert(approximate.end(), taken.approximate.begin() + first,
                           taken.approximate.begin() + first + count);
        exact.insert(exact.end(), taken.exact.begin() + first, taken.exact.begin() + first + count);
        lines[static_cast<std::size_t>(h)] =
            lowered(fit_line(approximate.data(), exact.data(), static_cast<std::int64_t>(exact.size())));
      }
    }
  });
  return lines;
}

}  // namespace hayloft::runtime
