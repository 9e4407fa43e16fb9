#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace hayloft::runtime {

// How a token is drawn from its logits. The default takes the largest.
struct SamplerOptions {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: off
  float top_p = 1;        // 1: off
  float min_p = 0;        // 0: off; drop tokens less likely than min_p times the likeliest
  std::uint64_t seed = 1;
};

// The largest logits of a token, or all of them.
struct Candidates {
  std::vector<std::int32_t> tokens;  // ascending
  std::vector<float> logits;         // of each
};

// Picks the next token from logits: temperature, then top-k, top-p and min-p, each on what the one before left. The
// same seed and logits give the same tokens on every machine. Not thread-safe.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);  // throws Error naming the option out of range

  // How many of the largest logits decide; 0: all of them.
  int wanted() const;

  std::int32_t sample(std::span<const float> logits /* [vocab] */);  // ties go to the smaller token id
  // From the wanted() largest: the same token as from all. Throws std::logic_error on none.
  std::int32_t sample(const Candidates& candidates);

 private:
  // From logits, which belong to tokens[i], or to token i where there are no tokens.
  std::int32_t pick(std::span<const float> logits, std::span<const std::int32_t> tokens);

  SamplerOptions options_;
  std::mt19937_64 random_;
};

}  // namespace hayloft::runtime
