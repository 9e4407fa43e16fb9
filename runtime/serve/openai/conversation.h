#pragma once

#include <string>
#include <vector>

#include "runtime/serve/openai/draft.h"

namespace hayloft::runtime::serve::openai {

// A conversation as the model's chat template writes it, and what its client has to know of that.
struct Conversation {
  std::string text;
  std::string guard;    // in it, see GuardedText
  std::string opening;  // what of it, at its end, begins the answer and is no part of what was said
  std::vector<std::string> notes;
  AnswerForm form = {};  // how the answer will be written
};

// Writes messages, tools and the template's other variables. Throws BadRequest naming what is no message, and what
// would reach nobody: tools, calls of tools, roles and fields that the template takes no notice of.
Conversation write_conversation(const Draft& draft);

}  // namespace hayloft::runtime::serve::openai
