#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/decode/token_filter.h"
#include "runtime/grammar/recogniser.h"
#include "runtime/grammar/vocabulary.h"

namespace hayloft::runtime::grammar {

// When a grammar holds.
struct Holding {
  std::string behind = {};  // from this text on, special tokens as they are written; empty: from the beginning
  bool once = true;         // to the end of the answer; false: behind its text anything may follow, and again
};

// A grammar that answers keep to. Answers to one request share it, and what has been found of its states: which tokens
// each lets pass. Thread-safe.
class Constraint : public std::enable_shared_from_this<Constraint> {
 public:
  Constraint(Grammar grammar, Holding holding) : recogniser_(std::move(grammar)), holding_(std::move(holding)) {}

  // For one answer, which may end with one of `ends`. The tokenizer and the vocabulary outlive it.
  std::unique_ptr<TokenFilter> begin(const Tokenizer& tokenizer, const Vocabulary& vocabulary,
                                     std::vector<std::int32_t> ends);

 private:
  friend class GrammarFilter;
  using Mask = std::vector<bool>;  // of tokens, true where they may follow

  const Mask& mask(Recogniser::State state, const Vocabulary& vocabulary);

  std::mutex mutex_;  // of what follows
  Recogniser recogniser_;
  const Holding holding_;
  std::unordered_map<Recogniser::State, Mask> masks_;
};

}  // namespace hayloft::runtime::grammar
