#include "tests/simt/ptx/module/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace hayloft::simt::ptx {
namespace {

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
}

}  // namespace

void Tokens::skip_blanks() {
  while (at_ < text_.size()) {
    if (text_[at_] == '\n') ++line_;
    if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else {
      return;
    }
  }
}

void Tokens::advance() {
  taken_line_ = word_line_;
  skip_blanks();
  word_line_ = line_;
  const std::size_t begin = at_;
  if (at_ < text_.size() && text_[at_] == '"') {
    at_ = std::min(text_.find('"', at_ + 1), text_.size() - 1) + 1;
  } else if (at_ < text_.size() && !in_word(text_[at_])) {
    ++at_;
  } else {
    while (at_ < text_.size()) {
      if (text_.substr(at_, 2) == "::") {
        at_ += 2;
      } else if (in_word(text_[at_])) {
        ++at_;
      } else {
        break;
      }
    }
  }
  word_ = text_.substr(begin, at_ - begin);
}

std::string_view Tokens::next() {
  const std::string_view word = word_;
  if (word.empty()) fail("the file ends in the middle of a statement");
  advance();
  return word;
}

bool Tokens::take(std::string_view word) {
  if (word_ != word) return false;
  advance();
  return true;
}

void Tokens::expect(std::string_view word) {
  if (take(word)) return;
  taken_line_ = word_line_;
  fail(fmt::format("'{}' where '{}' was expected", word_, word));
}

void Tokens::skip_braces() {
  int depth = 0;
  do {
    const std::string_view word = next();
    if (word == "{") ++depth;
    if (word == "}") --depth;
  } while (depth > 0);
}

void Tokens::skip_line() {
  const int line = word_line_;
  while (!at_end() && word_line_ == line) advance();
}

void Tokens::fail(const std::string& message) const {
  throw std::runtime_error(fmt::format("line {}: {}", taken_line_, message));
}

}  // namespace hayloft::simt::ptx
