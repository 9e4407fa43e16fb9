#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

struct Candidate {
  std::int32_t token;
  double weight;  // exp((logit - largest logit) / temperature)
};

double total(std::span<const Candidate> candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& candidate) { return sum + candidate.weight; });
}

// The smallest number of leading candidates that hold `share` of the weight.
std::size_t nucleus(std::span<const Candidate> candidates, double share) {
  const double wanted = share * total(candidates);
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    sum += candidates[i].weight;
    if (sum >= wanted) return i + 1;
  }
  return candidates.size();
}

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

  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const std::size_t kept =
      options_.top_k > 0 ? std::min(order.size(), static_cast<std::size_t>(options_.top_k)) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), likelier);
  std::vector<Candidate> candidates(kept);
  for (std::size_t i = 0; i < kept; ++i) {
    const double below = static_cast<double>(logits[static_cast<std::size_t>(order[i])]) - *largest;
    candidates[i] = {token_of(order[i]), std::exp(below / options_.temperature)};
  }
  if (options_.top_p < 1) candidates.resize(nucleus(candidates, options_.top_p));
  const auto unlikely = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
    return candidate.weight < static_cast<double>(options_.min_p);  // the likeliest weighs exactly 1
  });
  candidates.erase(unlikely, candidates.end());

  double left = uniform(random_) * total(candidates);
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates.back().token;  // the sum's rounding left nothing over
}

}  // namespace hayloft::runtime
