#include "offload/error.h"
#include "runtime/eval/needle/context.h"
#include "runtime/eval/task.h"

namespace hayloft::runtime::eval {
namespace {

class Depths : public EvalTask {
 public:
  Depths(const RulerOptions& options, const Tokenizer& tokenizer, std::int64_t ctx_size, int samples)
      : tokenizer_(tokenizer), ctx_size_(ctx_size) {
    std::mt19937_64 random(options.seed + static_cast<std::uint64_t>(ctx_size));
    needles_ = make_needles(samples, options.digits, random);
    std::size_t longest = 0;
    for (const Needle& needle : needles_) longest = std::max(longest, rest(needle).size() + answer(needle).size());
    const std::int64_t room = ctx_size - static_cast<std::int64_t>(longest);
    if (room < 1) fail("--ctx-size {}: too short for a question of {} tokens", ctx_size, longest);
    Filler filler(options.haystack.empty() ? make_grammar(random()) : make_text(options.haystack));
    context_ = needle_context(tokenizer, filler, needles_, room);
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
    const std::vector<std::int32_t> question = rest(needle);
    sample.prompt.insert(sample.prompt.end(), question.begin(), question.end());
    sample.answer_tokens = static_cast<int>(answer(needle).size());
    sample.expected = {needle.digits};
    return sample;
  }

  double score(std::string_view text, const EvalSample& sample) const override {
    return cleaned(text) == sample.expected.front() ? 1 : 0;
  }
  std::string cleaned(std::string_view text) const override { return digits_of_answer(std::string(text)); }

 private:
  std::vector<std::int32_t> rest(const Needle& needle) const { return tokenizer_.encode(needle.question(), false); }
  std::vector<std::int32_t> answer(const Needle& needle) const {
    return tokenizer_.encode(" " + needle.digits + ".", false);
  }

  std::string name_ = "depths";
  const Tokenizer& tokenizer_;
  std::int64_t ctx_size_;
  std::vector<Needle> needles_;
  std::vector<std::int32_t> context_;
};

}  // namespace

std::unique_ptr<EvalTask> make_depths(const RulerOptions& options, const Tokenizer& tokenizer, std::int64_t ctx_size,
                                      int samples) {
  return std::make_unique<Depths>(options, tokenizer, ctx_size, samples);
}

}  // namespace hayloft::runtime::eval
