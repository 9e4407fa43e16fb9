#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "offload/error.h"
#include "runtime/decode/sampler_rules.h"
#include "runtime/decode/token_filter.h"

namespace hayloft::runtime {

// Says how a token is drawn from its logits. The default takes the largest.
struct SamplerOptions {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: off
  float top_p = 1;        // 1: off
  float min_p = 0;        // 0: off; drop tokens less likely than min_p times the likeliest
  std::uint64_t seed = 1;
  float typical_p = 1;       // 1: off; keep this share, those nearest to the expected information (arXiv 2202.00666)
  float epsilon_cutoff = 0;  // 0: off; drop tokens less likely than this (arXiv 2210.15191)
  float eta_cutoff = 0;      // 0: off; the same, or less where many tokens are likely (arXiv 2210.15191)
  LogitRules rules = {};     // before all of these, and before the largest is taken
};

// Rules and grammar that forbid every token together: whoever has set them has asked for it.
class NothingToDraw : public Error {
 public:
  using Error::Error;
};

// The largest logits of a token, or all of them.
struct Candidates {
  std::vector<std::int32_t> tokens;  // ascending
  std::vector<float> logits;         // of each
};

// Picks the next token from logits: the rules, temperature, then top-k, top-p, min-p, typical-p, epsilon and eta, each
// on what the one before left. The same seed and logits give the same tokens on every machine. Of one answer: what it
// picks is what the rules go on from. Not thread-safe.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);  // throws Error naming the option out of range

  // From now on tokens are those that the filter lets pass, after the rules.
  void hold_to(std::shared_ptr<TokenFilter> filter) { filter_ = std::move(filter); }
  bool has_filter() const { return filter_ != nullptr; }  // which copies of the sampler share
  bool filter_finished() const { return filter_ && filter_->finished(); }

  // Returns how many of the largest logits decide; 0: all of them, as always where there are rules.
  int wanted() const;

  // Returns whether the tokens of the prompt matter: rules go by them.
  bool reads_prompt() const { return editor_.any(); }
  // The tokens before the answer, in any number of parts; what a saved context holds is among them.
  void read(std::span<const std::int32_t> prompt) { editor_.read(prompt); }

  // Ties go to the smaller token id. Throws NothingToDraw, and Error where NaN or infinity leaves nothing to draw by.
  std::int32_t sample(std::span<const float> logits /* [vocab] */);
  // From the wanted() largest: the same token as from all. Throws std::logic_error on none, and where
  // some have no logit.
  std::int32_t sample(const Candidates& candidates);

 private:
  // From logits, which belong to tokens[i], or to token i where there are no tokens.
  std::int32_t pick(std::span<const float> logits, std::span<const std::int32_t> tokens);
  // Typical-p, epsilon and eta: of the candidates in `order`, and the sums of their weights up to each.
  void narrow(std::vector<std::int32_t>& order, std::vector<double>& sums) const;

  SamplerOptions options_;
  LogitEditor editor_;
  std::shared_ptr<TokenFilter> filter_;  // null: all pass
  std::mt19937_64 random_;
};

}  // namespace hayloft::runtime
