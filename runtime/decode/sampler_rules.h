#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hayloft::runtime {

// Changes the logits before a token is drawn from them, greedily or not: by the tokens that came before, and by lists
// of ids. The equations and their order are those of Hugging Face transformers; frequency_penalty, presence_penalty and
// logit_bias are OpenAI's. The defaults change nothing.
struct LogitRules {
  // The logit of a token that prompt or answer have: divided by this where it is above 0, else multiplied. Above 0.
  float repetition_penalty = 1;
  std::int64_t repetition_window = 0;  // how many of the newest tokens that goes by; 0: all
  float frequency_penalty = 0;         // subtracted for each time that the answer has the token
  float presence_penalty = 0;          // subtracted where the answer has it
  int no_repeat_ngram_size = 0;        // no run of so many tokens comes twice in prompt and answer; 0: off
  int min_new_tokens = 0;              // the answer has so many tokens before one of end_tokens
  std::int64_t min_length = 0;         // prompt and answer together have
  std::vector<std::int32_t> end_tokens = {};
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // added to the logit; -infinity forbids the token
  std::vector<std::int32_t> suppress_tokens = {};               // never drawn
  std::vector<std::int32_t> begin_suppress_tokens = {};         // not as the first of an answer
  std::vector<std::vector<std::int32_t>> bad_words_ids = {};    // runs of tokens that are never completed

  bool any() const;  // whether there is something to do

  void check() const;  // throws Error naming what is out of range
  // Throws Error naming the list and the id that a vocabulary of so many tokens does not have.
  void require_within(int vocab) const;
};

// Applies rules to logits, and keeps what they need to know of the tokens so far. Not thread-safe.
class LogitEditor {
 public:
  explicit LogitEditor(LogitRules rules) : rules_(std::move(rules)), any_(rules_.any()) {}

  bool any() const { return any_; }
  const LogitRules& rules() const { return rules_; }

  void read(std::span<const std::int32_t> prompt);  // before an answer begins, in any number of parts
  void drawn(std::int32_t token);                   // goes on with the answer

  // Changes the logits of what follows, [vocab].
  void apply(std::span<float> logits) const;

 private:
  void add(std::int32_t token);
  void penalise(std::span<float> logits) const;
  void forbid_repeated_runs(std::span<float> logits) const;
  void forbid_words(std::span<float> logits) const;
  void forbid_ends(std::span<float> logits) const;

  LogitRules rules_;
  bool any_;
  std::vector<std::int32_t> tokens_;                          // prompt and answer
  std::unordered_map<std::int32_t, std::int64_t> in_window_;  // how often each is among those of the window
  std::unordered_map<std::int32_t, std::int64_t> in_answer_;  // and in the answer
  std::int64_t answered_ = 0;                                 // tokens of the answer
};

}  // namespace hayloft::runtime
