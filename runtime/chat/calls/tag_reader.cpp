#include "runtime/chat/calls/tag_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/chat/calls/parse_calls.h"

namespace hayloft::runtime {
namespace {

using PartKind = AnswerPart::Kind;

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kMistral = "[TOOL_CALLS]", kPython = "<|python_tag|>";

// The bytes at the end of the text that may be the beginning of `marker`.
std::size_t begun(std::string_view text, std::string_view marker) {
  for (std::size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (marker.starts_with(text.substr(text.size() - n))) return n;
  }
  return 0;
}

std::size_t spaces_at_end(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return last == std::string_view::npos ? text.size() : text.size() - last - 1;
}

// An object whose first key is none of a call's.
bool no_call(std::string_view text) {
  const std::string_view inside = trimmed(text.substr(1));
  if (inside.empty()) return false;
  if (inside.front() != '"') return true;
  const std::size_t end = inside.find('"', 1);
  constexpr std::array<std::string_view, 6> keys{"name", "type", "function", "parameters", "arguments", "id"};
  const std::string_view key = inside.substr(1, end == std::string_view::npos ? end : end - 1);
  return std::ranges::none_of(
      keys, [&](std::string_view each) { return end == std::string_view::npos ? each.starts_with(key) : each == key; });
}

}  // namespace

TagReader::TagReader(const AnswerForm& form)
    : form_(form), mode_(form.in_thought ? Mode::thought : Mode::start), early_(form.tools) {}

std::vector<AnswerPart> TagReader::push(const TextRun& run) {
  if (ended()) return {};
  Parts parts = read(run);
  keep_first_call(parts);
  return parts;
}

// Nothing but its arguments is told behind it.
void TagReader::keep_first_call(Parts& parts) {
  if (!form_.one_call) return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (begun_ && parts[i].kind != PartKind::arguments) {
      call_over_ = true;
      return parts.resize(i);
    }
    begun_ = begun_ || parts[i].kind == PartKind::call;
  }
}

TagReader::Parts TagReader::read(const TextRun& run) {
  Parts parts;
  const bool in_call = mode_ == Mode::tagged || mode_ == Mode::mistral || mode_ == Mode::bare;
  if (!run.special) {
    held_ += run.text;
    if (in_call) shown_ += run.text;
    go_on(parts, false);
    return parts;
  }
  const bool ends_call = mode_ == Mode::tagged && run.text == kCallEnd;
  const bool ends_thought = mode_ == Mode::thought && run.text == kThinkEnd;
  if (in_call && !ends_call) {
    held_ += run.text;
  } else if (ends_call || ends_thought) {
    held_ += run.text;
    go_on(parts, false);
  } else if (mode_ != Mode::thought) {
    if (form_.thinks && mode_ == Mode::start && run.text == kThink) {
      mode_ = Mode::thought;
      held_.clear();
    } else if (!form_.tools.empty()) {
      const Mode begins = form_.tags && run.text == kCall         ? Mode::tagged
                          : form_.mistral && run.text == kMistral ? Mode::mistral
                          : form_.llama && run.text == kPython    ? Mode::bare
                                                                  : Mode::text;
      if (begins == Mode::text) return parts;
      gap_ += held_.substr(held_.size() - spaces_at_end(held_));
      held_.resize(held_.size() - spaces_at_end(held_));
      if (!held_.empty()) called_ = false;
      add_part(parts, PartKind::text, held_);
      begin_call(begins, {}, held_.size());
    }
  }
  return parts;
}

std::vector<AnswerPart> TagReader::finish() {
  if (ended()) return {};
  Parts parts;
  go_on(parts, true);
  if (!called_) add_part(parts, PartKind::text, gap_);
  keep_first_call(parts);
  return parts;
}

void TagReader::go_on(Parts& parts, bool end) {
  for (bool more = true; more;) {
    switch (mode_) {
      case Mode::start:
        more = start(parts, end);
        break;
      case Mode::thought:
        more = thought(parts, end);
        break;
      case Mode::text:
        more = text(parts, end);
        break;
      case Mode::tagged:
        more = tagged(parts, end);
        break;
      case Mode::bare:
        more = bare(parts, end);
        break;
      case Mode::mistral:
        end ? mistral(parts) : tell_early(parts, held_);
        more = false;
        break;
    }
  }
}

bool TagReader::start(Parts&, bool end) {
  const std::size_t first = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
  const std::string_view rest = std::string_view(held_).substr(first);
  if (rest.empty() && !end) return false;
  const bool may_think = form_.thinks && !thought_over_;
  if (may_think && rest.starts_with(kThink)) {
    held_.erase(0, first + kThink.size());
    mode_ = Mode::thought;
    return true;
  }
  if (may_think && !end && kThink.starts_with(rest)) return false;
  if (thought_over_) held_.erase(0, first);
  if (form_.llama && !form_.tools.empty() && held_.find('{') == (thought_over_ ? 0 : first)) {
    gap_ = held_.substr(0, held_.find('{'));
    held_.erase(0, gap_.size());
    shown_ = held_;
    opened_.clear();
    mode_ = Mode::bare;
    early_ = EarlyCalls(form_.tools);
    return true;
  }
  mode_ = Mode::text;
  return true;
}

