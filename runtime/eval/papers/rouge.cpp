#include "runtime/eval/papers/rouge.h"

#include <algorithm>
#include <string>
#include <vector>

namespace hayloft::runtime::eval {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : text) {
    const char low = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const bool letter = (low >= 'a' && low <= 'z') || (low >= '0' && low <= '9');
    if (letter && !inside) words.emplace_back();
    if (letter) words.back() += low;
    inside = letter;
  }
  return words;
}

std::size_t common_subsequence(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::size_t> longest(b.size() + 1, 0);  // with the words of `a` so far
  for (const std::string& word : a) {
    std::size_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = longest[j + 1];
      longest[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, longest[j]);
      diagonal = above;
    }
  }
  return longest.back();
}

}  // namespace

double rouge_l(std::string_view reference, std::string_view summary) {
  const std::vector<std::string> wanted = words_of(reference), given = words_of(summary);
  if (wanted.empty() || given.empty()) return 0;
  const auto common = static_cast<double>(common_subsequence(wanted, given));
  const double recall = common / static_cast<double>(wanted.size());
  const double precision = common / static_cast<double>(given.size());
  return common == 0 ? 0 : 2 * precision * recall / (precision + recall);
}

}  // namespace hayloft::runtime::eval
