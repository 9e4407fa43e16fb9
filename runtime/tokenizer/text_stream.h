#pragma once

#include <cstdint>
#include <string>

#include "offload/text/utf8.h"
#include "runtime/tokenizer/tokenizer.h"

namespace hayloft::runtime {

// The text of generated tokens as they come, special tokens left out: what is pushed, joined, is the text that follows
// the prompt. Not thread-safe; views the tokenizer, which outlives it.
class TextStream {
 public:
  // last_of_prompt: the token that the first one pushed follows. A tokenizer may treat the beginning of a text in a way
  // of its own (SentencePiece drops its space), and does so behind a special token that ends the prompt.
  TextStream(const Tokenizer& tokenizer, std::int32_t last_of_prompt)
      : tokenizer_(tokenizer), previous_(last_of_prompt) {}

  // Returns what can be printed now; a character that comes in pieces is held back until it is whole.
  std::string push(std::int32_t token);

  // Returns what is left at the end, invalid bytes as U+FFFD.
  std::string finish() { return utf8_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  std::int32_t previous_;
  Utf8Stream utf8_;
};

}  // namespace hayloft::runtime
