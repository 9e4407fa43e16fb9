#include "runtime/chat/calls/early_calls.h"

#include <algorithm>

#include "offload/text/ordered_json.h"
#include "runtime/chat/calls/parse_calls.h"

namespace hayloft::runtime {
namespace {

using EarlyKind = AnswerPart::Kind;

constexpr std::string_view kBlank = " \t\r\n";
constexpr std::size_t kMostDepth = 100;  // as of a call that is read when it is whole

// Reads what has come of a head, piece by piece; `partial` where it may yet become one.
struct HeadCursor {
  std::string_view text;
  std::size_t at = 0;
  bool partial = false;

  std::string_view rest() const { return text.substr(at); }
  void skip(std::string_view any) { at = std::min(text.find_first_not_of(any, at), text.size()); }
  bool take(std::string_view wanted) {
    skip(kBlank);
    if (rest().starts_with(wanted)) {
      at += wanted.size();
      return true;
    }
    partial = wanted.starts_with(rest());
    return false;
  }
  // Returns the text before one of these; empty where none has come.
  std::string_view until(std::string_view any) {
    const std::size_t end = text.find_first_of(any, at);
    partial = end == std::string_view::npos;
    if (partial) return {};
    const std::string_view before = text.substr(at, end - at);
    at = end;
    return before;
  }
};

// {"name": "NAME", "arguments": {
std::string_view object_head(HeadCursor& cursor) {
  if (!cursor.take("{") || !cursor.take("\"name\"") || !cursor.take(":") || !cursor.take("\"")) return {};
  const std::string_view name = cursor.until("\"\\");
  if (name.empty() || !cursor.take("\"") || !cursor.take(",")) return {};
  if (!cursor.take("\"arguments\"")) {
    if (cursor.partial) return {};
    if (!cursor.take("\"parameters\"")) return {};
  }
  return cursor.take(":") && cursor.take("{") ? name : std::string_view();
}

// NAME[ARGS]{
std::string_view mistral_head(HeadCursor& cursor) {
  const std::string_view name = trimmed(cursor.until("[{"));
  if (cursor.partial) return {};
  if (cursor.take("[CALL_ID]")) {
    cursor.until("[{");
    if (cursor.partial) return {};
  } else if (cursor.partial) {
    return {};
  }
  if (!cursor.take("[ARGS]") && cursor.partial) return {};
  return cursor.take("{") ? name : std::string_view();
}

bool may_be_json(char c) {
  return c == '"' || std::string_view("{}[],:+-.").find(c) != std::string_view::npos || (c >= '0' && c <= '9') ||
         (c >= 'a' && c <= 'z') || c == 'E';
}

}  // namespace

void EarlyCalls::expect(std::string_view name) {
  const auto found = std::ranges::find(tools_, name, &OfferedTool::name);
  expected_ = found != tools_.end();
  if (expected_) {
    tool_ = &*found;
  } else {
    phase_ = Phase::other;
  }
}

void EarlyCalls::begin(const OfferedTool& tool, std::vector<AnswerPart>& parts) {
  tool_ = &tool;
  begun_ = true;
  parts.push_back({EarlyKind::call, {}, {tool.name, {}}});
}

void EarlyCalls::read(std::string_view text, std::vector<AnswerPart>& parts) {
  for (bool more = true; more;) {
    switch (phase_) {
      case Phase::head:
        more = head(text, parts);
        break;
      case Phase::arguments:
        more = arguments(text, parts);
        break;
      case Phase::parameters:
        more = parameters(text, parts);
        break;
      case Phase::behind:
        more = behind(text);
        break;
      case Phase::other:
        more = false;
        break;
    }
  }
}

bool EarlyCalls::head(std::string_view text, std::vector<AnswerPart>& parts) {
  HeadCursor cursor{text, at_};
  std::string_view name;
  bool tags = false;
  cursor.skip(kBlank);
  enclosed_ = false;
  if (expected_) {
    name = cursor.take("{") ? std::string_view(tool_->name) : std::string_view();
  } else {
    const bool marked = cursor.take("[TOOL_CALLS]");
    if (!marked && cursor.partial) return false;
    cursor.skip(" \t\r\n[],;");
    if (cursor.rest().empty()) return false;
    if (cursor.rest().front() == '{') {
      enclosed_ = true;
      name = object_head(cursor);
    } else if (cursor.take("<function=")) {
      tags = true;
      name = trimmed(cursor.until(">"));
    } else if (!cursor.partial) {
      name = mistral_head(cursor);
    }
  }
  if (name.empty() && cursor.partial) return false;
  const auto found = std::ranges::find(tools_, name, &OfferedTool::name);
  if (found == tools_.end()) {
    phase_ = Phase::other;
    return false;
  }
  begin(*found, parts);
  expected_ = broken_ = parameter_ = false;
  phase_ = tags ? Phase::parameters : Phase::arguments;
  at_ = tags ? cursor.at + 1 : cursor.at - 1;  // behind '>', before '{'
  return true;
}

bool EarlyCalls::arguments(std::string_view text, std::vector<AnswerPart>& parts) {
  std::string told;
  bool whole = false;
  for (; at_ < text.size() && !whole; ++at_) {
    const char c = text[at_];
    if (!broken_ && quoted_) {
      broken_ = static_cast<unsigned char>(c) < 0x20;
      if (!escaped_ && c == '"') quoted_ = false;
      escaped_ = !escaped_ && c == '\\';
    } else if (!broken_) {
      if (kBlank.find(c) != std::string_view::npos) continue;
      quoted_ = c == '"';
      if (c == '{' || c == '[') ++depth_;
      if (c == '}' || c == ']') whole = --depth_ == 0;
      broken_ = !may_be_json(c) || depth_ > kMostDepth;
    }
    told += c;
  }
  add_part(parts, EarlyKind::arguments, told);
  if (whole) phase_ = enclosed_ ? Phase::behind : Phase::head;
  return whole;
}

bool EarlyCalls::parameters(std::string_view text, std::vector<AnswerPart>& parts) {
  std::string_view rest = text.substr(at_);
  std::string told;
  while (const std::optional<CallParameter> parameter = take_parameter(rest, *tool_)) {
    told += (parameter_ ? "," : "{") + text_of_json(parameter->key) + ":" + text_of_json(parameter->value);
    parameter_ = true;
  }
  at_ = text.size() - rest.size();
  HeadCursor cursor{text, at_};
  const bool whole = cursor.take("</function>");
  if (whole) {
    told += parameter_ ? "}" : "{}";
    at_ = cursor.at;
    phase_ = Phase::head;
  }
  add_part(parts, EarlyKind::arguments, told);
  return whole;
}

// Passes over what else the object has, such as an id.
bool EarlyCalls::behind(std::string_view text) {
  HeadCursor cursor{text, at_};
  bool whole = cursor.take("}");
  if (!whole && !cursor.rest().starts_with(',')) {
    if (!cursor.partial) phase_ = Phase::other;
    return false;
  }
  if (!whole) {
    const std::size_t size = end_of_json("{" + std::string(cursor.rest()));
    whole = size != std::string_view::npos;
    if (whole) cursor.at += size - 1;
  }
  if (!whole) return false;
  at_ = cursor.at;
  phase_ = Phase::head;
  return true;
}

void EarlyCalls::finish(std::string_view text, std::vector<AnswerPart>& parts) {
  read(text, parts);
  if (!begun_) return;
  const std::string_view rest = text.substr(std::min(at_, text.size()));
  if (rest.find_first_not_of(" \t\r\n[]},;") == std::string_view::npos) return;
  add_part(parts, EarlyKind::text, rest);
}

}  // namespace hayloft::runtime
