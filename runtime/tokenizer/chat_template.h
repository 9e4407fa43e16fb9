#pragma once

#include <string>

namespace hayloft::runtime {

// What stands around a prompt. The special tokens in it are written as text, the beginning of text included, unless the
// tokenizer adds that by itself.
struct ChatTemplate {
  std::string before;
  std::string after;
  std::string text(const std::string& prompt) const { return before + prompt + after; }
};

// "none", "llama-2", "llama-3", "chatml", or a text with {task} in it where the prompt goes, in which \n is a newline.
// Throws Error.
ChatTemplate chat_template(const std::string& text);

}  // namespace hayloft::runtime
