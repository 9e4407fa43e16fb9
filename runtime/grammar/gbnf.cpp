#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "offload/error.h"
#include "offload/text/visible.h"
#include "runtime/grammar/builder.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime::grammar {
namespace {

constexpr int kMostRepeats = 2000;
constexpr int kMostGroups = 100;  // within one another

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

bool is_surrogate(std::uint32_t code) {  // half of a character in UTF-16
  return code >= 0xD800 && code <= 0xDFFF;
}

constexpr const char* kSurrogate = "a lone surrogate is no character: write the whole one, as \\U0001F600";

class GbnfParser {
 public:
  GbnfParser(std::string_view text, const Tokenizer* tokenizer) : text_(text), tokenizer_(tokenizer) {}

  Grammar run() {
    for (skip(true); at_ < text_.size(); skip(true)) {
      const std::string name = read_name();
      skip(false);
      if (!take("::=")) refuse("\"::=\" is wanted behind the name of a rule");
      if (!defined_.insert(name).second) refuse("the rule " + name + " is defined twice");
      skip(true);
      alternatives(builder_.rule(name), 0);
    }
    return builder_.finish("root");
  }

 private:
  using Sequence = Builder::Sequence;

  [[noreturn]] void refuse(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    fail("line {} of the grammar: {}", line, visible(what, Lines::joined));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view wanted) {
    if (!text_.substr(at_).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }

  // White space and comments; line breaks too, where they mean nothing.
  void skip(bool lines) {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        if (at_ == text_.size()) return;
      }
      const char c = text_[at_];
      if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) return;
    }
  }

  std::string read_name() {
    const std::size_t begin = at_;
    while (is_name(peek())) ++at_;
    if (at_ == begin) refuse("the name of a rule is wanted");
    return std::string(text_.substr(begin, at_ - begin));
  }

  // A character of a text or a class, by its code point.
  std::uint32_t character() {
    if (at_ >= text_.size()) refuse("ends inside of quotes or brackets");
    if (take("\\")) return escape();
    const auto lead = static_cast<unsigned char>(text_[at_]);
    const int size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (at_ + static_cast<std::size_t>(size) > text_.size()) refuse("is not UTF-8");
    std::uint32_t code = size == 1 ? lead : lead & (0xFFU >> (size + 1));
    for (int i = 1; i < size; ++i) {
      code = (code << 6) | (static_cast<unsigned char>(text_[at_ + static_cast<std::size_t>(i)]) & 0x3FU);
    }
    at_ += static_cast<std::size_t>(size);
    if (code > 0x10FFFF || is_surrogate(code)) refuse("is not UTF-8");
    return code;
  }

  std::uint32_t escape() {
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return static_cast<unsigned char>(c);
      default:
        refuse("an unknown escape behind a backslash");
    }
  }

  std::uint32_t hex(int digits) {
    std::uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) refuse("hexadecimal digits are wanted");
      code = code * 16 + static_cast<std::uint32_t>(digit);
      ++at_;
    }
    if (code > 0x10FFFF) refuse("is no character");
    return code;
  }

  void alternatives(std::int32_t rule, int depth) {
    do {
      skip(true);  // behind ::=, ( and | a line may end
      builder_.add(rule, sequence(depth));
      skip(depth > 0);
    } while (next_alternative(depth));
  }

  // One may stand on the next line.
  bool next_alternative(int depth) {
    if (take("|")) return true;
    if (depth > 0) return false;
    const std::size_t before = at_;
    skip(true);
    if (take("|")) return true;
    at_ = before;
    if (at_ < text_.size() && peek() != '\n' && peek() != '\r') refuse("something that no rule has");
    return false;
  }

  Sequence sequence(int depth) {
    Sequence all;
    for (;;) {
      skip(depth > 0);
      std::optional<Sequence> next = element(depth);
      if (!next) return all;
      repeated(*next);
      all.insert(all.end(), next->begin(), next->end());
    }
  }

  std::optional<Sequence> element(int depth) {
    if (take("\"")) return literal();
    if (take("[")) return Sequence{character_class()};
    if (take(".")) return Sequence{builder_.characters({}, true)};
    if (take("(")) {
      if (depth >= kMostGroups) refuse("groups are nested too deep");
      const std::int32_t group = builder_.new_rule();
      alternatives(group, depth + 1);
      skip(true);
      if (!take(")")) refuse("\")\" is wanted");
      return Sequence{builder_.call(group)};
    }
    if (peek() == '<' || peek() == '!') return token();
    if (is_name(peek())) return Sequence{builder_.call(builder_.rule(read_name()))};
    return std::nullopt;
  }

  // <TEXT> or <[ID]>
  Sequence token() {
    const bool others = take("!");
    if (peek() != '<') refuse("a token is wanted behind \"!\", as in !<think> or !<[5]>");
    const std::size_t end = text_.find_first_of(">\n", at_);
    if (end == std::string_view::npos || text_[end] == '\n') refuse("a token ends with \">\", as in <think> or <[5]>");
    if (tokenizer_ == nullptr) refuse("tokens are there where a model's tokenizer is known");
    const std::string_view text = text_.substr(at_, end + 1 - at_);
    std::int32_t id = -1;
    if (text.starts_with("<[")) {
      const auto [last, error] = std::from_chars(text.data() + 2, text.data() + text.size(), id);
      if (error != std::errc() || std::string_view(last, 1) != "]" || last + 2 != text.data() + text.size() || id < 0 ||
          id >= tokenizer_->vocab_size()) {
        refuse(fmt::format("{} is no token from 0 to {}", text, tokenizer_->vocab_size() - 1));
      }
    } else {
      const std::vector<std::int32_t> tokens = tokenizer_->encode(text, false);
      if (tokens.size() != 1) refuse(fmt::format("{} is not one token of this model, but {}", text, tokens.size()));
      id = tokens.front();
    }
    at_ = end + 1;
    return builder_.token(id, others);
  }

  Sequence literal() {
    Sequence all;
    while (!take("\"")) {
      const std::uint32_t code = character();
      if (is_surrogate(code)) refuse(kSurrogate);
      if (code < 0x80) {
        const Sequence one = builder_.text(std::string(1, static_cast<char>(code)));
        all.insert(all.end(), one.begin(), one.end());
      } else {
        all.push_back(builder_.characters({{code, code}}, false));
      }
    }
    return all;
  }

  Symbol character_class() {
    const bool others = take("^");
    std::vector<CodeRange> ranges;
    while (!take("]")) {
      const std::uint32_t first = character();
      std::uint32_t last = first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character();
      }
      if (!others && is_surrogate(first) && is_surrogate(last)) refuse(kSurrogate);
      if (last < first) refuse("a range of characters that ends before it begins");
      ranges.push_back({first, last});
    }
    if (ranges.empty() && !others) refuse("a class without characters");
    return builder_.characters(std::move(ranges), others);
  }

  void repeated(Sequence& sequence) {
    int least = 0, most = -1;
    for (int times = 0;; ++times) {
      if (take("*")) {
        least = 0, most = -1;
      } else if (take("+")) {
        least = 1, most = -1;
      } else if (take("?")) {
        least = 0, most = 1;
      } else if (take("{")) {
        least = number();
        most = least;
        skip(false);
        if (take(",")) {
          skip(false);
          most = peek() == '}' ? -1 : number();
        }
        skip(false);
        if (!take("}")) refuse("\"}\" is wanted");
        if (most >= 0 && most < least) refuse("a repetition that ends before it begins");
      } else {
        return;
      }
      sequence = {builder_.repeat(sequence, least, most)};
    }
  }

  int number() {
    skip(false);
    int value = 0;
    const std::size_t begin = at_;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + (peek() - '0');
      if (value > kMostRepeats) refuse(fmt::format("something is repeated more than {} times", kMostRepeats));
    }
    if (at_ == begin) refuse("a number is wanted");
    return value;
  }

  std::string_view text_;
  const Tokenizer* tokenizer_;  // null: no tokens are known
  std::size_t at_ = 0;
  Builder builder_;
  std::set<std::string> defined_;
};

}  // namespace

Grammar parse_gbnf(const std::string& text, const Tokenizer* tokenizer) {
  return GbnfParser(text, tokenizer).run();
}

}  // namespace hayloft::runtime::grammar
