#include "runtime/eval/papers/sparq.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>
#include <numeric>

#include "offload/error.h"
#include "runtime/eval/papers/rouge.h"
#include "runtime/eval/papers/sample_source.h"
#include "runtime/eval/ruler/random.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime::eval {
namespace {

const std::string squad = "sparq_squad", triviaqa = "sparq_triviaqa", summaries = "sparq_cnn_dailymail",
                  bpc = "sparq_bpc", repetition = "sparq_repetition";

// In lower case, without what stands around an answer.
std::string bare(std::string_view text) {
  constexpr std::string_view around = " \t\r\n\f\v\"'_.,";
  const std::size_t first = text.find_first_not_of(around);
  if (first == std::string_view::npos) return {};
  text = text.substr(first, text.find_last_not_of(around) + 1 - first);
  std::string low(text);
  std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view article : {"the ", "a ", "an "}) {
    if (low.starts_with(article)) return low.substr(article.size());
  }
  return low;
}

std::string_view without_leading_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n\f\v");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

// Characters of the reference that the answer begins with.
double copied(std::string_view answer, std::string_view reference) {
  answer = without_leading_blanks(answer);
  reference = without_leading_blanks(reference);
  const auto differ = std::mismatch(answer.begin(), answer.end(), reference.begin(), reference.end()).first;
  return static_cast<double>(characters(answer.substr(0, static_cast<std::size_t>(differ - answer.begin()))));
}

class SparqTask : public EvalTask {
 public:
  SparqTask(std::string name, std::unique_ptr<PaperSource> source, const Tokenizer& tokenizer, std::int64_t ctx_size,
            std::uint64_t seed)
      : name_(std::move(name)), source_(std::move(source)), tokenizer_(&tokenizer), ctx_size_(ctx_size), seed_(seed) {
    order_.resize(static_cast<std::size_t>(source_->samples()));
    std::iota(order_.begin(), order_.end(), 0);
    std::mt19937_64 random(seed);
    shuffle(order_, random);
  }

  const std::string& name() const override { return name_; }
  Measure measure() const override {
    return name_ == bpc ? Measure::bits : name_ == repetition ? Measure::characters : Measure::share;
  }
  std::int64_t ctx_size() const override { return ctx_size_; }
  int samples() const override { return source_->samples(); }

  EvalSample sample(int number) override {
    while (static_cast<int>(fitting_.size()) <= number) {
      if (seen_ == order_.size()) {
        fail("--tasks {}: {} of {} samples fit --ctx-size {}; ask for no more, or give them more room", name_,
             fitting_.size(), order_.size(), ctx_size_);
      }
      if (std::optional<EvalSample> fits = made(order_[seen_++])) fitting_.push_back(std::move(*fits));
    }
    return fitting_[static_cast<std::size_t>(number)];
  }

  double score(std::string_view answer, const EvalSample& sample) const override {
    if (name_ == summaries) return rouge_l(sample.expected.front(), answer);
    if (name_ == repetition) return copied(answer, sample.expected.front());
    return begins_with_answer(answer, sample.expected) ? 1 : 0;
  }
  double score_of_loss(double mean_loss, const EvalSample& sample) const override {
    return mean_loss * static_cast<double>(sample.forced.size()) / std::numbers::ln2 /
           static_cast<double>(characters(sample.expected.front()));
  }
  // In answers to questions nothing behind their line counts.
  bool ended(std::string_view answer) const override {
    return (name_ == squad || name_ == triviaqa) && without_leading_blanks(answer).find('\n') != std::string_view::npos;
  }

 private:
  std::optional<EvalSample> made(int number) const {
    std::mt19937_64 random(seed_ + 1 + static_cast<std::uint64_t>(number));
    PaperText text = source_->sample(number, random);
    EvalSample sample;
    sample.prompt = tokenizer_->encode_prompt(text.prompt);
    sample.expected = std::move(text.expected);
    std::size_t longest = 0;
    for (const std::string& reference : sample.expected) {
      longest = std::max(longest, tokenizer_->encode(reference, false).size());
    }
    if (text.follows_expected) {
      sample.forced = tokenizer_->encode(sample.expected.front(), false);
    } else {
      sample.answer_tokens = std::min(text.most_answer_tokens, static_cast<int>(longest) + text.spare_tokens);
    }
    const std::size_t all =
        sample.prompt.size() + sample.forced.size() + static_cast<std::size_t>(sample.answer_tokens);
    const bool empty = sample.prompt.size() < 2 || (sample.forced.empty() && sample.answer_tokens < 1);
    if (empty || static_cast<std::int64_t>(all) > ctx_size_) return std::nullopt;
    return sample;
  }

  std::string name_;
  std::unique_ptr<PaperSource> source_;
  const Tokenizer* tokenizer_;
  std::int64_t ctx_size_;
  std::uint64_t seed_;
  std::vector<int> order_;
  std::size_t seen_ = 0;  // of order_
  std::vector<EvalSample> fitting_;
};

}  // namespace

std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size() && utf8_at(text, at).status == Utf8Status::ok; ++count) {
    at += utf8_at(text, at).length;
  }
  return count;
}

const std::vector<std::string>& sparq_tasks() {
  static const std::vector<std::string> tasks{squad, triviaqa, summaries, bpc, repetition};
  return tasks;
}

bool is_sparq_task(std::string_view name) {
  return std::find(sparq_tasks().begin(), sparq_tasks().end(), name) != sparq_tasks().end();
}

bool has_input(std::string_view task, const SparqFiles& files) {
  if (task == squad) return !files.squad.empty();
  if (task == triviaqa) return !files.triviaqa.empty();
  if (task == summaries) return !files.summaries.empty();
  return !files.text.empty();
}

bool begins_with_answer(std::string_view answer, const std::vector<std::string>& references) {
  const std::string given = bare(answer);
  return std::any_of(references.begin(), references.end(), [&](const std::string& reference) {
    const std::string wanted = bare(reference);
    return !wanted.empty() && given.starts_with(wanted);
  });
}

std::unique_ptr<EvalTask> make_sparq_eval(const std::string& task, const SparqFiles& files, const Tokenizer& tokenizer,
                                          std::int64_t ctx_size, std::uint64_t seed) {
  std::unique_ptr<PaperSource> source = task == squad       ? read_sparq_squad(files.squad)
                                        : task == triviaqa  ? read_sparq_triviaqa(files.triviaqa)
                                        : task == summaries ? read_sparq_summaries(files.summaries)
                                        : task == bpc       ? cut_sparq_bpc(files.text)
                                                            : cut_sparq_repetition(files.text);
  return std::make_unique<SparqTask>(task, std::move(source), tokenizer, ctx_size, seed);
}

}  // namespace hayloft::runtime::eval
