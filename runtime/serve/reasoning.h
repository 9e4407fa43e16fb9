#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/decode/token_filter.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime::serve {

// Counts the tokens of an answer that are drawn while it reasons, that which ends its reasoning among them, and says
// which are of a message's head. Of one answer; not thread-safe. Form and tokenizer outlive it.
class ReasoningCount {
 public:
  ReasoningCount(const AnswerForm& form, const Tokenizer& tokenizer)
      : reader_(make_answer_reader(form)), tokenizer_(tokenizer) {}

  void take(std::int32_t token);  // the answer goes on with it
  bool reasons() const { return reader_->reasoning(); }
  bool heads() const { return reader_->heads(); }  // as AnswerReader has it
  std::int64_t tokens() const { return tokens_; }

 private:
  const std::unique_ptr<AnswerReader> reader_;
  const Tokenizer& tokenizer_;
  std::int64_t tokens_ = 0;
};

// Lets an answer reason for so many tokens, and then nothing pass but those that begin what it says. While a grammar
// forbids these, it waits: a model may write a call in its reasoning.
class ReasoningBound : public TokenFilter {
 public:
  // begins: the tokens that begin what it says. grammar: goes first; null: there is none.
  ReasoningBound(std::shared_ptr<const ReasoningCount> count, std::int64_t most, std::vector<std::int32_t> begins,
                 std::shared_ptr<TokenFilter> grammar)
      : count_(std::move(count)), most_(most), begins_(std::move(begins)), grammar_(std::move(grammar)) {}

  void apply(std::span<float> logits) override;
  void accept(std::int32_t token) override;
  bool finished() const override { return grammar_ && grammar_->finished(); }

 private:
  const std::shared_ptr<const ReasoningCount> count_;
  const std::int64_t most_;
  const std::vector<std::int32_t> begins_;
  const std::shared_ptr<TokenFilter> grammar_;
  std::size_t begun_ = 0;  // so many of them have come
};

}  // namespace hayloft::runtime::serve
