#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/serve/openai/draft.h"

namespace hayloft::runtime::serve::openai {

// Returns how many tokens stand before a prompt to that saved context; 0 where none is named. Throws BadRequest (404)
// where it has gone, and Error where it cannot be opened.
std::int64_t tokens_of_context(const Served& served, const std::string& context);
// Throws Error where a saved context of so many tokens leaves no room for a prompt and an answer.
void require_room_behind(const ModelConfig& config, std::int64_t tokens);

// Sets max_tokens of a generation whose prompt is there: what the request says, of a chat as far as there is room for
// it, or what is usual and fits. Throws BadRequest (context_length_exceeded, naming the prompt's field and the numbers)
// where the prompt, of completions with the answer, is longer than the model was made for, or than the server allows.
// Gives what a client has to know: that the answer is bounded so, and of a prompt that is longer than the model was
// trained for and whose RoPE the server's options scale.
std::vector<std::string> hold_to_room(const Draft& draft, GenerationRequest& generation, const char* field);

}  // namespace hayloft::runtime::serve::openai
