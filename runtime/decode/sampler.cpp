#include "runtime/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr std::size_t kFirstSorted = 256;

// [0, 1) from the generator's bits: std::uniform_real_distribution may differ from library to library.
double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

[[noreturn]] void fail_for_nan() {
  fail("the logits are not all numbers: no token can be drawn from them");
}

// The rest of the likeliest tokens; weights is what each weighs, the likeliest first.
struct Left {
  std::vector<std::int32_t>& tokens;
  std::vector<double>& weights;

  double whole() const { return std::accumulate(weights.begin(), weights.end(), 0.0); }
  double entropy() const {
    const double all = whole();
    double sum = 0;
    for (const double weight : weights) sum -= weight > 0 ? weight / all * std::log(weight / all) : 0;
    return sum;
  }
  template <class Keep>
  void keep(Keep wanted) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!wanted(i)) continue;
      tokens[kept] = tokens[i];
      weights[kept++] = weights[i];
    }
    tokens.resize(kept);
    weights.resize(kept);
  }
};

// Keeps the tokens whose information is nearest to what is expected, up to a share of `mass`.
void keep_typical(Left left, double mass) {
  const double whole = left.whole(), expected = left.entropy();
  std::vector<double> away;
  for (const double weight : left.weights) away.push_back(std::abs(-std::log(weight / whole) - expected));
  std::vector<std::size_t> nearest(away.size());
  std::iota(nearest.begin(), nearest.end(), std::size_t{0});
  std::stable_sort(nearest.begin(), nearest.end(), [&](std::size_t a, std::size_t b) { return away[a] < away[b]; });
  double sum = 0;
  std::size_t last = 0;
  while (last + 1 < nearest.size() && (sum += left.weights[nearest[last]]) < mass * whole) ++last;
  const double farthest = away[nearest[last]];
  left.keep([&](std::size_t i) { return away[i] <= farthest; });
}

// Drops tokens below a probability, though never the likeliest.
void drop_unlikely(Left left, double least) {
  const double whole = left.whole(), most = *std::max_element(left.weights.begin(), left.weights.end());
  std::vector<double> weights = left.weights;
  left.keep([&](std::size_t i) { return weights[i] >= least * whole || weights[i] == most; });
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), editor_(std::move(options_.rules)), random_(options.seed) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    fail("--temp {}: the temperature must be 0 (greedy) or more", options.temperature);
  }
  if (options.top_k < 0) fail("--top-k {}: must be 0 (off) or more", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1)) fail("--top-p {}: must be above 0 and at most 1", options.top_p);
  if (!(options.min_p >= 0 && options.min_p <= 1)) fail("--min-p {}: must be between 0 and 1", options.min_p);
  if (!(options.typical_p > 0 && options.typical_p <= 1)) {
    fail("typical_p {}: must be above 0 and at most 1", options.typical_p);
  }
  if (!(options.epsilon_cutoff >= 0 && options.epsilon_cutoff < 1)) {
    fail("epsilon_cutoff {}: must be from 0 (off) to below 1", options.epsilon_cutoff);
  }
  if (!(options.eta_cutoff >= 0 && options.eta_cutoff < 1)) {
    fail("eta_cutoff {}: must be from 0 (off) to below 1", options.eta_cutoff);
  }
  editor_.rules().check();
}

int Sampler::wanted() const {
  if (editor_.any() || filter_) return 0;
  return options_.temperature == 0 ? 1 : options_.top_k;
}

std::int32_t Sampler::sample(std::span<const float> logits) {
  if (!editor_.any() && !filter_) return pick(logits, {});
  std::vector<float> edited(logits.begin(), logits.end());
  editor_.apply(edited);
  if (filter_) filter_->apply(edited);
  if (std::ranges::all_of(edited, [](float logit) { return logit == -std::numeric_limits<float>::infinity(); })) {
    throw NothingToDraw(fmt::format(
        "no token is left to draw: suppress_tokens, no_repeat_ngram_size, bad_words_ids, logit_bias{} forbid "
        "all of them together",
        filter_ ? " and the grammar" : ""));
  }
  const std::int32_t token = pick(edited, {});
  editor_.drawn(token);
  if (filter_) filter_->accept(token);
  return token;
}

