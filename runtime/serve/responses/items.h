#pragma once

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::responses {

// Reads what a request puts in, a text or a list of items, as messages of a chat: messages, calls of functions and
// their results, reasoning of earlier turns. `messages` already has those of the response that it goes on from. What
// the assistant says, thinks and calls without another in between is one message, texts and reasoning line by line.
// Throws BadRequest, also where a call has no result.
void add_items(const openai::Value& input, openai::Json& messages);

// Adds the items of an answer: the messages are those that its client gets by sending the items back.
void add_output(const openai::Json& output, openai::Json& messages);

// Tools as a chat has them.
openai::Json chat_tools(const openai::Value& list);

}  // namespace hayloft::runtime::serve::responses
