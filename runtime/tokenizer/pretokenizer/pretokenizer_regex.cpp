#include "runtime/tokenizer/pretokenizer/pretokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctime>
#include <utility>

#include "offload/error.h"
#include "runtime/tokenizer/json.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime {
namespace {

// Matching is bounded so that a pattern that backtracks exponentially becomes an error: the counter allows some
// seconds of work for one match, the stack for patterns that recurse per character of a very long match.
constexpr std::uint32_t kMatchLimit = 100'000'000;
constexpr std::size_t kJitStackStart = 32 << 10;
constexpr std::size_t kJitStackLimit = 16 << 20;
constexpr std::size_t kMaxPatternBytes = 64 << 10;

// All matches of a text may take this together, of the thread's own time: patterns of real tokenizers take a
// thousandth of it, with what is done with their pieces a hundredth.
constexpr double kMostSeconds = 2, kMostSecondsPerByte = 5e-6;
constexpr int kFindsBetweenChecks = 256;
constexpr std::size_t kFirstStarts = 512;  // places where a match may begin that are tried before time is looked at

double thread_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <auto free>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;
using CompiledPattern = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[160];
  const int length = pcre2_get_error_message(code, buffer, sizeof buffer);
  return length < 0 ? fmt::format("error {}", code) : reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct Regex::Code {
  CompiledPattern pattern;
  bool jit;
  bool goes_on;  // begins where the last search ended (\\G): one search cannot be made several
  std::string where;
};

Regex::Regex(std::string_view pattern, Syntax syntax, std::string where) {
  if (pattern.size() > kMaxPatternBytes) {
    fail("{}: a pattern of {} bytes, more than {}", where, pattern.size(), kMaxPatternBytes);
  }
  const std::string translated =
      syntax == Syntax::oniguruma ? oniguruma_to_pcre2(pattern, where) : std::string(pattern);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) fail("{}: out of memory for the pattern", where);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // Oniguruma's Ruby syntax lets ^ and $ match at every line. \C could cut a character in two.
  const std::uint32_t options =
      PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_USE_OFFSET_LIMIT |
      (syntax == Syntax::literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  CompiledPattern compiled(
      pcre2_compile(units(translated), translated.size(), options, &error, &offset, context.get()));
  if (!compiled) {
    fail("{}: pattern does not compile: {} (at byte {} of '{}')", where, pcre2_message(error), offset,
         printable(translated));
  }
  const bool jit = pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE) == 0;
  const bool goes_on = translated.find("\\G") != std::string::npos;
  code_ = std::make_unique<Code>(Code{std::move(compiled), jit, goes_on, std::move(where)});
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Matcher::State {
  const Code& code;
  MatchContext context;
  MatchData data;
  JitStack stack;
  double begun = -1;      // the thread's time at the first search
  std::size_t bytes = 0;  // to be searched in all
  int finds = 0;          // since the last check
};

Regex::Matcher::Matcher(const Regex& regex) {
  const Code& code = *regex.code_;
  // One pair of offsets: only the whole match is of interest.
  state_ = std::make_unique<State>(State{code, MatchContext(pcre2_match_context_create(nullptr)),
                                         MatchData(pcre2_match_data_create(1, nullptr)), nullptr});
  if (!state_->context || !state_->data) fail("{}: out of memory for matching", code.where);
  pcre2_set_match_limit(state_->context.get(), kMatchLimit);
  if (code.jit) {
    state_->stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr));
    pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
  }
}

Regex::Matcher::~Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;
Regex::Matcher& Regex::Matcher::operator=(Matcher&&) noexcept = default;

void Regex::Matcher::allow(std::size_t bytes) {
  state_->bytes += bytes;
}

void Regex::Matcher::check_time(std::size_t bytes) {
  state_->finds = 0;
  if (state_->begun < 0) state_->begun = thread_seconds();
  const double most = kMostSeconds + kMostSecondsPerByte * static_cast<double>(state_->bytes);
  if (thread_seconds() - state_->begun <= most) return;
  fail(
      "{}: the pattern takes more than {:.0f} s of a text of {} bytes, as no tokenizer's does: damaged or hostile; "
      "take the file of the model's makers",
      state_->code.where, most, bytes);
}

bool Regex::Matcher::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) {
  if (state_->begun < 0 || ++state_->finds >= kFindsBetweenChecks) check_time(text.size());
  std::size_t starts = state_->code.goes_on ? text.size() + 1 : kFirstStarts;
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(state_->code.pattern.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK | options,
                       state_->data.get(), state_->context.get());
  };
  int result = 0;
  for (;; starts *= 2) {
    const bool rest = text.size() - from < starts;
    const std::size_t last = rest ? text.size() : from + starts;
    pcre2_set_offset_limit(state_->context.get(), last);
    result = match(0);
    // A pattern that outgrows the JIT's stack may still fit the interpreter, which keeps its frames on the heap.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result != PCRE2_ERROR_NOMATCH) break;
    if (rest) return false;
    check_time(text.size());
    from = last;  // tried again where a character begins there, skipped where it does not
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state_->data.get());
  if (result < 0 || offsets[0] < from || offsets[1] < offsets[0]) {
    fail("{}: the pattern gave up at byte {} of a text of {} bytes: {}", state_->code.where, from, text.size(),
         result < 0 ? pcre2_message(result) : "a match that ends before it begins");
  }
  begin = offsets[0];
  end = offsets[1];
  return true;
}

std::size_t Regex::Matcher::after(std::string_view text, std::size_t at) {
  return at < text.size() ? at + utf8_at(text, at).length : at + 1;
}

std::string replace_all(std::string_view text, Regex::Matcher& matcher, std::string_view content, std::size_t most) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  matcher.spans(text, [&](std::size_t begin, std::size_t end, bool is_match) {
    out.append(is_match ? content : text.substr(begin, end - begin));
    return out.size() <= most;
  });
  return out;
}

}  // namespace hayloft::runtime
