#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/eval/ruler/ruler.h"
#include "runtime/tokenizer/tokenizer.h"

// Samples of the tasks that `hayloft eval` puts to a model. Each sample is a prompt, and either an answer that the
// model generates or tokens that it is led through.
namespace hayloft::runtime::eval {

// The meaning of a task's score.
enum class Measure : std::uint8_t {
  share,       // of what was asked for, 0..1
  characters,  // that the answer goes on as the text does
  perplexity,  // of tokens of a text; smaller is better
  bits,        // for each character of a text; smaller is better
};
const char* name(Measure measure);  // "share", "characters", "perplexity", "bits"

// One question of a task: its tokens, and what counts as its answer.
struct EvalSample {
  std::vector<std::int32_t> prompt;  // two tokens at least; the last one is the first step of decoding
  int answer_tokens = 0;             // how many the model may generate, when `forced` is empty
  std::vector<std::int32_t> forced;  // the tokens that follow the prompt, where a text goes on
  std::vector<std::string> expected;
  std::int64_t shared_tokens = 0;    // at the prompt's beginning, the same in every sample of the task: read once
  std::optional<double> depth = {};  // percent: where in the context the answer lies
};

// The samples of one task at one context length. Not thread-safe.
class EvalTask {
 public:
  virtual ~EvalTask() = default;
  virtual const std::string& name() const = 0;
  virtual Measure measure() const = 0;
  virtual std::int64_t ctx_size() const = 0;  // tokens of prompt and answer, at most
  virtual int samples() const = 0;            // how many there are
  // Returns how many tokens the longest of the first `samples` takes with its answer: ctx_size(), or more where samples
  // were prepared by another tokenizer.
  virtual std::int64_t positions(int /*samples*/) { return ctx_size(); }
  virtual EvalSample sample(int number) = 0;  // throws Error
  // Scores an answer as the model generated it; samples with forced tokens have none.
  virtual double score(std::string_view /*answer*/, const EvalSample& /*sample*/) const { return 0; }
  // Scores forced tokens by the mean of their negative log-likelihoods: their perplexity unless the task says
  // otherwise.
  virtual double score_of_loss(double mean_loss, const EvalSample& /*sample*/) const { return std::exp(mean_loss); }
  // Returns whether an answer has ended before answer_tokens are reached.
  virtual bool ended(std::string_view /*answer*/) const { return false; }
  // The answer as it is scored and kept.
  virtual std::string cleaned(std::string_view answer) const { return std::string(answer); }
};

// A task of RULER. The tokenizer must outlive it. Throws Error.
std::unique_ptr<EvalTask> make_ruler_eval(std::string_view task, const RulerOptions& options,
                                          const Tokenizer& tokenizer, std::int64_t ctx_size);
// Makes a task of a file of prepared samples, as RULER's scripts write it. Its length is the power of two that every
// `length` of the file fits; tokens of this tokenizer may be more. The tokenizer must outlive it. Throws Error.
std::unique_ptr<EvalTask> make_prepared_eval(const std::filesystem::path& file, const Tokenizer& tokenizer);

// Says which needles a context gets, and in which text.
struct DepthsOptions {
  std::uint64_t seed = 42;
  int needles = 10;                // evenly from 0% to 100%
  int digits = 7;                  // of each, 1..18
  std::filesystem::path haystack;  // a text file or a folder of them, repeated to length; empty: the grammar generator
  std::optional<int> only = {};    // hides this one needle, 0 the first, and leaves the others out
  bool question_behind = false;    // the context alone takes ctx_size tokens, question and answer follow it
  int answer_tokens = 0;           // that may be generated; 0: as many as the longest number takes
};

// Needles at even depths of one context, asked for one by one: a sample for each. The digits given must be those
// hidden, no more and no fewer. The tokenizer must outlive it. Throws Error when they do not fit.
std::unique_ptr<EvalTask> make_depths(const DepthsOptions& options, const Tokenizer& tokenizer, std::int64_t ctx_size);

// A text as tokens, without what the tokenizer puts before a text. Shared by tasks.
struct EvalText {
  std::vector<std::int32_t> opening;  // that, which every sample begins with
  std::vector<std::int32_t> tokens;
};
std::shared_ptr<const EvalText> read_eval_text(std::string_view text, const Tokenizer& tokenizer);  // text is UTF-8

// SparQ's text repetition (arXiv 2312.04985, appendix): a stretch of the text, then the beginning of a passage from its
// middle, which the model must go on copying. Scored by the characters up to the first difference. Samples are
// stretches from all over the text, their passages drawn by the seed. Throws Error when the text is too short.
std::unique_ptr<EvalTask> make_repetition(const std::shared_ptr<const EvalText>& text, const Tokenizer& tokenizer,
                                          std::int64_t ctx_size, int samples, int answer_tokens, std::uint64_t seed);

// The last `scored` tokens of stretches of the text, each predicted from all before it. Throws Error when the text is
// too short.
std::unique_ptr<EvalTask> make_perplexity(const std::shared_ptr<const EvalText>& text, std::int64_t ctx_size,
                                          int samples, int scored);

}  // namespace hayloft::runtime::eval
