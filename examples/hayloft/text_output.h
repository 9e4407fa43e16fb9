#pragma once

#include <string>
#include <string_view>

// What --json takes: a file, or - for standard output.
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

// Writes text to standard output and flushes it. Throws Error when it is full or closed.
void print(std::string_view text);

}  // namespace hayloft::cli
