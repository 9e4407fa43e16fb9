#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/chat_template.h"
#include "runtime/tokenizer/tokenizer.h"

// The synthetic tasks of RULER (arXiv 2404.06654; parameters, sizing and scoring of github.com/NVIDIA/RULER at commit
// c3f5e3b), generated here with prompts in our own words. Everything follows from the seed, the sample's number and the
// length.
namespace hayloft::runtime::eval {

// The way in which an answer earns its score: by the share of the references found in it, or by any one of them.
enum class Credit : std::uint8_t { all, any };

// The numbers that RULER fixes for each of its tasks.
struct RulerTask {
  std::string_view name;  // as RULER calls it
  int answer_tokens;      // that a model may generate
  Credit credit;
};

// The 13, in RULER's order.
const std::vector<RulerTask>& ruler_tasks();
const RulerTask* find_ruler_task(std::string_view name);  // null: there is none of this name
bool hides_in_text(std::string_view task);                // so that RulerOptions::haystack says something about it
bool hides_numbers(std::string_view task);                // so that RulerOptions::digits does

// The sources that samples are made from.
struct RulerOptions {
  std::uint64_t seed = 42;
  int digits = 7;                  // of a number that is hidden, 1..18
  std::filesystem::path haystack;  // a text file or a folder of them; empty: the grammar generator
  std::filesystem::path squad;     // SQuAD v1.1, v2.0 or XQuAD, for qa_1
  std::filesystem::path hotpotqa;  // HotpotQA, distractor setting, for qa_2
  ChatTemplate chat;
};

// A prompt at its full length, and what counts as its answer.
struct RulerSample {
  std::string input;          // the prompt, in its chat template
  std::string answer_prefix;  // goes to the model right behind it: the answer has begun
  std::vector<std::string> outputs;
  std::int64_t length = 0;  // tokens of the prompt and the answer prefix, and those that may be generated
};

// A task without its chat template, as a generator writes it.
struct RulerText {
  std::string input;
  std::string answer_prefix;
  std::vector<std::string> outputs;
};

// Writes the samples of one task. A haystack is made of units (words, lines, documents); more of them make a longer
// text. Deterministic in `units` and the state of `random`. Not thread-safe.
class RulerGenerator {
 public:
  virtual ~RulerGenerator() = default;
  virtual RulerText write(int sample, std::int64_t units, std::mt19937_64 random) = 0;
  virtual std::int64_t least_units(int sample) const = 0;
  // By how many units a sample is cut when it came out longer than the one that the size was found with.
  virtual std::int64_t units_to_drop() const = 0;
  virtual int samples() const;  // how many there are; without end unless a task reads its questions from a file
};

// Samples of one task that take at most `ctx_size` tokens, and as many of them as fit: the number of units is found
// with sample 0, the first time one is asked for. Not thread-safe; the tokenizer must outlive it.
class RulerSource {
 public:
  // Throws Error: no task of that name, a file that is missing or cannot be read, digits out of range.
  RulerSource(std::string_view task, const RulerOptions& options, const Tokenizer& tokenizer, std::int64_t ctx_size);

  const RulerTask& task() const { return *task_; }
  int samples() const { return generator_->samples(); }
  RulerSample sample(int number);  // from 0; throws Error when the shortest does not fit

 private:
  RulerSample make(int number, std::int64_t units);
  std::int64_t find_units();

  const RulerTask* task_;
  std::uint64_t seed_;
  ChatTemplate chat_;
  const Tokenizer* tokenizer_;
  std::int64_t ctx_size_;
  std::unique_ptr<RulerGenerator> generator_;
  std::int64_t units_ = 0;
};

// The generators, each in its own file. `ctx_size` matters where RULER has other parameters for short contexts.
std::unique_ptr<RulerGenerator> make_ruler_niah(std::string_view task, const RulerOptions& options,
                                                std::int64_t ctx_size);
std::unique_ptr<RulerGenerator> make_ruler_tracking(std::int64_t ctx_size, const Tokenizer& tokenizer);  // vt
std::unique_ptr<RulerGenerator> make_ruler_common_words(std::int64_t ctx_size);                          // cwe
std::unique_ptr<RulerGenerator> make_ruler_frequent_words(std::int64_t ctx_size);                        // fwe
std::unique_ptr<RulerGenerator> make_ruler_squad(const std::filesystem::path& file);                     // qa_1
std::unique_ptr<RulerGenerator> make_ruler_hotpotqa(const std::filesystem::path& file);                  // qa_2

// RULER's noise haystack, a line of it.
inline constexpr std::string_view ruler_noise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

}  // namespace hayloft::runtime::eval
