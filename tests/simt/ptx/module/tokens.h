#pragma once

#include <string>
#include <string_view>

// The words of a PTX file.
namespace hayloft::simt::ptx {

// A word is a run of letters, digits and _ $ % . with "::" inside (opcodes with their modifiers, names, numbers); a
// string keeps its quotes; all else is a word of one character. Comments are skipped. Views the text.
class Tokens {
 public:
  explicit Tokens(std::string_view text, int line = 1) : text_(text), line_(line) { advance(); }

  std::string_view peek() const { return word_; }  // empty at the end
  bool at_end() const { return word_.empty(); }
  int line() const { return word_line_; }       // of the word that peek() shows, from 1
  std::size_t position() const { return at_; }  // behind that word
  std::string_view next();
  bool take(std::string_view word);    // next() if it is this one
  void expect(std::string_view word);  // throws std::runtime_error when it is not
  void skip_braces();                  // from an opening brace past the closing one
  void skip_line();                    // past all words of the line of the word that peek() shows

  // Throws std::runtime_error naming the line of the last word that was taken.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void advance();
  void skip_blanks();

  std::string_view text_;
  std::string_view word_;
  std::size_t at_ = 0;
  int line_;
  int word_line_ = 1;   // of word_
  int taken_line_ = 1;  // of the one before
};

}  // namespace hayloft::simt::ptx
