#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/chat/calls/answer_part.h"

namespace hayloft::runtime::serve {

// Finds the first of several texts in a text that comes in pieces, some of which are not to be shown. A text is found
// in what is shown and in special tokens, as they are written; in heads of messages, which nobody sees, only together
// with a special token. Not thread-safe.
class StopStrings {
 public:
  // Empty ones are left out. keeps_runs: what is let go is kept for runs().
  explicit StopStrings(std::vector<std::string> stops, bool keeps_runs = false);

  // Returns what of the text so far can be shown: nothing that may turn out to be the beginning of a stop string.
  std::string push(std::string_view text) { return push(text, Kind::shown, Kind::shown); }
  // The same of a special token: stop strings may name it, but it is never shown. whole: a part of it is not enough.
  std::string push_hidden(std::string_view token, bool whole = false) {
    return push(token, Kind::token, whole ? Kind::whole_rest : Kind::token_rest);
  }
  // The same of a text that says whom a message is for and the like: told as a run, for it to be read. It counts as
  // shown in what is returned.
  std::string push_head(std::string_view text) { return push(text, Kind::head, Kind::head); }
  bool found() const { return found_; }                // the text ends before it; push() gives nothing from then on
  const std::string& which() const { return which_; }  // the one that was found
  std::string rest();                                  // at the end: what was held back
  // Returns what has been let go since the last call, with what is never shown, as special runs.
  std::vector<TextRun> runs() { return std::exchange(runs_, {}); }

 private:
  // Says what a byte is of; a special token has its first byte apart.
  enum class Kind : std::uint8_t { shown, token, token_rest, whole_rest, head };
  static bool rest_of_token(Kind kind) { return kind == Kind::token_rest || kind == Kind::whole_rest; }
  static bool special(Kind kind) { return kind == Kind::token || rest_of_token(kind); }
  std::string push(std::string_view text, Kind first, Kind others);
  std::size_t find(std::string_view stop) const;  // in what is held
  std::string take(std::size_t bytes);            // off the beginning of what is held, what of it is shown

  std::vector<std::string> stops_;
  std::string held_;
  std::vector<Kind> kinds_;  // of each byte held
  bool found_ = false;
  std::string which_;
  bool keeps_runs_;
  std::vector<TextRun> runs_;
};

}  // namespace hayloft::runtime::serve
