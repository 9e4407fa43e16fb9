#include "runtime/decode/sampler_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

constexpr float forbidden_logit = -std::numeric_limits<float>::infinity();

bool is_finite_or_forbids(float bias) {
  return std::isfinite(bias) || bias == forbidden_logit;
}

void set_logit(std::span<float> logits, std::int32_t token, float value) {
  if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) logits[static_cast<std::size_t>(token)] = value;
}

}  // namespace

bool LogitRules::any() const {
  const bool by_tokens = repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0 ||
                         no_repeat_ngram_size > 0 || ((min_new_tokens > 0 || min_length > 0) && !end_tokens.empty());
  return by_tokens || !logit_bias.empty() || !suppress_tokens.empty() || !begin_suppress_tokens.empty() ||
         !bad_words_ids.empty();
}

void LogitRules::check() const {
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) {
    fail("repetition_penalty {}: must be above 0; 1 is off", repetition_penalty);
  }
  if (repetition_window < 0) fail("repetition_window {}: must be 0 (all) or more", repetition_window);
  if (!std::isfinite(frequency_penalty)) fail("frequency_penalty must be a number");
  if (!std::isfinite(presence_penalty)) fail("presence_penalty must be a number");
  if (no_repeat_ngram_size < 0) {
    fail("no_repeat_ngram_size {}: must be 0 (off) or more", no_repeat_ngram_size);
  }
  if (min_new_tokens < 0 || min_length < 0) fail("min_new_tokens and min_length must be 0 (off) or more");
  for (const auto& [token, bias] : logit_bias) {
    if (!is_finite_or_forbids(bias)) fail("logit_bias of token {}: must be a number", token);
  }
  for (const auto& word : bad_words_ids) {
    if (word.empty()) fail("bad_words_ids has a list without a token");
  }
}

void LogitRules::require_within(int vocab) const {
  const auto require = [&](const char* name, std::int32_t token) {
    if (token < 0 || token >= vocab) {
      fail("{} has the token {}, but the model's are 0 to {}", name, token, vocab - 1);
    }
  };
  for (const auto& [token, bias] : logit_bias) require("logit_bias", token);
  for (const std::int32_t token : suppress_tokens) require("suppress_tokens", token);
  for (const std::int32_t token : begin_suppress_tokens) require("begin_suppress_tokens", token);
  for (const auto& word : bad_words_ids) {
    for (const std::int32_t token : word) require("bad_words_ids", token);
  }
}

void LogitEditor::add(std::int32_t token) {
  tokens_.push_back(token);
  ++in_window_[token];
  const auto window = static_cast<std::size_t>(rules_.repetition_window);
  if (window == 0 || tokens_.size() <= window) return;
  const auto oldest = in_window_.find(tokens_[tokens_.size() - 1 - window]);
  if (--oldest->second == 0) in_window_.erase(oldest);
}

void LogitEditor::read(std::span<const std::int32_t> prompt) {
  if (!any_) return;
  for (const std::int32_t token : prompt) add(token);
}

void LogitEditor::drawn(std::int32_t token) {
  if (!any_) return;
  add(token);
  ++in_answer_[token];
  ++answered_;
}

void LogitEditor::apply(std::span<float> logits) const {
  if (!any_) return;
  for (const auto& [token, bias] : rules_.logit_bias) {
    if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) logits[static_cast<std::size_t>(token)] += bias;
  }
  penalise(logits);
  forbid_repeated_runs(logits);
  forbid_words(logits);
  forbid_ends(logits);
  for (const std::int32_t token : rules_.suppress_tokens) set_logit(logits, token, forbidden_logit);
  if (answered_ > 0) return;
  for (const std::int32_t token : rules_.begin_suppress_tokens) set_logit(logits, token, forbidden_logit);
}

void LogitEditor::penalise(std::span<float> logits) const {
  const auto logit_of = [&](std::int32_t token) -> float* {
    const bool there = token >= 0 && static_cast<std::size_t>(token) < logits.size();
    return there ? &logits[static_cast<std::size_t>(token)] : nullptr;
  };
  if (rules_.repetition_penalty != 1) {
    for (const auto& [token, times] : in_window_) {
      float* const logit = logit_of(token);
      if (logit) *logit = *logit < 0 ? *logit * rules_.repetition_penalty : *logit / rules_.repetition_penalty;
    }
  }
  if (rules_.frequency_penalty == 0 && rules_.presence_penalty == 0) return;
  for (const auto& [token, times] : in_answer_) {
    float* const logit = logit_of(token);
    if (logit) *logit -= static_cast<float>(times) * rules_.frequency_penalty + rules_.presence_penalty;
  }
}

// Forbids what would follow the newest tokens as it has followed the same ones before.
void LogitEditor::forbid_repeated_runs(std::span<float> logits) const {
  const auto size = static_cast<std::size_t>(rules_.no_repeat_ngram_size);
  if (size == 0 || tokens_.size() < size) return;
  const auto newest = tokens_.end() - static_cast<std::ptrdiff_t>(size - 1);
  for (std::size_t at = 0; at + size <= tokens_.size(); ++at) {
    const auto run = tokens_.begin() + static_cast<std::ptrdiff_t>(at);
    const auto last = run + static_cast<std::ptrdiff_t>(size - 1);
    if (std::equal(newest, tokens_.end(), run, last)) set_logit(logits, *last, forbidden_logit);
  }
}

// A word that is the end of a text alone is let pass, as transformers does.
void LogitEditor::forbid_words(std::span<float> logits) const {
  for (const std::vector<std::int32_t>& word : rules_.bad_words_ids) {
    const std::size_t before = word.size() - 1;
    if (before > tokens_.size()) continue;
    if (before == 0 && std::ranges::find(rules_.end_tokens, word.front()) != rules_.end_tokens.end()) continue;
    if (std::equal(word.begin(), word.end() - 1, tokens_.end() - static_cast<std::ptrdiff_t>(before))) {
      set_logit(logits, word.back(), forbidden_logit);
    }
  }
}

void LogitEditor::forbid_ends(std::span<float> logits) const {
  if (answered_ >= rules_.min_new_tokens && static_cast<std::int64_t>(tokens_.size()) >= rules_.min_length) return;
  for (const std::int32_t token : rules_.end_tokens) set_logit(logits, token, forbidden_logit);
}

}  // namespace hayloft::runtime
