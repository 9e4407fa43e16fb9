#include "runtime/attention/rest_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/attention/host_tail.h"
#include "runtime/attention/lanes.h"
#include "runtime/attention/logit_lines.h"

namespace hayloft::runtime {
namespace {

std::uint64_t mixed_key(std::uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t draw_key(std::uint64_t seed, int layer, std::int64_t tokens) {
  const std::uint64_t of_layer = mixed_key(seed + 0x9e3779b97f4a7c15u) + static_cast<std::uint64_t>(layer);
  return mixed_key(mixed_key(of_layer) + static_cast<std::uint64_t>(tokens));
}

ExactPart exact_part(std::vector<float> state, int query_heads, int head_dim) {
  ExactPart part;
  const auto d = static_cast<std::size_t>(head_dim);
  const auto count = static_cast<std::size_t>(query_heads);
  const std::size_t n = count * d;
  for (std::size_t h = 0; h < count; ++h) {
    const float sum = state[n + count + h];
    for (std::size_t c = 0; c < d; ++c) state[h * d + c] = sum == 0 ? 0 : state[h * d + c] / sum;
    part.log_sums.push_back(state[n + h] + std::log(sum));
  }
  state.resize(n);
  part.out = std::move(state);
  return part;
}

std::vector<float> draw_references(const std::vector<float>& log_sums) {
  constexpr float steps = 16;
  std::vector<float> references;
  for (const float log_sum : log_sums) references.push_back(std::round(log_sum * steps) / steps);
  return references;
}

void refer_to(const std::vector<float>& log_sums, const std::vector<float>& references, int first, int heads,
              index::RestMasses::Draw& draw) {
  const std::size_t n = draw.positions.size();
  for (int h = 0; h < heads; ++h) {
    const auto head = static_cast<std::size_t>(first + h);
    const float factor = std::exp(references[head] - log_sums[head]);
    if (!std::isfinite(factor)) continue;
    for (std::size_t i = 0; i < n; ++i) draw.masses[static_cast<std::size_t>(h) * n + i] *= factor;
  }
}

namespace {

ExactPart attend_exactly(const Step& step, gpu::Attended what) {
  const LayerStep& at = step.at;
  const auto heads = static_cast<std::int64_t>(at.query_heads);
  const gpu::Buffer values =
      at.backend.allocate(static_cast<std::uint64_t>(at.query_elements() + 2 * heads) * sizeof(float), at.stream);
  float* const max = values.as<float>() + at.query_elements();
  what.alpha = nullptr;
  what.partial = {max, max + heads};
  at.backend.attend(at.cache, step.q, at.query_heads, what, values.as<float>(), at.stream);
  std::vector<float> host = copy_to_host(at.backend, values.as<float>(), at.query_elements() + 2 * heads, at.stream);
  return exact_part(std::move(host), at.query_heads, at.head_dim());
}

// The mean of V over every token, [Hq][d].
std::vector<float> mean_of_values(const Step& step) {
  const LayerStep& at = step.at;
  const auto heads = static_cast<std::size_t>(at.query_heads);
  const std::vector<float> zeros(heads);
  const gpu::Buffer none = at.backend.allocate(heads * sizeof(float), at.stream);
  const gpu::Buffer mean =
      at.backend.allocate(static_cast<std::uint64_t>(at.query_elements()) * sizeof(float), at.stream);
  at.backend.to_device(none.as<void>(), zeros.data(), none.bytes(), at.stream);
  gpu::Attended nothing;
  nothing.alpha = none.as<float>();
  at.backend.attend(at.cache, step.q, at.query_heads, nothing, mean.as<float>(), at.stream);
  return copy_to_host(at.backend, mean.as<float>(), at.query_elements(), at.stream);
}

double norm(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
  return std::sqrt(sum);
}

double distance(const float* x, const float* y, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += (double{x[i]} - double{y[i]}) * (double{x[i]} - double{y[i]});
  return std::sqrt(sum);
}

// The estimate for the query heads of one list, from the values that were drawn.
void add_drawn(const Step& step, int first, int heads, const index::RestMasses::Draw& draw,
               const std::vector<index::LogitLine>& lines, float* out, float* shares, StepEstimate* estimate) {
  const LayerStep& at = step.at;
  const int d = at.head_dim();
  const std::size_t n = draw.positions.size();
  const int kv_head = first / at.group();
  const auto width = static_cast<std::size_t>(d);
  std::vector<float> values(n * width);
  std::vector<float> squares;  // |V|^2 of each
  std::vector<f16> space(static_cast<std::size_t>(2 * d));
  for (std::size_t i = 0; i < n; ++i) {
    const f16* const row = at.cache.store.row(kv_head, draw.positions[i], space.data()) + d;
    widen_lanes(row, width, values.data() + i * width);
    squares.push_back(dot_lanes(values.data() + i * width, values.data() + i * width, width));
  }
  for (int h = first; h < first + heads; ++h) {
    const float* const masses = draw.masses.data() + static_cast<std::size_t>(h - first) * n;
    float* const y = out + std::ptrdiff_t{h} * d;
    std::vector<float> mean(static_cast<std::size_t>(d));
    float rest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float weight = masses[i] / draw.chances[i];
      const float* const v = values.data() + i * static_cast<std::size_t>(d);
      rest += weight;
      for (int c = 0; c < d; ++c) mean[static_cast<std::size_t>(c)] += weight * v[c];
    }
    if (!std::isfinite(rest)) {  // what is attended exactly stays, and nothing is known of the rest
      if (estimate != nullptr) estimate->error[static_cast<std::size_t>(h)] = std::numeric_limits<float>::infinity();
      continue;
    }
    const std::vector<float> exact(y, y + d);
    for (int c = 0; c < d; ++c)
      y[c] = (exact[static_cast<std::size_t>(c)] + mean[static_cast<std::size_t>(c)]) / (1 + rest);
    shares[h] = 1 / (1 + rest);
    if (estimate == nullptr || rest == 0) continue;
    const double rho = double{rest} / (1 + double{rest});
    const double spread = std::exp(std::min(double{lines[static_cast<std::size_t>(h)].residual}, 1.5)) - 1;
    const double of_y = dot_lanes(y, y, width);
    double variance = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double chance = draw.chances[i];
      const double weight = double{masses[i]} / chance / (1 + double{rest});
      const double far = double{squares[i]} + of_y - 2 * double{dot_lanes(values.data() + i * width, y, width)};
      variance += weight * weight * (1 - chance + spread * chance) * std::max(far, 0.0);  // |V - y|^2
    }
    for (float& x : mean) x /= rest;
    const double shift = 0.7 * rho * (1 - rho) * distance(mean.data(), exact.data(), d);
    estimate->error[static_cast<std::size_t>(h)] =
        static_cast<float>(std::sqrt(variance + shift * shift) / std::max(norm(y, d), 1e-30));
  }
}

// The variance of V over the newest tokens of the tail about the mean, [Hkv].
std::vector<double> spread_of_values(const Step& step, const std::vector<float>& mean) {
  const LayerStep& at = step.at;
  const int d = at.head_dim();
  const HostTail tail(at.backend, at.cache, at.stream, line_tokens);
  std::vector<double> spread(static_cast<std::size_t>(at.kv_heads()));
  for (int head = 0; head < at.kv_heads() && tail.tokens() > 0; ++head) {
    const float* const centre = mean.data() + std::ptrdiff_t{head} * at.group() * d;
    double sum = 0;
    for (std::int64_t t = 0; t < tail.tokens(); ++t) {
      const f16* const v = tail.rows().row(head, t, nullptr) + d;
      for (int c = 0; c < d; ++c) sum += (double{to_float(v[c])} - centre[c]) * (double{to_float(v[c])} - centre[c]);
    }
    spread[static_cast<std::size_t>(head)] = sum / static_cast<double>(tail.tokens());
  }
  return spread;
}

}  // namespace

void add_mean(const Step& step, const index::RestMasses& rest, const std::vector<index::LogitLine>& lines,
              const std::vector<float>& mean, float* out, float* shares, StepEstimate* estimate) {
  const LayerStep& at = step.at;
  const int d = at.head_dim();
  const std::vector<double> spread = estimate == nullptr ? std::vector<double>() : spread_of_values(step, mean);
  for (int h = 0; h < at.query_heads; ++h) {
    const auto head = static_cast<std::size_t>(h);
    const double sum = rest.sum[head];
    if (!std::isfinite(sum)) {
      if (estimate != nullptr) estimate->error[head] = std::numeric_limits<float>::infinity();
      continue;
    }
    float* const y = out + std::ptrdiff_t{h} * d;
    const float* const m = mean.data() + std::ptrdiff_t{h} * d;
    const double gap = distance(y, m, d);
    const auto share = static_cast<float>(1 / (1 + sum));
    for (int c = 0; c < d; ++c) y[c] = share * y[c] + (1 - share) * m[c];
    shares[h] = share;
    if (estimate == nullptr || sum == 0) continue;
    const double residual = lines[head].residual;
    const double rows = sum * sum / std::max(rest.squares[head], std::numeric_limits<double>::min());
    const double of_rows = spread[static_cast<std::size_t>(h / at.group())] * std::min(1.0, std::exp(residual) / rows);
    const double of_line = gap * gap * std::min(residual, 1.0) / 4;
    estimate->error[head] =
        static_cast<float>((1 - double{share}) * std::sqrt(of_rows + of_line) / std::max(norm(y, d), 1e-30));
  }
}

std::vector<float> attend_with_estimate(const Step& step, const SelectionPlan& plan, gpu::Attended what,
                                        const std::vector<std::int32_t>& taken, const Ranking& ranking, Rest rest) {
  const LayerStep& at = step.at;
  ExactPart exact = attend_exactly(step, what);
  const HostRanking ready(step, ranking);
  const TakenLogits logits =
      fits_taken(ready, ranking) ? taken_logits(step, at.cache.store, plan.lists, plan.k, ready, taken) : TakenLogits();
  const std::vector<index::LogitLine> lines = logit_lines(step, ranking, ready, logits);
  const bool draws = rest.kind == Rest::Kind::draw;
  const std::vector<float> references = draws ? draw_references(exact.log_sums) : exact.log_sums;
  index::RestSearch search;
  search.scores = ready.search(plan.limit, plan.k);
  search.lines = lines.data();
  search.log_sums = references.data();
  search.taken = taken.data();
  search.count = draws ? plan.drawn : 0;
  search.key = draw_key(rest.seed, at.cache.layer, plan.tokens);
  const bool derived = ranking.source == Ranking::Source::derived;
  index::RestMasses masses =
      index::rest_masses(derived ? ranking.columns : at.cache.store, search, at.backend.threads());

  std::vector<float> shares(static_cast<std::size_t>(at.query_heads), 1.0f);
  if (step.estimate != nullptr) step.estimate->error.assign(shares.size(), 0.0f);
  if (draws) {
    const int heads = at.query_heads / plan.lists;
    at.backend.threads().parallel_for(plan.lists, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t list = begin; list < end; ++list) {
        index::RestMasses::Draw& draw = masses.draws[static_cast<std::size_t>(list)];
        const int first = static_cast<int>(list) * heads;
        refer_to(exact.log_sums, references, first, heads, draw);
        add_drawn(step, first, heads, draw, lines, exact.out.data(), shares.data(), step.estimate);
      }
    });
  } else {
    add_mean(step, masses, lines, mean_of_values(step), exact.out.data(), shares.data(), step.estimate);
  }
  if (step.estimate != nullptr) step.estimate->attended = shares;
  at.backend.to_device(step.out, exact.out.data(), exact.out.size() * sizeof(float), at.stream);
  return shares;
}

}  // namespace hayloft::runtime