std::int32_t Sampler::sample(const Candidates& candidates) {
  if (candidates.tokens.size() != candidates.logits.size()) {
    throw std::logic_error("sampling needs a logit for each candidate");
  }
  return pick(candidates.logits, candidates.tokens);
}

std::int32_t Sampler::pick(std::span<const float> logits, std::span<const std::int32_t> tokens) {
  if (logits.empty()) throw std::logic_error("sampling needs a logit");
  const auto token_of = [&](std::int32_t i) { return tokens.empty() ? i : tokens[static_cast<std::size_t>(i)]; };
  const auto largest = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (std::isnan(*largest)) fail_for_nan();
  if (options_.temperature == 0) return token_of(static_cast<std::int32_t>(largest - logits.begin()));

  const auto weight = [&](std::int32_t i) {  // the likeliest weighs exactly 1
    const double below = static_cast<double>(logits[static_cast<std::size_t>(i)]) - *largest;
    return std::exp(below / options_.temperature);
  };
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // Only what decides is put in order, a few of a hundred thousand as a rule.
  std::size_t sorted = 0;
  const auto sort = [&](std::size_t count) {
    const auto at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
    if (8 * count < order.size()) {
      std::partial_sort(at(sorted), at(count), order.end(), likelier);
    } else {  // sorts all, which then is faster
      std::sort(at(sorted), order.end(), likelier);
    }
    sorted = 8 * count < order.size() ? count : order.size();
  };
  if (options_.top_k > 0) {
    const std::size_t kept = std::min(order.size(), static_cast<std::size_t>(options_.top_k));
    sort(kept);
    order.resize(kept);
    sorted = kept;
  }
  double whole = 0;
  for (const std::int32_t i : order) whole += weight(i);
  if (std::isnan(whole)) fail_for_nan();

  // The likeliest that hold top_p of the whole and are not too far behind the first. Nothing but the draw ends them
  // when there is no such limit.
  const double drawn = uniform(random_);
  const bool by_information = options_.typical_p < 1 || options_.epsilon_cutoff > 0 || options_.eta_cutoff > 0;
  const bool limited = options_.top_p < 1 || options_.min_p > 0 || by_information;
  const double enough = limited ? options_.top_p * whole : drawn * whole;
  std::vector<double> sums;  // of the weights of the candidates up to each
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == sorted) sort(std::max(kFirstSorted, 4 * sorted));
    const double next = weight(order[i]);
    if (next < static_cast<double>(options_.min_p)) break;
    sum += next;
    sums.push_back(sum);
    if (limited ? options_.top_p < 1 && sum >= enough : sum > enough) break;
  }
  if (by_information) {
    narrow(order, sums);
    sum = sums.back();
  }
  const double wanted = limited ? drawn * sum : enough;
  const auto chosen = std::upper_bound(sums.begin(), sums.end() - 1, wanted);  // the last where rounding leaves none
  return token_of(order[static_cast<std::size_t>(chosen - sums.begin())]);
}

void Sampler::narrow(std::vector<std::int32_t>& order, std::vector<double>& sums) const {
  std::vector<double> weights(sums.size());
  std::adjacent_difference(sums.begin(), sums.end(), weights.begin());
  order.resize(sums.size());
  const Left left{order, weights};
  if (options_.typical_p < 1) keep_typical(left, options_.typical_p);
  if (options_.epsilon_cutoff > 0) drop_unlikely(left, options_.epsilon_cutoff);
  if (options_.eta_cutoff > 0) {
    const double eta = options_.eta_cutoff;
    drop_unlikely(left, std::min(eta, std::sqrt(eta) * std::exp(-left.entropy())));
  }
  sums.resize(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
}

}  // namespace hayloft::runtime
