#include "runtime/chat/jinja/parse/lexer.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/utf8.h"
#include "runtime/chat/jinja/values/strings.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime::jinja {
namespace {

// Line ends as \n, and without the last one.
std::string unified(std::string_view source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!pair) out += source[i] == '\r' ? '\n' : source[i];
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

constexpr std::string_view symbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : text_(unified(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) data();
    add(TokenType::end, "");
    return std::move(tokens_);
  }

 private:
  bool sees(std::string_view what) const { return std::string_view(text_).substr(at_, what.size()) == what; }

  void add(TokenType type, std::string value) { tokens_.push_back({type, std::move(value), line_}); }

  void move_to(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    line_starts_ = end > at_ ? text_[end - 1] == '\n' : line_starts_;
    at_ = end;
  }

  [[noreturn]] void refuse(const std::string& what) const { fail("{}: line {}: {}", name_, line_, what); }

  // Text up to the next tag, and the tag.
  void data() {
    std::size_t open = at_;
    do {
      open = text_.find('{', open);
      if (open == std::string::npos || open + 1 >= text_.size()) return rest();
    } while (std::string_view("{%#").find(text_[open + 1]) == std::string_view::npos && ++open);
    const char kind = text_[open + 1];
    const char sign =
        open + 2 < text_.size() && (text_[open + 2] == '-' || text_[open + 2] == '+') ? text_[open + 2] : ' ';
    add_data(std::string_view(text_).substr(at_, open - at_), sign, kind != '{');
    move_to(open + 2 + (sign != ' ' ? 1 : 0));
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      tag(TokenType::print_begin, TokenType::print_end, "}}");
    } else if (const std::size_t inside = raw_begin()) {
      move_to(inside);
      raw();
    } else {
      tag(TokenType::block_begin, TokenType::block_end, "%}");
    }
  }

  void rest() {
    if (at_ < text_.size()) add(TokenType::data, text_.substr(at_));
    move_to(text_.size());
  }

  // sign: what stands behind the braces that follow; is_block: white space before them on their line goes.
  void add_data(std::string_view data, char sign, bool is_block) {
    if (sign == '-') {
      data = stripped(data, Side::right);
    } else if (sign != '+' && is_block) {
      const std::size_t line = data.rfind('\n') + 1;  // 0 where there is none
      if ((line > 0 || line_starts_) && stripped(data.substr(line), Side::right).empty()) data = data.substr(0, line);
    }
    if (!data.empty()) add(TokenType::data, std::string(data));
  }

  // Behind the end of a tag at `close`: a newline goes with a block, all white space with a minus.
  std::size_t behind(std::size_t close, char sign, bool is_block) const {
    std::size_t end = close + 2;
    if (sign == '-') {
      end = text_.size() - stripped(std::string_view(text_).substr(end), Side::left).size();
    } else if (sign != '+' && is_block && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    return end;
  }

  void comment() {
    const std::size_t close = text_.find("#}", at_);
    if (close == std::string::npos) refuse("the comment has no end");
    const char before = close > at_ ? text_[close - 1] : ' ';
    move_to(behind(close, before, true));
  }

  std::size_t skip_space(std::size_t at) const {
    return text_.size() - stripped(std::string_view(text_).substr(at), Side::left).size();
  }

  // Returns where the text behind {% raw %} begins, 0 if this is another block. A newline behind it stays.
  std::size_t raw_begin() const {
    std::size_t at = skip_space(at_);
    if (text_.compare(at, 3, "raw") != 0) return 0;
    at = skip_space(at + 3);
    const bool minus = at < text_.size() && text_[at] == '-';
    if (minus) ++at;
    if (text_.compare(at, 2, "%}") != 0) return 0;
    return behind(at, minus ? '-' : '+', true);
  }

  void raw() {
    for (std::size_t open = text_.find("{%", at_); open != std::string::npos; open = text_.find("{%", open + 2)) {
      std::size_t at = open + 2;
      const char sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : ' ';
      at = skip_space(at);
      if (text_.compare(at, 6, "endraw") != 0) continue;
      at = skip_space(at + 6);
      const char before = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : ' ';
      if (text_.compare(at, 2, "%}") != 0) continue;
      add_data(std::string_view(text_).substr(at_, open - at_), sign, true);
      return move_to(behind(at, before, true));
    }
    refuse("{% raw %} has no {% endraw %}");
  }

  void tag(TokenType begin, TokenType end, std::string_view close) {
    add(begin, "");
    std::string open_brackets;
    for (;;) {
      move_to(skip_space(at_));
      if (at_ >= text_.size()) refuse("the template ends inside a tag");
      if (open_brackets.empty()) {
        const bool signed_end = text_[at_] == '-' || (text_[at_] == '+' && close == "%}");
        const std::size_t at = at_ + (signed_end ? 1 : 0);
        if (text_.compare(at, 2, close) == 0) {
          add(end, "");
          return move_to(behind(at, signed_end ? text_[at_] : ' ', close == "%}"));
        }
      }
      const char c = text_[at_];
      if (is_digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else if (is_word_character(utf8_at(text_, at_).code)) {
        word();
      } else {
        symbol(open_brackets);
      }
    }
  }

  void number() {
    std::size_t end = at_;
    std::string digits;
    const auto take = [&] {
      while (end < text_.size() && (is_digit(text_[end]) || (text_[end] == '_' && is_digit(text_[end - 1])))) {
        if (text_[end] != '_') digits += text_[end];
        ++end;
      }
    };
    const auto digit_at = [&](std::size_t at) { return at < text_.size() && is_digit(text_[at]); };
    take();
    bool real = false;
    if (end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      real = true;
      digits += text_[end++];
      take();
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const bool sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
      if (digit_at(end + (sign ? 2 : 1))) {
        real = true;
        digits += text_[end++];
        if (sign) digits += text_[end++];
        take();
      }
    }
    if (!real && digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) {
      refuse("a number that begins with 0");
    }
    if (digits == "0" && end < text_.size() && std::string_view("xXoObB").find(text_[end]) != std::string_view::npos) {
      refuse("numbers to another base than ten are not supported");
    }
    add(real ? TokenType::real : TokenType::integer, digits);
    move_to(end);
  }

  void string(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) refuse("the text in quotes has no end");
    const auto value = unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1));
    if (!value) refuse("the text in quotes has an escape that is not supported");
    add(TokenType::text, *value);
    move_to(end + 1);
  }

  void word() {
    std::size_t end = at_;
    while (end < text_.size() && is_word_character(utf8_at(text_, end).code)) end += utf8_at(text_, end).length;
    constexpr std::size_t longest_name = 1000;  // names are compared in every step
    if (end - at_ > longest_name) refuse(fmt::format("a name of more than {} bytes", longest_name));
    add(TokenType::name, text_.substr(at_, end - at_));
    move_to(end);
  }

  void symbol(std::string& open_brackets) {
    for (const std::string_view each : symbols) {
      if (!sees(each)) continue;
      const char c = each[0];
      if (c == '(' || c == '[' || c == '{') open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty() || open_brackets.back() != c) refuse(fmt::format("unexpected '{}'", c));
        open_brackets.pop_back();
      }
      add(TokenType::symbol, std::string(each));
      return move_to(at_ + each.size());
    }
    refuse(fmt::format("unexpected '{}'", printable(std::string_view(text_).substr(at_, utf8_at(text_, at_).length))));
  }

  const std::string text_;
  const std::string& name_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // what stands before at_ ended in a newline
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace hayloft::runtime::jinja
