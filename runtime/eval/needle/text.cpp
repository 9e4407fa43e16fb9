#include "runtime/eval/needle/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "runtime/eval/needle/words.h"

namespace hayloft::runtime::eval {
namespace {

std::int64_t line_count(std::string_view text) {
  return std::count(text.begin(), text.end(), '\n');
}

std::string_view pick_line(std::string_view text, std::mt19937_64& random) {
  for (std::uint64_t skip = draw(random, static_cast<std::uint64_t>(line_count(text))); skip > 0; --skip)
    text.remove_prefix(text.find('\n') + 1);
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string needle_key(std::mt19937_64& random) {
  const std::string_view noun = pick_line(words::nouns, random);
  return fmt::format("{} {}", pick_line(words::adjectives, random), noun);
}

std::int64_t needle_keys() {
  return line_count(words::adjectives) * line_count(words::nouns);
}

std::string random_digits(std::mt19937_64& random, int digits) {
  assert(digits >= 1 && digits <= 18);
  std::uint64_t least = 1;
  for (int i = 1; i < digits; ++i) least *= 10;
  return fmt::format("{}", least + draw(random, 9 * least));
}

std::string needle_sentence(std::string_view kind, std::string_view key, std::string_view value) {
  return fmt::format("The special magic {} for {} is {}.", kind, key, value);
}

NeedleQuestion needle_question(std::string_view kind, std::string_view keys, bool several) {
  if (several) {
    return {fmt::format("\nWhat are all the special magic {}s for {}?", kind, keys),
            fmt::format(" The special magic {}s for {} are", kind, keys)};
  }
  return {fmt::format("\nWhat is the special magic {} for {}?", kind, keys),
          fmt::format(" The special magic {} for {} is", kind, keys)};
}

const std::string& Filler::sentence(std::size_t i) {
  while (sentences_.size() <= i) sentences_.push_back(source_->next());
  return sentences_[i];
}

}  // namespace hayloft::runtime::eval
