#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/chat/calls/answer_part.h"

namespace hayloft::runtime::serve {

// Finds the first of several texts in a text that comes in pieces, some of which are not to be shown. Not thread-safe.
class StopStrings {
 public:
  // Empty ones are left out. keeps_runs: what is let go is kept for runs().
  explicit StopStrings(std::vector<std::string> stops, bool keeps_runs = false);

  // Returns what of the text so far can be shown: nothing that may turn out to be the beginning of a stop string.
  std::string push(std::string_view text) { return push(text, false); }
  // The same of a piece that stop strings may name, but that is never shown.
  std::string push_hidden(std::string_view text) { return push(text, true); }
  bool found() const { return found_; }                // the text ends before it; push() gives nothing from then on
  const std::string& which() const { return which_; }  // the one that was found
  std::string rest();                                  // at the end: what was held back
  // Returns what has been let go since the last call, with what is never shown, as special runs.
  std::vector<TextRun> runs() { return std::exchange(runs_, {}); }

 private:
  std::string push(std::string_view text, bool hidden);
  std::string take(std::size_t bytes);  // off the beginning of what is held, what of it is shown

  std::vector<std::string> stops_;
  std::string held_;
  std::vector<bool> hidden_;  // of each byte held
  bool found_ = false;
  std::string which_;
  bool keeps_runs_;
  std::vector<TextRun> runs_;
};

}  // namespace hayloft::runtime::serve
