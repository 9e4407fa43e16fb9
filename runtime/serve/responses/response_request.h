#pragma once

#include <string_view>

#include "runtime/serve/openai/request.h"

namespace hayloft::runtime::serve::responses {

// A request of OpenAI's /v1/responses, as https://platform.openai.com/docs/api-reference/responses describes it. Throws
// openai::BadRequest.
openai::Request response_request(std::string_view body, const openai::Served& served);

}  // namespace hayloft::runtime::serve::responses
