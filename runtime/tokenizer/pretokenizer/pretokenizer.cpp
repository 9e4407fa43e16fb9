#include "runtime/tokenizer/pretokenizer/pretokenizer.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/tokenizer/bpe/bytes.h"

namespace hayloft::runtime {

PreTokenizer::Run::Run(const PreTokenizer& steps, Sink sink) : steps_(steps), sink_(std::move(sink)) {
  for (const Step& step : steps.steps_) {
    matcher_of_.push_back(matchers_.size());
    if (const auto* split = std::get_if<Split>(&step)) matchers_.emplace_back(split->pattern);
  }
}

void PreTokenizer::Run::split(std::string_view text, bool at_start) {
  growth_.emplace(steps_.where_, text.size());
  step(0, text, at_start);
}

// Merged and contiguous pieces are known to be complete only when the next one begins, so one is held back.
template <class Piece>
void PreTokenizer::cut(const Split& split, Regex::Matcher& matcher, std::string_view text, Piece&& piece) {
  std::size_t held_begin = 0, held_end = 0;
  bool holding = false, previous_matched = false;
  matcher.spans(text, [&](std::size_t begin, std::size_t end, bool is_match) {
    const bool matched = is_match != split.invert;
    bool joins = false;  // the piece held back
    switch (split.behavior) {
      case Behavior::removed:
        if (!matched) piece(begin, end);
        return;
      case Behavior::isolated:
        piece(begin, end);
        return;
      case Behavior::merged_with_previous:
        joins = holding && matched && !previous_matched;
        break;
      case Behavior::merged_with_next:
        joins = holding && !matched && previous_matched;
        break;
      case Behavior::contiguous:
        joins = holding && matched == previous_matched;
        break;
    }
    if (holding && !joins) piece(held_begin, held_end);
    if (!joins) held_begin = begin;
    held_end = end;
    holding = true;
    previous_matched = matched;
  });
  if (holding) piece(held_begin, held_end);
}

void PreTokenizer::Run::step(std::size_t index, std::string_view text, bool at_start) {
  if (text.empty()) return;
  if (index == steps_.steps_.size()) return sink_(text);
  const Step& step_now = steps_.steps_[index];
  if (const auto* split = std::get_if<Split>(&step_now)) {
    cut(*split, matchers_[matcher_of_[index]], text, [&](std::size_t begin, std::size_t end) {
      step(index + 1, text.substr(begin, end - begin), at_start && begin == 0);
    });
  } else if (std::holds_alternative<PrependSpace>(step_now)) {
    if (text.front() == ' ') return step(index + 1, text, at_start);
    growth_->step(text.size() + 1);
    step(index + 1, std::string(" ").append(text), at_start);
  } else if (std::holds_alternative<ByteLetters>(step_now)) {
    const std::string letters = to_byte_letters(text);
    growth_->step(letters.size());
    step(index + 1, letters, at_start);
  } else {
    const auto& metaspace = std::get<Metaspace>(step_now);
    std::string replaced;
    replaced.reserve(text.size() + text.size() / 2);
    for (const char c : text) {
      if (c == ' ') {
        replaced += metaspace.replacement;
      } else {
        replaced += c;
      }
    }
    const bool prepend = metaspace.prepend == Scheme::always || (metaspace.prepend == Scheme::first && at_start);
    if (prepend && replaced.compare(0, metaspace.replacement.size(), metaspace.replacement) != 0) {
      replaced.insert(0, metaspace.replacement);
    }
    growth_->step(replaced.size());
    step(index + 1, replaced, at_start);
  }
}

}  // namespace hayloft::runtime
