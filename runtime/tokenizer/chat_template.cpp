#include "runtime/tokenizer/chat_template.h"

#include <string_view>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

struct Known {
  std::string_view name;
  std::string_view text;
};
constexpr Known known[] = {
    {"none", "{task}"},
    {"llama-2", "[INST] {task} [/INST]"},
    {"llama-3",
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{task}<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"chatml", "<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"},
};

constexpr std::string_view place = "{task}";

ChatTemplate split(std::string_view text) {
  const std::size_t at = text.find(place);
  return {std::string(text.substr(0, at)), std::string(text.substr(at + place.size()))};
}

}  // namespace

ChatTemplate chat_template(const std::string& text) {
  for (const Known& each : known) {
    if (text == each.name) return split(each.text);
  }
  std::string written = text;
  for (std::size_t at = 0; (at = written.find("\\n", at)) != std::string::npos;) written.replace(at, 2, "\n");
  if (written.find(place) == std::string::npos) {
    fail("--chat-template {}: must be none, llama-2, llama-3, chatml, or a text with {{task}} in it", text);
  }
  return split(written);
}

}  // namespace hayloft::runtime
