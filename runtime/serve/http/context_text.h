#pragma once

#include <string>

#include "runtime/serve/http/routes.h"

namespace hayloft::runtime::serve::http {

// GET /v1/contexts/NAME/text?from=F&to=T: the text of the tokens [F, T) of a saved context as `pieces`, one for each
// token, which joined are the text; a character of several tokens stands with the last of them. As far as the context
// goes, and at most 4,096 tokens. Throws Error.
Reply context_text(const Call& call, const std::string& name, const openai::Served& served,
                   const offload::ModelIdentity& model);

}  // namespace hayloft::runtime::serve::http
