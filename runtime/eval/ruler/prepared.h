#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/eval/ruler/ruler.h"

namespace hayloft::runtime::eval {

// A file of samples that RULER's own scripts have prepared, with its prompts: a JSON object a line with `input`,
// `outputs`, `answer_prefix` and `length`. Chat templates are in the prompts already.
struct PreparedSamples {
  std::string task;  // the file's name without its ending; its folder's where the file is called validation or test
  int answer_tokens = 128;
  Credit credit = Credit::all;       // as RULER has them for a task of this name; `any` for other names with "qa"
  std::vector<RulerSample> samples;  // in the file's order
  std::int64_t ctx_size = 0;         // the smallest power of two that the longest sample fits
};

// Throws Error naming the file, the line and what is wrong with it.
PreparedSamples read_prepared_samples(const std::filesystem::path& file);

}  // namespace hayloft::runtime::eval
