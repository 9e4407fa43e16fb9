#include "runtime/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr std::size_t kFirstSorted = 256;

// [0, 1) from the generator's bits: std::uniform_real_distribution may differ from library to library.
double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    fail("--temp {}: the temperature must be 0 (greedy) or more", options.temperature);
  }
  if (options.top_k < 0) fail("--top-k {}: must be 0 (off) or more", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1)) fail("--top-p {}: must be above 0 and at most 1", options.top_p);
  if (!(options.min_p >= 0 && options.min_p <= 1)) fail("--min-p {}: must be between 0 and 1", options.min_p);
}

int Sampler::wanted() const {
  return options_.temperature == 0 ? 1 : options_.top_k;
}

std::int32_t Sampler::sample(std::span<const float> logits) {
  return pick(logits, {});
}

std::int32_t Sampler::sample(const Candidates& candidates) {
  return pick(candidates.logits, candidates.tokens);
}

std::int32_t Sampler::pick(std::span<const float> logits, std::span<const std::int32_t> tokens) {
  if (logits.empty()) throw std::logic_error("sampling needs a logit");
  const auto token_of = [&](std::int32_t i) { return tokens.empty() ? i : tokens[static_cast<std::size_t>(i)]; };
  const auto largest = std::max_element(logits.begin(), logits.end());  // the first of equals
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

  // The likeliest that hold top_p of the whole and are not too far behind the first. Nothing but the draw ends them
  // when there is no such limit.
  const double drawn = uniform(random_);
  const bool limited = options_.top_p < 1 || options_.min_p > 0;
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
  const double wanted = limited ? drawn * sum : enough;
  const auto chosen = std::upper_bound(sums.begin(), sums.end() - 1, wanted);  // the last where rounding leaves none
  return token_of(order[static_cast<std::size_t>(chosen - sums.begin())]);
}

}  // namespace hayloft::runtime
