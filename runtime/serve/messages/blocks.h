#pragma once

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::messages {

// Messages of Anthropic's API as those of a chat: texts of several blocks with a line break between them, calls of
// tools, and a result as a message of the role "tool", ahead of what its user says besides. Throws BadRequest.
openai::Json chat_messages(const openai::Value& list);

// A system prompt: a text, or a list of blocks of text.
std::string system_text(const openai::Value& value);

// Tools as a chat has them.
openai::Json chat_tools(const openai::Value& list);

}  // namespace hayloft::runtime::serve::messages
