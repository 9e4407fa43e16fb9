#include "runtime/attention/logit_lines.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "index/scan/exact_search.h"
#include "index/scan/rest_kernels.h"

namespace hayloft::runtime {
namespace {

// Too large a share of the rest harms more than one as much too small. So a line is lowered by a quarter of the
// variance that it leaves. Measured on two models (docs/methods.md); nothing else is behind it.
index::LogitLine lowered(index::LogitLine line) {
  line.offset -= std::min(line.residual, 2.0f) / 4;
  return line;
}

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

LineSample& line_sample(const Step& step, const offload::LayerView& store, std::span<const std::int32_t> positions) {
  std::shared_ptr<LineSamples>& samples = step.at.scratch.lines;
  if (!samples) samples = std::make_shared<LineSamples>();
  LineSample& sample = samples->layers[step.at.cache.layer];
  sample.follow(store, positions, step.at.backend.threads());
  return sample;
}

LineLogits line_logits(const Step& step, const LineSample& sample, const HostRanking& ready) {
  const LayerStep& at = step.at;
  const int d = at.head_dim();
  LineLogits logits;
  logits.n = sample.count();
  const auto n = static_cast<std::size_t>(logits.n);
  logits.approximate.resize(static_cast<std::size_t>(at.query_heads) * n);
  logits.exact.resize(logits.approximate.size());
  if (n == 0) return logits;
  std::vector<float> query = query_on_host(step);
  for (float& x : query) x *= index::exact_scale(d);
  const std::vector<float> weights = ready.key_weights();
  const index::ColumnSearch search = ready.search(0, 0);
  const bool by_planes = search.planes != nullptr;
  at.backend.threads().parallel_for(at.kv_heads(), 1, [&](std::int64_t begin, std::int64_t end) {
    const auto floats = static_cast<std::size_t>(at.group() * index::line_row);
    std::vector<float> approximate(floats), exact(floats);
    std::vector<std::uint8_t> planes(by_planes ? static_cast<std::size_t>(d) : 0);
    for (std::int64_t head = begin; head < end; ++head) {
      std::fill(planes.begin(), planes.end(), std::uint8_t{0});
      for (std::int64_t j = head * search.rank; j < (head + 1) * search.rank && by_planes; ++j) {
        planes[static_cast<std::size_t>(search.components[j])] = search.planes[j];
      }
      const std::int64_t first = head * at.group();
      index::line_logits(sample.of(static_cast<int>(head)), weights.data() + first * d, query.data() + first * d,
                         at.group(), by_planes ? planes.data() : nullptr, approximate.data(), exact.data());
      for (std::ptrdiff_t h = 0; h < at.group(); ++h) {
        const std::ptrdiff_t to = (first + h) * logits.n;
        std::copy_n(approximate.begin() + h * index::line_row, n, logits.approximate.begin() + to);
        std::copy_n(exact.begin() + h * index::line_row, n, logits.exact.begin() + to);
      }
    }
  });
  return logits;
}

std::vector<index::LogitLine> logit_lines(const LineLogits& logits, int query_heads) {
  std::vector<index::LogitLine> lines;
  for (std::ptrdiff_t h = 0; h < query_heads; ++h) {
    const std::ptrdiff_t first = h * logits.n;
    lines.push_back(lowered(fit_line(logits.approximate.data() + first, logits.exact.data() + first, logits.n)));
  }
  return lines;
}

}  // namespace hayloft::runtime
