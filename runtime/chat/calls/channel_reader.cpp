#include "runtime/chat/calls/channel_reader.h"

#include <utility>

#include "runtime/chat/calls/parse_calls.h"

namespace hayloft::runtime {
namespace {

using PartKind = AnswerPart::Kind;

// Returns whether a text may begin the head of an answer whose channel has not been named: whom it is for comes first,
// or nothing.
bool begins_head(std::string_view text) {
  constexpr std::string_view to = " to=";
  return text.substr(0, to.size()) == to.substr(0, text.size());
}

}  // namespace

bool ChannelReader::heads() const {
  return in_head_ && (named_ || begins_head(head_));
}

std::vector<AnswerPart> ChannelReader::push(const TextRun& run) {
  std::vector<AnswerPart> parts;
  if (!run.special) {
    if (in_head_) {
      head_ += run.text;
    } else if (!called_.empty()) {
      arguments_ += run.text;
      if (form_.early) early_.read(arguments_, parts);
    } else {
      add_part(parts, reasoning_ ? PartKind::reasoning : PartKind::text, run.text);
    }
    return parts;
  }
  if (run.text == "<|message|>") {
    if (in_head_) begin_message();
  } else if (run.text == "<|start|>" || run.text == "<|end|>" || run.text == "<|return|>" || run.text == "<|call|>") {
    end_message(parts);
    in_head_ = true;
    named_ = true;
  } else if (run.text == "<|channel|>") {
    if (!in_head_) end_message(parts);
    in_head_ = true;
    named_ = true;
    head_ += " ";
  } else if (in_head_) {
    head_ += " ";  // <|constrain|>
  }
  return parts;
}

void ChannelReader::begin_message() {
  constexpr std::string_view to = "to=functions.";
  const std::string head = std::exchange(head_, {});
  in_head_ = false;
  const std::size_t at = head.find(to);
  if (at != std::string::npos) {
    const std::size_t begin = at + to.size();
    called_ = head.substr(begin, head.find_first_of(" \t\r\n", begin) - begin);
    early_ = EarlyCalls(form_.tools);
    early_.expect(called_);
  }
  reasoning_ = called_.empty() && head.find("analysis") != std::string::npos;
}

void ChannelReader::end_call(const std::string& arguments, std::vector<AnswerPart>& parts) const {
  if (const std::optional<ToolCall> call = parse_arguments(called_, arguments, form_.tools)) {
    add_calls(parts, {*call});
  } else {
    add_part(parts, PartKind::text, arguments);
  }
}

void ChannelReader::end_message(std::vector<AnswerPart>& parts) {
  if (in_head_ && !heads()) add_part(parts, PartKind::text, head_);  // no head at all; one that is cut off says nothing
  if (!called_.empty()) {
    const std::string arguments = std::exchange(arguments_, {});
    if (form_.early) early_.finish(arguments, parts);
    if (!form_.early || !early_.begun()) end_call(arguments, parts);
  }
  called_.clear();
  head_.clear();
  reasoning_ = false;
}

std::vector<AnswerPart> ChannelReader::finish() {
  std::vector<AnswerPart> parts;
  end_message(parts);
  return parts;
}

}  // namespace hayloft::runtime
