#pragma once

#include <string>

namespace hayloft::cli {

// The whole of a text file, or of standard input for "-". `option` is named in what it throws. Ends with Interrupted
// while a pipe or a terminal is waited for.
std::string read_text(const std::string& option, const std::string& path);

// Lines of standard input, without their ends. On a terminal each is asked for by "> " on standard error.
class LineInput {
 public:
  LineInput();

  // False at the end of the input. Ends with Interrupted while a pipe or a terminal is waited for; throws Error when
  // reading fails.
  bool next(std::string& line);

 private:
  bool terminal_;
  std::string ahead_;  // read already, from the next line on
  bool ended_ = false;
};

}  // namespace hayloft::cli
