#include "runtime/attention/logit_lines.h"

#include <algorithm>
#include <cmath>

#include "index/scan/exact_search.h"
#include "offload/store/planes.h"
#include "runtime/attention/host_tail.h"

namespace hayloft::runtime {
namespace {

// The keys that a search reads in place of n <= 256 tokens' keys in one component, of which it reads so many planes:
// plane_key() of plane_code(), in steps that vectors can take.
void read_as_planes(float* keys, int n, int planes) {
  float lo = keys[0];
  float hi = keys[0];
  for (int t = 1; t < n; ++t) {
    lo = std::min(lo, keys[t]);
    hi = std::max(hi, keys[t]);
  }
  const offload::PlaneRange range = offload::plane_range(lo, hi);
  const float centre = to_float(range.centre);
  const float half = to_float(range.half);
  if (half == 0) return;
  const float per_code = 8 / half;
  const float step = half * offload::plane_step(planes);
  const int dropped = offload::plane_count - planes;
  for (int t = 0; t < n; ++t) {
    const int code = static_cast<int>(std::clamp((keys[t] - centre) * per_code + 8, 0.0f, 15.0f));
    keys[t] = centre + step * static_cast<float>(2 * (code >> dropped) + 1 - (1 << planes));
  }
}

// Scores of the tail's tokens as the search in planes gives them to those of the store, [Hq][tokens].
std::vector<float> plane_scores(const Step& step, const HostTail& tail, const index::ColumnSearch& search) {
  const LayerStep& at = step.at;
  const offload::LayerView rows = tail.rows();
  const auto tokens = static_cast<std::size_t>(tail.tokens());
  const int d = at.head_dim();
  const int grouped = offload::tokens_per_scale(offload::ColumnFormat::planes, at.cache.store.layout->block_tokens);
  std::vector<float> scores(static_cast<std::size_t>(at.query_heads) * tokens);
  at.backend.threads().parallel_for(at.kv_heads(), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> keys(tokens);
    for (std::int64_t head = begin; head < end; ++head) {
      const f16* const first = rows.row(static_cast<int>(head), 0, nullptr);
      for (int j = 0; j < search.rank; ++j) {
        const int planes = search.planes[head * search.rank + j];
        if (planes == 0) break;
        const std::int32_t component = search.components[head * search.rank + j];
        for (std::size_t t = 0; t < tokens; ++t) {
          keys[t] = to_float(first[t * 2 * static_cast<std::size_t>(d) + static_cast<std::size_t>(component)]);
        }
        for (std::int64_t t = 0; t < tail.tokens(); t += grouped) {
          read_as_planes(keys.data() + t, static_cast<int>(std::min<std::int64_t>(grouped, tail.tokens() - t)), planes);
        }
        for (std::int64_t h = head * at.group(); h < (head + 1) * at.group(); ++h) {
          const float weight = search.weights[h * search.rank + j];
          float* const out = scores.data() + static_cast<std::size_t>(h) * tokens;
          for (std::size_t t = 0; t < tokens; ++t) out[t] += weight * keys[t];
        }
      }
    }
  });
  return scores;
}

}  // namespace

std::vector<index::LogitLine> fit_lines(const float* approximate, const float* exact, int query_heads,
                                        std::int64_t tokens) {
  constexpr double least_slope = 0.05;
  constexpr double most_slope = 1.2;
  std::vector<index::LogitLine> lines(static_cast<std::size_t>(query_heads));
  if (tokens == 0) return lines;
  const auto n = static_cast<double>(tokens);
  for (std::size_t h = 0; h < lines.size(); ++h) {
    const float* const a = approximate + static_cast<std::int64_t>(h) * tokens;
    const float* const l = exact + static_cast<std::int64_t>(h) * tokens;
    double sum_a = 0;
    double sum_l = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      sum_a += double{a[t]};
      sum_l += double{l[t]};
    }
    const double mean_a = sum_a / n;
    const double mean_l = sum_l / n;
    double aa = 0;
    double al = 0;
    double ll = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double x = double{a[t]} - mean_a;
      const double y = double{l[t]} - mean_l;
      aa += x * x;
      al += x * y;
      ll += y * y;
    }
    const double slope = std::clamp(aa > 0 ? al / aa : 1.0, least_slope, most_slope);
    lines[h].slope = static_cast<float>(slope);
    lines[h].offset = static_cast<float>(mean_l - slope * mean_a);
    lines[h].residual = static_cast<float>(std::max(0.0, (ll - 2 * slope * al + slope * slope * aa) / n));
  }
  return lines;
}

std::vector<index::LogitLine> logit_lines(const Step& step, const Ranking& ranking, const HostRanking& ready) {
  const LayerStep& at = step.at;
  if (ranking.source == Ranking::Source::keys) {
    return std::vector<index::LogitLine>(static_cast<std::size_t>(at.query_heads));
  }
  const HostTail tail(at.backend, at.cache, at.stream, line_tokens);
  std::vector<float> query = query_on_host(step);
  for (float& x : query) x *= index::exact_scale(at.head_dim());
  const TailScores exact = score_tail(tail, query.data(), at.query_heads, at.backend.threads());
  const index::ColumnSearch search = ready.search(0, 0);
  const std::vector<float> approximate =
      search.planes != nullptr && tail.tokens() > 0
          ? plane_scores(step, tail, search)
          : score_tail(tail, ready.key_weights().data(), at.query_heads, at.backend.threads()).logits;
  return fit_lines(approximate.data(), exact.logits.data(), at.query_heads, tail.tokens());
}

}  // namespace hayloft::runtime
