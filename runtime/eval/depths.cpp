#include "offload/error.h"
#include "runtime/eval/needle/context.h"
#include "runtime/eval/task.h"

namespace hayloft::runtime::eval {
namespace {

class Depths : public EvalTask {
 public:
  Depths(const DepthsOptions& options, const Tokenizer& tokenizer, std::int64_t ctx_size)
      : tokenizer_(tokenizer), ctx_size_(ctx_size), answer_tokens_(options.answer_tokens) {
    std::mt19937_64 random(options.seed + static_cast<std::uint64_t>(ctx_size));
    if (options.needles < 1) fail("--depths {}: at least one needle is needed", options.needles);
    if (options.digits < 1 || options.digits > 18) fail("--digits {}: must be between 1 and 18", options.digits);
    if (!options.only) require_room(options.needles, ctx_size);
    needles_ = make_needles(options.needles, options.digits, random);
    Filler filler(options.haystack.empty() ? make_grammar(random()) : make_text(options.haystack));
    if (options.only) needles_ = {needles_.at(static_cast<std::size_t>(*options.only))};
    context_ = needle_context(tokenizer, filler, needles_, options.question_behind ? ctx_size : room());
  }

  const std::string& name() const override { return name_; }
  Measure measure() const override { return Measure::share; }
  std::int64_t ctx_size() const override { return ctx_size_; }
  int samples() const override { return static_cast<int>(needles_.size()); }

  EvalSample sample(int number) override {
    const Needle& needle = needles_.at(static_cast<std::size_t>(number));
    EvalSample sample;
    sample.prompt = context_;
    sample.shared_tokens = static_cast<std::int64_t>(context_.size());
    const std::vector<std::int32_t> question = question_of(needle);
    sample.prompt.insert(sample.prompt.end(), question.begin(), question.end());
    sample.answer_tokens = answer_tokens_ > 0 ? answer_tokens_ : static_cast<int>(answer_of(needle).size());
    sample.expected = {needle.digits};
    sample.depth = needle.depth;
    return sample;
  }

  double score(std::string_view text, const EvalSample& sample) const override {
    return cleaned(text) == sample.expected.front() ? 1 : 0;
  }
  // Behind the digits: what follows them is not scored.
  bool ended(std::string_view text) const override {
    const std::size_t begin = text.find_first_of("0123456789");
    return begin != std::string::npos && text.find_first_not_of("0123456789", begin) != std::string::npos;
  }
  std::string cleaned(std::string_view text) const override { return digits_of_answer(std::string(text)); }

 private:
  std::vector<std::int32_t> question_of(const Needle& needle) const {
    return tokenizer_.encode(needle.question(), false);
  }
  std::vector<std::int32_t> answer_of(const Needle& needle) const {
    return tokenizer_.encode(" " + needle.digits + ".", false);
  }

  // Returns what the longest question and answer leave of ctx_size.
  std::int64_t room() const {
    std::size_t longest = 0;
    for (const Needle& needle : needles_) {
      longest = std::max(longest, question_of(needle).size() + answer_of(needle).size());
    }
    const std::int64_t left = ctx_size_ - static_cast<std::int64_t>(longest);
    if (left < 1) fail("--ctx-size {}: too short for a question of {} tokens", ctx_size_, longest);
    return left;
  }

  std::string name_ = "depths";
  const Tokenizer& tokenizer_;
  std::int64_t ctx_size_;
  int answer_tokens_;
  std::vector<Needle> needles_;
  std::vector<std::int32_t> context_;
};

}  // namespace

std::unique_ptr<EvalTask> make_depths(const DepthsOptions& options, const Tokenizer& tokenizer, std::int64_t ctx_size) {
  return std::make_unique<Depths>(options, tokenizer, ctx_size);
}

}  // namespace hayloft::runtime::eval
