#pragma once

#include <string>
#include <vector>

#include "runtime/chat/calls/answer_form.h"
#include "runtime/serve/generation.h"

// What the engine tells of an answer, taken apart by its reader; all of it text where that is null. They throw nothing
// of their own, and are as little thread-safe as the reader.
namespace hayloft::runtime::serve {

std::vector<AnswerPart> parts_of(AnswerReader* reader, const GeneratedToken& token);
// Returns the end of the answer: `rest`, and what the reader has held back. The reader is done then.
std::vector<AnswerPart> last_parts(AnswerReader* reader, const std::string& rest);

}  // namespace hayloft::runtime::serve
