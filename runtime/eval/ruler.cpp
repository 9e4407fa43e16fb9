#include <algorithm>

#include "runtime/eval/ruler/prepared.h"
#include "runtime/eval/ruler/score.h"
#include "runtime/eval/task.h"

namespace hayloft::runtime::eval {
namespace {

// Shared by both kinds: RULER's scoring.
class RulerScored : public EvalTask {
 public:
  RulerScored(std::string name, int answer_tokens, Credit credit, std::int64_t ctx_size, const Tokenizer& tokenizer)
      : name_(std::move(name)),
        answer_tokens_(answer_tokens),
        credit_(credit),
        ctx_size_(ctx_size),
        tokenizer_(&tokenizer) {}

  const std::string& name() const override { return name_; }
  Measure measure() const override { return Measure::share; }
  std::int64_t ctx_size() const override { return ctx_size_; }
  double score(std::string_view answer, const EvalSample& sample) const override {
    return ruler_score(cleaned_answer(answer), sample.expected, credit_);
  }
  std::string cleaned(std::string_view answer) const override { return cleaned_answer(answer); }

 protected:
  EvalSample prompt_of(const RulerSample& sample) const {
    return {tokenizer_->encode_prompt(sample.input + sample.answer_prefix), answer_tokens_, {}, sample.outputs};
  }

 private:
  std::string name_;
  int answer_tokens_;
  Credit credit_;
  std::int64_t ctx_size_;
  const Tokenizer* tokenizer_;
};

class Generated : public RulerScored {
 public:
  Generated(RulerSource source, const Tokenizer& tokenizer, std::int64_t ctx_size)
      : RulerScored(std::string(source.task().name), source.task().answer_tokens, source.task().credit, ctx_size,
                    tokenizer),
        source_(std::move(source)) {}

  int samples() const override { return source_.samples(); }
  EvalSample sample(int number) override { return prompt_of(source_.sample(number)); }

 private:
  RulerSource source_;
};

class Prepared : public RulerScored {
 public:
  Prepared(PreparedSamples prepared, const Tokenizer& tokenizer)
      : RulerScored(prepared.task, prepared.answer_tokens, prepared.credit, prepared.ctx_size, tokenizer),
        samples_(std::move(prepared.samples)) {}

  int samples() const override { return static_cast<int>(samples_.size()); }
  EvalSample sample(int number) override { return prompt_of(samples_[static_cast<std::size_t>(number)]); }
  std::int64_t positions(int samples) override {
    std::int64_t most = ctx_size();
    for (int number = 0; number < std::min(samples, this->samples()); ++number) {
      const EvalSample each = sample(number);
      most = std::max(most, static_cast<std::int64_t>(each.prompt.size()) + each.answer_tokens);
    }
    return most;
  }

 private:
  std::vector<RulerSample> samples_;
};

}  // namespace

std::unique_ptr<EvalTask> make_ruler_eval(std::string_view task, const RulerOptions& options,
                                          const Tokenizer& tokenizer, std::int64_t ctx_size) {
  return std::make_unique<Generated>(RulerSource(task, options, tokenizer, ctx_size), tokenizer, ctx_size);
}

std::unique_ptr<EvalTask> make_prepared_eval(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  return std::make_unique<Prepared>(read_prepared_samples(file), tokenizer);
}

}  // namespace hayloft::runtime::eval
