#include "runtime/serve/reasoning.h"

#include <algorithm>
#include <limits>

namespace hayloft::runtime::serve {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

}  // namespace

void ReasoningCount::take(std::int32_t token) {
  if (reader_->reasoning()) ++tokens_;
  reader_->push({tokenizer_.decode({token}, true, true), tokenizer_.is_special(token)});
}

void ReasoningBound::apply(std::span<float> logits) {
  if (grammar_) grammar_->apply(logits);
  if (begun_ == 0 && !(count_->reasons() && count_->tokens() >= most_)) return;
  const auto next = static_cast<std::size_t>(begins_[begun_]);
  const float logit = logits[next];
  if (logit == kForbidden) return;
  std::ranges::fill(logits, kForbidden);
  logits[next] = logit;
}

void ReasoningBound::accept(std::int32_t token) {
  if (grammar_) grammar_->accept(token);
  const bool due = begun_ > 0 || (count_->reasons() && count_->tokens() >= most_);
  begun_ = due && token == begins_[begun_] ? (begun_ + 1) % begins_.size() : 0;
}

}  // namespace hayloft::runtime::serve
