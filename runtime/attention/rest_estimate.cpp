#include "runtime/attention/rest_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>

#include "index/scan/rest_kernels.h"
#include "runtime/attention/host_tail.h"
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

struct FreeAligned {
  void operator()(float* floats) const { ::operator delete[](floats, std::align_val_t{64}); }
};
// As the kernels of index/ want them.
std::unique_ptr<float[], FreeAligned> aligned_floats(int n) {
  return std::unique_ptr<float[], FreeAligned>(
      static_cast<float*>(::operator new[](static_cast<std::size_t>(n) * sizeof(float), std::align_val_t{64})));
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

// The estimate for the query heads of one list, from the values that were drawn. means [Hq][d]: what they are taken
// towards; may be empty.
void add_drawn(const Step& step, int first, int heads, const index::RestMasses::Draw& draw,
               const std::vector<index::LogitLine>& lines, const std::vector<float>& means, float* out, float* shares,
               StepEstimate* estimate) {
  const LayerStep& at = step.at;
  const int d = at.head_dim();
  const auto n = static_cast<int>(draw.positions.size());
  const int stride = (d + 15) / 16 * 16;
  const int kv_head = first / at.group();
  const bool as_they_are = at.cache.store.layout->row_format == offload::RowFormat::f16;
  const auto values = aligned_floats(n * stride);
  std::vector<const f16*> rows;
  std::vector<f16> widened(as_they_are ? 0 : static_cast<std::size_t>(n * 2 * d));
  for (int i = 0; i < n; ++i) {
    f16* const space = as_they_are ? nullptr : widened.data() + std::ptrdiff_t{i} * 2 * d;
    rows.push_back(at.cache.store.row(kv_head, draw.positions[static_cast<std::size_t>(i)], space) + d);
  }
  index::widen_values(rows.data(), n, d, stride, values.get());
  std::vector<float> squares(static_cast<std::size_t>(n));  // |V|^2 of each
  for (int i = 0; i < n && (estimate != nullptr || !means.empty()); ++i) {
    const float* const v = values.get() + std::ptrdiff_t{i} * stride;
    index::dot_values(v, 1, stride, v, squares.data() + i);
  }
  const auto mean = aligned_floats(stride);
  const auto mixed = aligned_floats(stride);
  std::fill_n(mixed.get(), stride, 0.0f);
  std::vector<float> weights(squares.size()), products(squares.size());
  for (int h = first; h < first + heads; ++h) {
    const float* const masses = draw.masses.data() + std::ptrdiff_t{h - first} * n;
    float* const y = out + std::ptrdiff_t{h} * d;
    float rest = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = masses[i] / draw.chances[i];
      rest += weights[i];
    }
    if (!std::isfinite(rest)) {  // what is attended exactly stays, and nothing is known of the rest
      if (estimate != nullptr) estimate->error[static_cast<std::size_t>(h)] = std::numeric_limits<float>::infinity();
      continue;
    }
    index::sum_values(values.get(), n, stride, weights.data(), mean.get());
    float kept = 1;
    if (!means.empty() && rest > 0) {
      for (int c = 0; c < stride; ++c) mean[static_cast<std::size_t>(c)] /= rest;
      index::dot_values(values.get(), n, stride, mean.get(), products.data());
      const double size = norm(mean.get(), d);
      double variance = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double weight = double{weights[i]} / double{rest};
        const double far = double{squares[i]} + size * size - 2 * double{products[i]};
        variance += weight * weight * (1 - double{draw.chances[i]}) * std::max(far, 0.0);
      }
      const float* const m = means.data() + std::ptrdiff_t{h} * d;
      kept = kept_of_drawn(variance, distance(mean.get(), m, d));
      for (int c = 0; c < d; ++c) {
        float& x = mean[static_cast<std::size_t>(c)];
        x = rest * (m[c] + kept * (x - m[c]));
      }
    }
    const std::vector<float> exact(y, y + d);
    for (int c = 0; c < d; ++c) y[c] = (y[c] + mean[static_cast<std::size_t>(c)]) / (1 + rest);
    shares[h] = 1 / (1 + rest);
    if (estimate == nullptr || rest == 0) continue;
    std::copy_n(y, d, mixed.get());
    index::dot_values(values.get(), n, stride, mixed.get(), products.data());
    const double spread = std::exp(std::min(double{lines[static_cast<std::size_t>(h)].residual}, 1.5)) - 1;
    const double size = norm(y, d);
    double variance = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double chance = draw.chances[i];
      const double weight = double{weights[i]} / (1 + double{rest});
      const double far = double{squares[i]} + size * size - 2 * double{products[i]};
      variance += weight * weight * (1 - chance + spread * chance) * std::max(far, 0.0);  // |V - y|^2
    }
    for (int c = 0; c < d; ++c) mean[static_cast<std::size_t>(c)] /= rest;
    estimate->error[static_cast<std::size_t>(h)] =
        drawn_error(means.empty(), variance, kept, rest, distance(mean.get(), exact.data(), d), size);
  }
}

