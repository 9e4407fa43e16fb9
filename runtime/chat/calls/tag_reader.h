#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/chat/calls/early_calls.h"

namespace hayloft::runtime {

// Reads answers with tags around reasoning and calls: <think>, <tool_call>, [TOOL_CALLS], <|python_tag|>, and Llama's
// objects without any. White space between text and a call goes.
class TagReader : public AnswerReader {
 public:
  explicit TagReader(const AnswerForm& form);
  std::vector<AnswerPart> push(const TextRun& run) override;
  std::vector<AnswerPart> finish() override;
  bool ended() const override { return form_.one_call && call_over_; }
  bool reasoning() const override { return mode_ == Mode::thought; }

 private:
  enum class Mode : std::uint8_t { start, thought, text, tagged, mistral, bare };
  using Parts = std::vector<AnswerPart>;
  Parts read(const TextRun& run);
  void keep_first_call(Parts& parts);
  void go_on(Parts& parts, bool end);
  bool start(Parts& parts, bool end);  // each returns whether there is more to do
  bool thought(Parts& parts, bool end);
  bool text(Parts& parts, bool end);
  bool tagged(Parts& parts, bool end);
  bool bare(Parts& parts, bool end);
  void mistral(Parts& parts);
  void begin_call(Mode mode, std::string_view opened, std::size_t marker);
  void end_call(Parts& parts, const std::optional<std::vector<ToolCall>>& calls, std::string_view text);
  void tell_early(Parts& parts, std::string_view call);
  bool end_early(Parts& parts, std::string_view call);

  const AnswerForm& form_;
  Mode mode_ = Mode::start;
  bool thought_over_ = false;  // white space behind it goes
  bool reasoned_ = false;      // reasoning has been told, from whose beginning white space goes
  bool called_ = false;        // a call was the last part
  bool begun_ = false;         // the first call has been told, or some of it
  bool call_over_ = false;     // and it has ended
  std::string held_;           // not told yet
  std::string gap_;            // white space before a call, which is told where there was none
  std::string opened_;         // the marker that the call began with, where it is no special token
  std::string shown_;          // of a call's text, what a reader would see of it
  EarlyCalls early_;           // of the call's text
};

}  // namespace hayloft::runtime
