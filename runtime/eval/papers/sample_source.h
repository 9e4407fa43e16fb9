#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/eval/papers/sparq.h"

namespace hayloft::runtime::eval {

// A sample as a text, before it is known how many tokens it takes.
struct PaperText {
  std::string prompt;
  std::vector<std::string> expected;
  int most_answer_tokens = 0;     // that may be generated; of the longest reference, and spare_tokens, at most
  int spare_tokens = 0;           // more than the longest reference has
  bool follows_expected = false;  // the model is led through the first of them instead
};

// Makes the samples of one of the paper's tasks.
class PaperSource {
 public:
  virtual ~PaperSource() = default;
  virtual int samples() const = 0;
  virtual PaperText sample(int number, std::mt19937_64& random) const = 0;
};

// Each throws Error naming the file, and the line where there are lines.
std::unique_ptr<PaperSource> read_sparq_squad(const std::filesystem::path& file);
std::unique_ptr<PaperSource> read_sparq_triviaqa(const std::filesystem::path& file);
std::unique_ptr<PaperSource> read_sparq_summaries(const std::filesystem::path& file);
std::unique_ptr<PaperSource> cut_sparq_bpc(std::string text);
std::unique_ptr<PaperSource> cut_sparq_repetition(std::string text);

std::size_t characters(std::string_view text);  // of UTF-8

}  // namespace hayloft::runtime::eval
