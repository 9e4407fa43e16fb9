#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

namespace hayloft::runtime {

// tokenizer.json files write their patterns for Oniguruma (Ruby syntax, Unicode classes). This rewrites what PCRE2
// would read differently: \s \w \h and their complements, nested classes, \uXXXX, {n,m}+ (a repeat there, not
// possessive),
// {,n} and the (?m) flag. Throws Error naming `where` for class intersections and negated nested classes.
std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& where);

// A compiled pattern. Immutable and thread-safe; the state of a search is in a Matcher.
class Regex {
 public:
  enum class Syntax { oniguruma, literal };

  // `where` (file and field) begins every message. Throws Error if the pattern does not compile.
  Regex(std::string_view pattern, Syntax syntax, std::string where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Searches of one thread. The Regex outlives it.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) noexcept;

    // The leftmost match in text (valid UTF-8) that begins at `from` or later; text before `from` is seen by
    // lookbehinds. Throws Error if the pattern backtracks beyond all measure, or takes time out of proportion to the
    // texts of all calls of `spans`, as a pattern does that looks through the rest of a long text at every match.
    bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end);

    // Calls span(begin, end, is_match) for each match and each stretch between matches, in order; together they are
    // the whole text. Stretches are not empty, matches may be. An empty match right behind a match does not count.
    // `span` may return false: then it was the last.
    template <class Span>
    void spans(std::string_view text, Span&& span) {
      std::size_t done = 0, from = 0, begin = 0, end = 0;
      bool matched = false;
      allow(text.size());
      while (from <= text.size() && find(text, from, begin, end)) {
        if (begin == end && matched && begin == done) {
          from = after(text, begin);
          continue;
        }
        if (done < begin && !goes_on(span, done, begin, false)) return;
        if (!goes_on(span, begin, end, true)) return;
        matched = true;
        done = end;
        from = begin == end ? after(text, end) : end;
      }
      if (done < text.size()) span(done, text.size(), false);
    }

   private:
    template <class Span>
    static bool goes_on(Span& span, std::size_t begin, std::size_t end, bool is_match) {
      if constexpr (std::is_same_v<decltype(span(begin, end, is_match)), bool>) {
        return span(begin, end, is_match);
      } else {
        span(begin, end, is_match);
        return true;
      }
    }
    static std::size_t after(std::string_view text, std::size_t at);
    void allow(std::size_t bytes);       // more of text to search
    void check_time(std::size_t bytes);  // of the text

    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// text with every match replaced by `content`, which is taken literally. Ends where the result has more than `most`
// bytes, with what it has by then.
std::string replace_all(std::string_view text, Regex::Matcher& matcher, std::string_view content, std::size_t most);

}  // namespace hayloft::runtime
