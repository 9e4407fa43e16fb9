#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "runtime/chat/chat_template.h"
#include "runtime/tokenizer/tokenizer.h"

// Keeps special tokens that are written in other people's texts from being read as such. Functions here may be called
// from any thread.
namespace hayloft::runtime {

// A prompt whose words hold `guard` inside what is written as special tokens are: Tokenizer::encode_prompt(text, guard)
// reads it. guard: empty where nothing had to be guarded.
struct GuardedText {
  std::string text;
  std::string guard;
};

// Guards the texts and the keys of a conversation's parts (messages, tools, documents), in place, before a chat
// template writes them: who writes <|im_end|> into a message, a document or a tool's result says these words and ends
// no turn. Returns the guard that was put in, which stands nowhere else in the parts; empty where they hold no special
// token's text.
std::string guard_special_tokens(const Tokenizer& tokenizer, std::initializer_list<nlohmann::ordered_json*> parts);

// Writes a conversation as ChatTemplate::render does, its messages guarded. Throws what that throws.
GuardedText render_guarded(const ChatTemplate& chat, const Tokenizer& tokenizer, std::span<const ChatMessage> messages);

}  // namespace hayloft::runtime
