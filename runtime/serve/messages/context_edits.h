#pragma once

#include <cstddef>

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::messages {

// Takes old thinking out of a chat's messages as `context_management` says: out of all turns but the newest that keep
// it. Throws openai::BadRequest.
void clear_thinking(const openai::Value& management, openai::Json& chat);

// Reads the whole of `context_management`, which may ask that results of tools are left out, too, or the conversation
// is summarised, once it has grown: neither is done here, so what has nothing to do yet is taken, and what has is
// refused by its name. `messages` are those of the request, which have been read; its prompt has so many tokens. Throws
// openai::BadRequest.
void check_context_edits(const openai::Value& management, const openai::Json& messages, std::size_t tokens);

}  // namespace hayloft::runtime::serve::messages