bool TagReader::thought(Parts& parts, bool end) {
  const std::size_t at = held_.find(kThinkEnd);
  if (at != std::string::npos) {
    std::string_view before = std::string_view(held_).substr(0, at);
    before.remove_suffix(spaces_at_end(before));
    if (!reasoned_) before = trimmed(before);
    add_part(parts, PartKind::reasoning, before);
    held_.erase(0, at + kThinkEnd.size());
    thought_over_ = true;
    mode_ = Mode::start;
    return true;
  }
  const std::size_t first = reasoned_ ? 0 : std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
  held_.erase(0, first);
  std::size_t kept = end ? 0 : begun(held_, kThinkEnd);
  kept += spaces_at_end(std::string_view(held_).substr(0, held_.size() - kept));
  reasoned_ = reasoned_ || held_.size() > kept;
  add_part(parts, PartKind::reasoning, std::string_view(held_).substr(0, held_.size() - kept));
  held_.erase(0, held_.size() - kept);
  if (end) held_.clear();
  return false;
}

bool TagReader::text(Parts& parts, bool end) {
  if (form_.tools.empty() || !form_.calls()) {
    add_part(parts, PartKind::text, std::exchange(held_, {}));
    return false;
  }
  held_ = std::exchange(gap_, {}) + held_;
  const std::string_view marker = form_.tags ? kCall : form_.mistral ? kMistral : kPython;
  const std::size_t at = held_.find(marker);
  const std::size_t kept = at != std::string::npos || end ? 0 : begun(held_, marker);
  std::string text = held_.substr(0, at == std::string::npos ? held_.size() - kept : at);
  held_.erase(0, text.size());
  gap_ = text.substr(text.size() - spaces_at_end(text));
  text.resize(text.size() - gap_.size());
  if (!text.empty()) called_ = false;
  add_part(parts, PartKind::text, text);
  if (at == std::string::npos) return false;
  begin_call(form_.tags ? Mode::tagged : form_.mistral ? Mode::mistral : Mode::bare, marker, marker.size());
  return true;
}

// The call's own text follows `marker` bytes of what is held.
void TagReader::begin_call(Mode mode, std::string_view opened, std::size_t marker) {
  opened_ = opened;
  held_.erase(0, marker);
  shown_ = held_;
  mode_ = mode;
  early_ = EarlyCalls(form_.tools);
}

void TagReader::tell_early(Parts& parts, std::string_view call) {
  if (form_.early) early_.read(call, parts);
}

// Returns whether the call has been told.
bool TagReader::end_early(Parts& parts, std::string_view call) {
  if (!form_.early) return false;
  early_.finish(call, parts);
  if (!early_.begun()) return false;
  mode_ = Mode::text;
  call_over_ = true;
  called_ = parts.empty() || parts.back().kind != PartKind::text;
  gap_.clear();
  return true;
}

// Tells `text` where there is no call, and reads on for others.
void TagReader::end_call(Parts& parts, const std::optional<std::vector<ToolCall>>& calls, std::string_view text) {
  mode_ = Mode::text;
  called_ = calls.has_value();
  call_over_ = call_over_ || called_;
  if (calls) {
    gap_.clear();
    return add_calls(parts, *calls);
  }
  add_part(parts, PartKind::text, std::exchange(gap_, {}) + std::exchange(opened_, {}) + std::string(text));
}

bool TagReader::tagged(Parts& parts, bool end) {
  const std::string_view body(held_);
  std::size_t at = end_of_tagged_call(body);
  if (at == std::string_view::npos && end && !early_.begun()) at = body.find(kCallEnd);  // of a call that is broken
  if (at == std::string_view::npos && !end) {
    tell_early(parts, body.substr(0, body.size() - begun(body, kCallEnd)));
    return false;
  }
  const std::size_t size = std::min(at, body.size());
  const std::string call(body.substr(0, size));
  held_.erase(0, at == std::string_view::npos ? size : size + kCallEnd.size());
  if (end_early(parts, call)) return true;
  const std::string closed = at == std::string_view::npos ? "" : std::string(kCallEnd);
  end_call(parts, parse_tagged_call(call, form_.tools), call + (opened_.empty() ? "" : closed));
  return true;
}

void TagReader::mistral(Parts& parts) {
  if (!end_early(parts, held_)) end_call(parts, parse_mistral_calls(held_, form_.tools), shown_);
  held_.clear();
}

bool TagReader::bare(Parts& parts, bool end) {
  const std::string_view call = trimmed(held_);
  const bool hopeless = !call.empty() && (call.front() != '{' || no_call(call));
  if (!end && !hopeless) {
    tell_early(parts, held_);
    return false;
  }
  if (!end_early(parts, held_)) end_call(parts, hopeless ? std::nullopt : parse_bare_calls(held_, form_.tools), shown_);
  held_.clear();
  return false;
}

}  // namespace hayloft::runtime
