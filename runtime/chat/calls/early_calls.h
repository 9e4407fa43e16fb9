#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/calls/answer_form.h"

namespace hayloft::runtime {

// Tells calls while they are written: a call begins once it names a tool that was offered and an object of arguments
// has begun, whose text follows as it comes, without the white space between its tokens. What has begun cannot be taken
// back, so it is for calls that a grammar holds; arguments that are no JSON all the same are told to the letter. Not
// thread-safe. The tools outlive it.
class EarlyCalls {
 public:
  explicit EarlyCalls(std::span<const OfferedTool> tools) : tools_(tools) {}

  // Takes what comes for the arguments of this tool.
  void expect(std::string_view name);

  // Reads on in what has come of the text of one or several calls so far, given from its beginning each time.
  void read(std::string_view text, std::vector<AnswerPart>& parts);
  // The text is whole. Where a call has begun, what belongs to none is told as text; otherwise nothing is.
  void finish(std::string_view text, std::vector<AnswerPart>& parts);
  bool begun() const { return begun_; }

 private:
  // Parameters are those of Qwen's <function=NAME>; behind: an object of a call waits for its end.
  enum class Phase : std::uint8_t { head, arguments, parameters, behind, other };
  bool head(std::string_view text, std::vector<AnswerPart>& parts);  // each returns whether there is more to do
  bool arguments(std::string_view text, std::vector<AnswerPart>& parts);
  bool parameters(std::string_view text, std::vector<AnswerPart>& parts);
  bool behind(std::string_view text);
  void begin(const OfferedTool& tool, std::vector<AnswerPart>& parts);

  std::span<const OfferedTool> tools_;
  Phase phase_ = Phase::head;
  bool begun_ = false;
  const OfferedTool* tool_ = nullptr;  // that is called
  bool expected_ = false;              // the tool is known, its arguments have not begun
  bool enclosed_ = false;              // the arguments are part of an object
  std::size_t at_ = 0;                 // so many bytes have been read
  std::size_t depth_ = 0;              // of brackets
  bool quoted_ = false, escaped_ = false;
  bool broken_ = false;     // what has come of the arguments is no JSON
  bool parameter_ = false;  // one has been told
};

}  // namespace hayloft::runtime
