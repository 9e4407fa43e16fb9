#pragma once

#include <string>
#include <vector>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/chat/calls/early_calls.h"

namespace hayloft::runtime {

// Reads answers of several messages, each with a head that names its channel and whom it is for, as gpt-oss writes
// them: "analysis" is reasoning, what is for functions.NAME a call of it, all else is for the reader.
class ChannelReader : public AnswerReader {
 public:
  explicit ChannelReader(const AnswerForm& form) : form_(form), early_(form.tools) {}
  std::vector<AnswerPart> push(const TextRun& run) override;
  std::vector<AnswerPart> finish() override;
  bool reasoning() const override { return reasoning_; }
  bool heads() const override;

 private:
  void begin_message();
  void end_message(std::vector<AnswerPart>& parts);
  void end_call(const std::string& arguments, std::vector<AnswerPart>& parts) const;

  const AnswerForm& form_;
  bool in_head_ = true;
  bool named_ = false;  // the head has begun by a special token
  std::string head_;
  std::string called_;      // the function that the message is for
  bool reasoning_ = false;  // what the message holds
  std::string arguments_;
  EarlyCalls early_;  // of the arguments
};

}  // namespace hayloft::runtime
