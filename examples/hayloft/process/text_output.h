#pragma once

#include <string>
#include <string_view>

// Writes to what --json takes: a file, or - for standard output.
namespace hayloft::cli {

class TextOutput {
 public:
  explicit TextOutput(std::string place) : place_(std::move(place)) {}  // empty: none asked for

  bool wanted() const { return !place_.empty(); }
  bool to_stdout() const { return place_ == "-"; }

  // Throws Error when the file cannot be written: called before the work, so that hours are not lost to a typing error.
  void check() const;
  // Whole or not at all. Throws Error naming the file.
  void write(std::string_view text) const;

 private:
  std::string place_;
};

// A table that is printed while files are made beside it: when it cannot be printed the work goes on, so that the files
// come to be, and finish() throws what print() would have thrown.
class TableOutput {
 public:
  void use_standard_error() { to_stderr_ = true; }  // when something else takes standard output
  void show(std::string_view text);
  void finish() const;  // once the files are written

 private:
  bool to_stderr_ = false;
  std::string problem_;
};

// Writes text to standard output and flushes it. Throws Error when it is full or closed.
void print(std::string_view text);

// The same for text that a model or a file made: on a terminal its control characters are replaced, elsewhere it is
// written as it is.
void print_foreign(std::string_view text);

}  // namespace hayloft::cli
