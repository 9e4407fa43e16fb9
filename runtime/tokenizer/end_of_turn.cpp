#include "runtime/tokenizer/end_of_turn.h"

#include <algorithm>
#include <array>

namespace hayloft::runtime {
namespace {

constexpr std::array<std::string_view, 13> names = {
    "<|eot_id|>",      "<|eom_id|>",      "<|im_end|>", "<|end|>",  "<end_of_turn>", "<turn|>", "<|endoftext|>",
    "<|end_of_text|>", "<|end_of_turn|>", "<|return|>", "<|call|>", "</s>",          "<eos>"};

}  // namespace

bool names_end_of_turn(std::string_view text) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

std::vector<std::int32_t> end_of_turn_tokens(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const std::string_view name : names) {
    const std::int32_t id = tokenizer.token(name);
    if (id >= 0 && tokenizer.is_special(id)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace hayloft::runtime
