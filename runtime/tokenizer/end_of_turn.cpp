#include "runtime/tokenizer/end_of_turn.h"

#include <algorithm>
#include <array>

namespace hayloft::runtime {
namespace {

constexpr std::array<std::string_view, 21> names = {"<|eot_id|>",
                                                    "<|eom_id|>",
                                                    "<|im_end|>",
                                                    "<|end|>",
                                                    "<end_of_turn>",
                                                    "<turn|>",
                                                    "<|endoftext|>",
                                                    "<|end_of_text|>",
                                                    "<|end_of_turn|>",
                                                    "<|return|>",
                                                    "<|call|>",
                                                    "<|flush|>",
                                                    "<|calls|>",
                                                    "</s>",
                                                    "<eos>",
                                                    "<EOT>",
                                                    "_<EOT>",
                                                    "[EOT]",
                                                    "[EOS]",
                                                    "<end_of_utterance>",
                                                    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};

}  // namespace

std::vector<std::int32_t> end_of_turn_tokens(const std::function<std::int32_t(std::string_view name)>& special) {
  std::vector<std::int32_t> ids;
  const bool several_messages = (special("<|return|>") >= 0 && special("<|call|>") >= 0) ||
                                (special("<|flush|>") >= 0 && special("<|calls|>") >= 0);
  for (const std::string_view name : names) {
    const std::int32_t id = special(name);
    if (id >= 0 && !(several_messages && name == "<|end|>")) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::int32_t> end_of_turn_tokens(const Tokenizer& tokenizer) {
  return end_of_turn_tokens([&](std::string_view name) {
    const std::int32_t id = tokenizer.token(name);
    return id >= 0 && tokenizer.is_special(id) ? id : -1;
  });
}

}  // namespace hayloft::runtime
