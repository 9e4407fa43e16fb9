#pragma once

#include <string>

namespace hayloft::cli {

// The whole of a text file, or of standard input for "-". `option` is named in what it throws. Ends with Interrupted
// while a pipe or a terminal is waited for.
std::string read_text(const std::string& option, const std::string& path);

}  // namespace hayloft::cli