// The variance of V over the newest tokens of the tail about the mean, [Hkv].
constexpr std::int64_t spread_tokens = 512;
std::vector<double> spread_of_values(const Step& step, const std::vector<float>& mean) {
  const LayerStep& at = step.at;
  const int d = at.head_dim();
  const HostTail tail(at.backend, at.cache, at.stream, spread_tokens);
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

// The formula that needs no further row: of an output in which what is attended has the share `share`, and the mean of
// V, which lies `gap` from it, all else, where the rest truly has the share rho. The rest's own mean lies as far from
// the mean of V as `rows` values of this spread may take it, and rho is as uncertain as the line.
double formula_error(double share, double rho, double gap, double spread, double residual, double rows) {
  const double of_rows = rho * rho * spread * std::min(1.0, std::exp(residual) / rows);
  const double of_line = rho * rho * gap * gap * std::min(residual, 1.0) / 4;
  const double of_share = (1 - share - rho) * (1 - share - rho) * gap * gap;
  return std::sqrt(index::alike_values * (of_rows + of_line) + of_share);
}

// The number of positions that hold a query head's rest.
double rows_of(const index::RestMasses& rest, std::size_t head) {
  return rest.sum[head] * rest.sum[head] / std::max(rest.squares[head], std::numeric_limits<double>::min());
}

}  // namespace

float kept_of_drawn(double variance, double distance) {
  const double gap = distance * distance;
  return variance < gap ? static_cast<float>(1 - variance / gap) : variance > 0 ? 0.0f : 1.0f;
}

float drawn_error(bool by_lines, double variance, float kept, float rest, double between, double length) {
  const double rho = double{rest} / (1 + double{rest});
  const double shift = by_lines ? index::share_by_line * rho * (1 - rho) * between : 0.0;
  const double counted = by_lines ? index::alike_values : (1 + double{kept}) / 2;
  return static_cast<float>(std::sqrt(variance * counted + shift * shift) / std::max(length, 1e-30));
}

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
    const double rho = 1 - double{share};
    const double error = formula_error(share, rho, gap, spread[static_cast<std::size_t>(h / at.group())],
                                       lines[head].residual, rows_of(rest, head));
    estimate->error[head] = static_cast<float>(error / std::max(norm(y, d), 1e-30));
  }
}

namespace {

std::vector<index::LogitLine> lines_of(const Step& step, const SelectionPlan& plan, const Ranking& ranking,
                                       const HostRanking& ready) {
  if (!needs_lines(ranking)) return std::vector<index::LogitLine>(static_cast<std::size_t>(step.at.query_heads));
  const LineSample& sample = line_sample(step, step.at.cache.store, line_positions(plan.limit));
  return logit_lines(line_logits(step, sample, ready), step.at.query_heads);
}

index::RestMasses masses_of(const Step& step, const SelectionPlan& plan, const Selection& taken, const Ranking& ranking,
                            const HostRanking& ready, const std::vector<index::LogitLine>& lines,
                            const std::vector<float>& log_sums, int drawn, std::uint64_t key) {
  const LayerStep& at = step.at;
  index::RestSearch search;
  search.scores = ready.search(plan.limit, plan.k);
  search.lines = lines.data();
  search.log_sums = log_sums.data();
  search.taken = taken.positions.data();
  search.kept = taken.kept;
  search.count = drawn;
  search.key = key;
  const bool derived = ranking.source == Ranking::Source::derived;
  return index::rest_masses(derived ? ranking.columns : at.cache.store, search, at.backend.threads());
}

}  // namespace

