#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/eval/needle/haystack.h"
#include "runtime/eval/papers/sample_source.h"
#include "runtime/tokenizer/unicode.h"

// The paper's tasks that need nothing but a text: how many bits each character of its going on takes (of WikiText-103
// there), and copying (of Shakespeare). Lengths are in characters.
namespace hayloft::runtime::eval {
namespace {

constexpr std::size_t kContext = 6000;
constexpr std::size_t kForetold = 400;  // characters whose bits are counted
constexpr std::size_t kGiven = 128;     // of the passage to be copied
constexpr std::size_t kCopied = 256;
constexpr int kCopiedTokens = 128;
constexpr std::size_t kStep = 1024;  // bytes, from the beginning of one sample to where the next may begin

bool blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Returns where so many characters from `at` on end, and then the word; npos where the text does.
std::size_t past_characters(std::string_view text, std::size_t at, std::size_t count) {
  for (; count > 0 && at < text.size(); --count) at += std::max<std::size_t>(1, utf8_at(text, at).length);
  if (count > 0) return std::string_view::npos;
  while (at < text.size() && !blank(text[at])) ++at;
  return at;
}

class TextSource : public PaperSource {
 public:
  // `whole`: characters that a sample takes.
  TextSource(std::string text, std::size_t whole) : text_(std::move(text)) {
    for (std::size_t at = 0; at < text_.size(); at = std::max(at + 1, next_line(at + kStep))) {
      if (past_characters(text_, at, whole) == std::string_view::npos) break;
      begins_.push_back(at);
    }
    if (begins_.empty()) fail("--text: has fewer than the {} characters that a sample of the paper takes", whole);
  }
  int samples() const override { return static_cast<int>(begins_.size()); }

 protected:
  std::string_view context(int number) const {
    const std::size_t begin = begins_[static_cast<std::size_t>(number)];
    return std::string_view(text_).substr(begin, past_characters(text_, begin, kContext) - begin);
  }
  std::string_view text() const { return text_; }
  std::size_t end_of(std::string_view part) const {
    return static_cast<std::size_t>(part.data() - text_.data()) + part.size();
  }

 private:
  std::size_t next_line(std::size_t at) const {
    const std::size_t end = at < text_.size() ? text_.find('\n', at) : std::string::npos;
    return end == std::string::npos ? text_.size() : end + 1;
  }

  std::string text_;
  std::vector<std::size_t> begins_;
};

// Words as long as these characters may follow.
constexpr std::size_t kWord = 200;

class BitsPerCharacter : public TextSource {
 public:
  explicit BitsPerCharacter(std::string text) : TextSource(std::move(text), kContext + kForetold + kWord) {}
  PaperText sample(int number, std::mt19937_64&) const override {
    const std::string_view before = context(number);
    const std::size_t from = end_of(before);
    const std::size_t to = std::min(past_characters(text(), from, kForetold), text().size());
    PaperText sample{std::string(before), {std::string(text().substr(from, to - from))}};
    sample.follows_expected = true;
    return sample;
  }
};

class Copying : public TextSource {
 public:
  explicit Copying(std::string text) : TextSource(std::move(text), kContext + kWord) {}
  PaperText sample(int number, std::mt19937_64& random) const override {
    const std::string_view all = context(number);
    // A passage that begins with a word and ends, its going on included, within the context.
    std::size_t begin = 0, middle = 0, end = std::string_view::npos;
    for (std::size_t room = all.size(); end == std::string_view::npos && room > 0; room /= 2) {
      begin = past_characters(all, draw(random, room), 0);
      middle = past_characters(all, begin, kGiven);
      if (middle != std::string_view::npos) end = past_characters(all, middle, kCopied);
    }
    if (end == std::string_view::npos) fail("--text: has a word of more than {} characters", kContext / 2);
    PaperText sample;
    sample.prompt = std::string(all) + "\n" + std::string(all.substr(begin, middle - begin));
    sample.expected = {std::string(all.substr(middle, end - middle))};
    sample.most_answer_tokens = kCopiedTokens;
    return sample;
  }
};

}  // namespace

std::unique_ptr<PaperSource> cut_sparq_bpc(std::string text) {
  return std::make_unique<BitsPerCharacter>(std::move(text));
}

std::unique_ptr<PaperSource> cut_sparq_repetition(std::string text) {
  return std::make_unique<Copying>(std::move(text));
}

}  // namespace hayloft::runtime::eval
