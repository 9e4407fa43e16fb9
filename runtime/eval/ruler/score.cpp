#include "runtime/eval/ruler/score.h"

#include <algorithm>

#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime::eval {
namespace {

std::string folded(std::string_view text) {
  std::string valid;
  append_valid_utf8(text, false, valid);
  return lowercase(valid);
}

}  // namespace

std::string cleaned_answer(std::string_view answer) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!answer.empty() && is_space(answer.front())) answer.remove_prefix(1);
  while (!answer.empty() && is_space(answer.back())) answer.remove_suffix(1);
  std::string cleaned(answer);
  std::replace_if(
      cleaned.begin(), cleaned.end(), [](unsigned char c) { return c < 0x20; }, '\n');
  return cleaned;
}

double ruler_score(std::string_view answer, const std::vector<std::string>& references, Credit credit) {
  const std::string text = folded(answer);
  const auto found = std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
    return text.find(folded(reference)) != std::string::npos;
  });
  if (credit == Credit::any) return found > 0 ? 1 : 0;
  return references.empty() ? 0 : static_cast<double>(found) / static_cast<double>(references.size());
}

}  // namespace hayloft::runtime::eval
