#pragma once

#include <string_view>

namespace hayloft::runtime::eval {

// ROUGE-L (Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004) of a summary beside a reference: the F
// measure, 0..1, of the longest common subsequence of their words. Words are runs of a to z and 0 to 9 in lower case,
// as they stand: without a stemmer. As the Python package rouge_score computes rougeL so.
double rouge_l(std::string_view reference, std::string_view summary);

}  // namespace hayloft::runtime::eval
