#pragma once

#include <string>
#include <vector>

#include "runtime/chat/chat_template.h"
#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::openai {

// Messages as the chat template gets them: in the order that they were sent in, fields too, with contents of text
// alone. Throws BadRequest naming the message and what is wrong with it, and fields that the template does not name.
Json checked_messages(const Json& list, const ChatTemplate& chat_template);

// Returns the name of a tool. Throws BadRequest for one that a call could not be told from: what stands around a name
// where models write calls (quotes, brackets, white space) is no part of it.
std::string tool_name(const Value& value);

// Throws BadRequest naming what is no function. Gives the names of fields of tools and functions that the API does not
// know, a few at most.
std::vector<std::string> check_tools(const Json& list);

}  // namespace hayloft::runtime::serve::openai
