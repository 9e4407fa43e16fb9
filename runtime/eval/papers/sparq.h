#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/eval/task.h"

// The tasks of the SparQ paper (arXiv 2312.04985, section 5 and appendix C) with its prompts, lengths and scores, from
// files that the user has. Prompts and constants are those of its code, github.com/graphcore-research/
// llm-inference-research; which samples are drawn, and in what order, is not.
namespace hayloft::runtime::eval {

struct SparqFiles {
  std::filesystem::path squad;      // SQuAD v1.1, or a file of its shape
  std::filesystem::path triviaqa;   // TriviaQA's rc rows, a JSON object a line
  std::filesystem::path summaries;  // CNN/DailyMail, likewise
  std::string text;                 // UTF-8, for the two tasks that need nothing else
};

// sparq_squad, sparq_triviaqa, sparq_cnn_dailymail, sparq_bpc, sparq_repetition.
const std::vector<std::string>& sparq_tasks();
bool is_sparq_task(std::string_view name);
// Returns whether there is what the task is made from.
bool has_input(std::string_view task, const SparqFiles& files);

// Samples that take more than ctx_size tokens are passed over. The tokenizer must outlive it. Throws Error: a file that
// cannot be read or has another shape (naming it and the line), no sample that fits.
std::unique_ptr<EvalTask> make_sparq_eval(const std::string& task, const SparqFiles& files, const Tokenizer& tokenizer,
                                          std::int64_t ctx_size, std::uint64_t seed);

// Returns whether the answer begins with one of the references, both in lower case and without the blanks, quotes,
// commas, full stops and underscores around them, and without an article at the beginning.
bool begins_with_answer(std::string_view answer, const std::vector<std::string>& references);

}  // namespace hayloft::runtime::eval
