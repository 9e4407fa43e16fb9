#pragma once

#include <cstddef>

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::messages {

// Reads `context_management`, which asks that old thinking and results of tools are left out, or the conversation is
// summarised, once it has grown: nothing of that is done here, so what has nothing to do yet is taken, and what has is
// refused by its name. `messages` are those of the request, which have been read; its prompt has so many tokens. Throws
// openai::BadRequest.
void check_context_edits(const openai::Value& management, const openai::Json& messages, std::size_t tokens);

}  // namespace hayloft::runtime::serve::messages
