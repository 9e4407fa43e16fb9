#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/serve/openai/fields.h"

namespace hayloft::runtime::serve::openai {

// Writes messages by a chat template with its other variables, among them "tools". Throws Error where the template
// refuses them.
using WriteMessages = std::function<std::string(const Json& messages, const Json& variables)>;

// A conversation in the form that a template takes, its text, and what of it the template leaves out.
struct FittedMessages {
  Json messages;
  Json variables;
  std::string text;
  std::vector<std::string> notes = {};
};

// Gives messages and tools to a template as they were sent, or, where it refuses them or writes some calls of a message
// and not the others, with the fewest of these changes: a tool without a description gets an empty one; what the
// assistant says beside calls and reasoning joins the reasoning, in a line of its own; several calls of one message
// become a message each, with its results behind it. Throws what the template says of them as they were sent, and
// BadRequest where calls would be lost all the same.
FittedMessages fit_messages(const Json& messages, const Json& variables, const WriteMessages& write);

}  // namespace hayloft::runtime::serve::openai
