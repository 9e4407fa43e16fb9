#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace hayloft::cli {

// Returns the whole of a text file, or of standard input for "-", on the terms of offload::read_text_file(). `option`
// is named in what it throws, as it does on a line that a terminal may have cut. Ends with Interrupted while a pipe or
// a terminal is waited for.
std::string read_text(const std::string& option, const std::string& path);

// Says whether a text has nothing but spaces, tabs and line ends, so that there is nothing to answer.
bool is_blank(const std::string& text);

// Throws Error naming the option on a text of the command line (of type TEXT) that is not UTF-8.
void check_typed_texts(const CLI::App& command);

// Lines of standard input, without their ends, be these LF or CR LF, and without a byte order mark. On a terminal each
// is asked for by "> " on standard error.
class LineInput {
 public:
  LineInput();

  // False at the end of the input. Ends with Interrupted while a pipe or a terminal is waited for; throws Error when
  // reading fails and on a line that is no text, or too long for one. A line that is typed is passed over then, with a
  // message, and so is one that the terminal may have cut.
  bool next(std::string& line);

 private:
  bool take(std::string& line);         // the next line as it is
  void check(std::string& line) const;  // throws Error
  std::string name() const;             // of the line that was taken

  bool terminal_;
  std::string ahead_;  // read already, from the next line on
  bool cut_ = false;   // what was typed of the line at once is as much as a terminal holds
  bool ended_ = false;
  std::size_t number_ = 0;  // of lines so far
};

}  // namespace hayloft::cli
