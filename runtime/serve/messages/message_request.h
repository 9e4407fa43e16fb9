#pragma once

#include <string_view>

#include "runtime/serve/openai/request.h"

namespace hayloft::runtime::serve::messages {

// A request of Anthropic's API, as https://docs.anthropic.com/en/api/messages describes it: of /v1/messages, and of
// /v1/messages/count_tokens, which asks how long a prompt is and needs no max_tokens. Throws openai::BadRequest.
openai::Request message_request(std::string_view body, const openai::Served& served);
openai::Request count_request(std::string_view body, const openai::Served& served);
// Returns the tokens of the prompt of a count_request(), with those of its saved context: what the usage of a message
// has in all.
std::int64_t count_tokens(const openai::Request& request, const openai::Served& served);

}  // namespace hayloft::runtime::serve::messages
