#pragma once

#include <string>

namespace hayloft::runtime::serve {

// Takes from the beginning of a system prompt the lines that are known to change with each request and to say nothing
// to a model: what follows them could not be found again among what has been read. Known is x-anthropic-billing-header,
// of coding agents. Returns whether there was one.
bool drop_changing_head(std::string& system);

}  // namespace hayloft::runtime::serve
