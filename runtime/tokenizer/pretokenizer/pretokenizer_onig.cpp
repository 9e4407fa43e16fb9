#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "runtime/tokenizer/json.h"
#include "runtime/tokenizer/pretokenizer/pretokenizer_regex.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime {
namespace {

// Contents of character classes. PCRE2's \s also takes U+180E, and its \w (10.42) leaves marks out.
constexpr std::string_view kSpace =
    "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"
    "\\x{1F170}-\\x{1F189}";
// Outside a class Oniguruma's \w has the superscripts and fractions of Latin-1 too.
constexpr std::string_view kLatin1Word = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";

// The POSIX brackets that PCRE2 reads differently.
constexpr std::pair<std::string_view, std::string_view> kPosix[] = {
    {"[:alpha:]", "\\p{Alphabetic}"},
    {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
    {"[:punct:]", "\\p{P}\\p{S}"},
    {"[:space:]", kSpace},
    {"[:word:]", kWord},
};

// Properties with names of more than two letters that are not scripts. To PCRE2 a bare script also means characters
// that the script shares with others (\p{Han} the ideographic full stop), to Oniguruma only its own.
constexpr std::string_view kNoScripts[] = {
    "Any",
    "Alphabetic",
    "Uppercase",
    "Lowercase",
    "White_Space",
    "Emoji",
    "Emoji_Presentation",
    "Emoji_Modifier",
    "Extended_Pictographic",
    "Ideographic",
    "Math",
    "Dash",
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
template <class List, class Value>
bool contains(const List& list, const Value& value) {
  return std::find(std::begin(list), std::end(list), value) != std::end(list);
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        atom_ = out_.size();
        escape(/*in_class=*/false);
      } else if (c == '[') {
        atom_ = out_.size();
        character_class();
      } else if (c == '(') {
        open_group();
      } else if (c == ')') {
        // Too many of them are PCRE2's to complain about.
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
        copy(1);
      } else if (c != '{' || !interval()) {
        if (c != '?' && c != '*' && c != '+') atom_ = out_.size();
        copy(utf8_at(in_, at_).length);
      }
    }
    return std::move(out_);
  }

 private:
  bool next_is(std::string_view text) const { return in_.substr(at_).substr(0, text.size()) == text; }

  void copy(std::size_t bytes) {
    out_.append(in_.substr(at_, bytes));
    at_ += bytes;
  }

  void put_class(std::string_view contents, bool negated, bool in_class) {
    if (in_class) {
      out_.append(contents);
    } else {
      const std::string_view more = contents == kWord ? kLatin1Word : "";
      out_.append(negated ? "[^" : "[").append(contents).append(more).append("]");
    }
    at_ += 2;
  }

  // \p{...}, at_ on the backslash and close on the brace.
  void property(std::size_t close) {
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const bool negated = name.substr(0, 1) == "^";
    if (negated) name.remove_prefix(1);
    const bool script = name.size() > 2 && !contains(kNoScripts, name);
    out_.append(in_.substr(at_, 3)).append(negated ? "^" : "").append(script ? "sc:" : "").append(name).append("}");
    at_ = close + 1;
  }

  void posix_bracket() {
    for (const auto& [name, contents] : kPosix) {
      if (!next_is(name)) continue;
      out_.append(contents);
      at_ += name.size();
      return;
    }
    const std::size_t close = in_.find(":]", at_);
    copy(close == std::string_view::npos ? 1 : close + 2 - at_);
  }

  void escape(bool in_class) {
    const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    // A complement within a class stays PCRE2's own: classes cannot be nested there.
    if (c == 's' || (c == 'S' && !in_class)) return put_class(kSpace, c == 'S', in_class);
    if (c == 'w' || (c == 'W' && !in_class)) return put_class(kWord, c == 'W', in_class);
    if (c == 'h' || (c == 'H' && !in_class)) return put_class(kHexDigit, c == 'H', in_class);
    if (c == 'u' && at_ + 6 <= in_.size()) {
      const std::string_view digits = in_.substr(at_ + 2, 4);
      if (std::all_of(digits.begin(), digits.end(), is_hex)) {
        out_.append("\\x{").append(digits).append("}");
        at_ += 6;
        return;
      }
    }
    const bool braced = contains(std::string_view("pPxkg"), c) && at_ + 2 < in_.size() && in_[at_ + 2] == '{';
    const std::size_t close = braced ? in_.find('}', at_) : std::string_view::npos;
    if (close != std::string_view::npos) return c == 'p' || c == 'P' ? property(close) : copy(close + 1 - at_);
    copy(1);
    if (at_ < in_.size()) copy(utf8_at(in_, at_).length);
  }

  // A class within a class is a union, so its brackets can go.
  void character_class() {
    int depth = 0;
    do {
      const char c = in_[at_];
      if (c == '[' && depth > 0 && next_is("[:")) {
        posix_bracket();
      } else if (c == '[') {
        if (++depth > 1) {
          if (next_is("[^")) fail("{}: a negated class within a class is not supported: {}", where_, printable(in_));
          ++at_;
        } else {
          copy(next_is("[^") ? 2 : 1);
        }
        if (next_is("]")) {  // first in a class it stands for itself
          out_.append("\\");
          copy(1);
        }
      } else if (c == ']') {
        if (--depth == 0)
          copy(1);
        else
          ++at_;
      } else if (c == '\\') {
        escape(/*in_class=*/true);
      } else if (next_is("&&")) {
        fail("{}: the intersection of classes (&&) is not supported: {}", where_, printable(in_));
      } else {
        copy(utf8_at(in_, at_).length);
      }
    } while (depth > 0 && at_ < in_.size());
  }

  void open_group() {
    groups_.push_back(out_.size());
    copy(1);
    if (!next_is("?")) return;
    copy(1);
    // Option letters: Oniguruma's m is what PCRE2 calls s.
    const std::size_t end = in_.find_first_not_of("imx-", at_);
    if (end == std::string_view::npos || end == at_ || (in_[end] != ':' && in_[end] != ')')) return;
    for (; at_ < end; ++at_) out_.push_back(in_[at_] == 'm' ? 's' : in_[at_]);
  }

  // {n}, {n,}, {,m}, {n,m} at at_; anything else is literal.
  bool interval() {
    const std::size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) return false;
    const std::string_view bounds = in_.substr(at_ + 1, close - at_ - 1);
    if (bounds.empty() || bounds == "," || bounds.find_first_not_of("0123456789,") != std::string_view::npos ||
        bounds.find(',') != bounds.rfind(',')) {
      return false;
    }
    const bool repeated = close + 1 < in_.size() && in_[close + 1] == '+';
    if (repeated) out_.insert(atom_, "(?:");
    out_.append(bounds.front() == ',' ? "{0" : "{").append(bounds).append("}");
    if (repeated) out_.append(")");
    at_ = close + 1;
    return true;
  }

  std::string_view in_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;             // where in out_ the last atom begins: what a quantifier applies to
  std::vector<std::size_t> groups_;  // where in out_ the open groups begin
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace hayloft::runtime
