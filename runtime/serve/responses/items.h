#pragma once

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::responses {

// Reads what a request puts in, a text or a list of items, as messages of a chat: messages, calls of functions and
// their results, reasoning of earlier turns. `messages` already has those of the response that it goes on from. Throws
// BadRequest.
void add_items(const openai::Value& input, openai::Json& messages);

// The items of an answer as the message of a chat that they are.
openai::Json chat_message(const openai::Json& output);

// Tools as a chat has them.
openai::Json chat_tools(const openai::Value& list);

}  // namespace hayloft::runtime::serve::responses