std::vector<float> attend_with_estimate(const Step& step, const SelectionPlan& plan, gpu::Attended what,
                                        const Selection& taken, const Ranking& ranking, Rest rest) {
  const LayerStep& at = step.at;
  ExactPart exact = attend_exactly(step, what);
  const HostRanking ready(step, ranking);
  const std::vector<index::LogitLine> lines = lines_of(step, plan, ranking, ready);
  const bool draws = rest.kind == Rest::Kind::draw;
  const std::vector<float> references = draws ? draw_references(exact.log_sums) : exact.log_sums;
  index::RestMasses masses = masses_of(step, plan, taken, ranking, ready, lines, references, draws ? plan.drawn : 0,
                                       draw_key(rest.seed, at.cache.layer, plan.tokens));

  std::vector<float> shares(static_cast<std::size_t>(at.query_heads), 1.0f);
  if (step.estimate != nullptr) step.estimate->error.assign(shares.size(), 0.0f);
  if (draws) {
    const std::vector<float> means = needs_lines(ranking) ? std::vector<float>() : mean_of_values(step);
    const int heads = at.query_heads / plan.lists;
    at.backend.threads().parallel_for(plan.lists, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t list = begin; list < end; ++list) {
        index::RestMasses::Draw& draw = masses.draws[static_cast<std::size_t>(list)];
        const int first = static_cast<int>(list) * heads;
        refer_to(exact.log_sums, references, first, heads, draw);
        add_drawn(step, first, heads, draw, lines, means, exact.out.data(), shares.data(), step.estimate);
      }
    });
  } else {
    add_mean(step, masses, lines, mean_of_values(step), exact.out.data(), shares.data(), step.estimate);
  }
  if (step.estimate != nullptr) step.estimate->attended = shares;
  at.backend.to_device(step.out, exact.out.data(), exact.out.size() * sizeof(float), at.stream);
  return shares;
}

void predict_error(const Step& step, const SelectionPlan& plan, gpu::Attended what, const Selection& taken,
                   const Ranking& ranking, Rest rest) {
  const LayerStep& at = step.at;
  const int d = at.head_dim();
  const ExactPart exact = attend_exactly(step, what);
  const HostRanking ready(step, ranking);
  const std::vector<index::LogitLine> lines = lines_of(step, plan, ranking, ready);
  const index::RestMasses masses = masses_of(step, plan, taken, ranking, ready, lines, exact.log_sums, 0, 0);
  const std::vector<float> mean = mean_of_values(step);
  const std::vector<double> spread = spread_of_values(step, mean);
  const std::vector<float> out = copy_to_host(at.backend, step.out, at.query_elements(), at.stream);
  const bool by_mean = rest.kind == Rest::Kind::mean && !taken.alpha.empty();
  for (int h = 0; h < at.query_heads; ++h) {
    const auto head = static_cast<std::size_t>(h);
    const std::ptrdiff_t first = std::ptrdiff_t{h} * d;
    const double sum = masses.sum[head];
    double error = std::numeric_limits<double>::infinity();
    if (std::isfinite(sum)) {
      const double share = by_mean ? double{taken.alpha[head]} : 1;
      const double gap = distance(exact.out.data() + first, mean.data() + first, d);
      error = sum == 0 ? (1 - share) * gap
                       : formula_error(share, sum / (1 + sum), gap, spread[static_cast<std::size_t>(h / at.group())],
                                       lines[head].residual, rows_of(masses, head));
      error /= std::max(norm(out.data() + first, d), 1e-30);
    }
    step.estimate->error.push_back(static_cast<float>(error));
    step.estimate->attended.push_back(std::isfinite(sum) ? static_cast<float>(1 / (1 + sum)) : 1.0f);
  }
}

}  // namespace hayloft::runtime
